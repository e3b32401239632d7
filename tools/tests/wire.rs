#![forbid(unsafe_code)]
//! `homing wire` as people run it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const ACTOR_SEND: &str = "5a4d01180000000000000000010000000000000001000001610000000000000001016e000000000000000100000000000000010000000000000001";
const PAYLOAD: &str = "010000002d0e666978747572652e7061636b6574186170706c69636174696f6e2f6f637465742d73747265616d000000017f";
const METADATA: &str = "0102014100056669727374014200067365636f6e64";
const SEAL: &str = "5a4d012a00000000000000000700000000000000090b636f6f7264696e61746f72000000000000000306736f757263650000000000000002000973746f72652d76313701076163746f722d31000000000000000506736f757263650000000000000002000000000000000b000000000000000d06736f7572636500000000000000020d73657373696f6e2d6f776e657200000000000000080773657373696f6e0000000000000006";
const COMMIT: &str = "5a4d012c00000000000000000700000000000000090b636f6f7264696e61746f72000000000000000306736f757263650000000000000002000973746f72652d76313702076163746f722d31000000000000000506736f7572636500000000000000020d73657373696f6e2d6f776e657200000000000000080773657373696f6e0000000000000006010027000000000000000b000000000000000c0674617267657400000000000000040000000000000005";
const PROBE: &str = "5a4d0105000000000000000007";

fn homing(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_homing"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    // The child may end without reading its input.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).expect("JSON is UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are UTF-8")
}

/// Decodes one input that is good.
fn decode(args: &[&str]) -> Value {
    let output = homing(&[&["wire", "decode"], args].concat(), "");
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", errors(&output));
    assert_eq!(errors(&output), "");
    match lines(&output).as_slice() {
        [value] => value.clone(),
        other => panic!("{other:?}"),
    }
}

/// Decodes one input that is not, and gives what was said about it.
fn refused(args: &[&str]) -> String {
    let output = homing(&[&["wire", "decode"], args].concat(), "");
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    errors(&output)
}

#[test]
fn the_published_message_and_its_payload() {
    let value = decode(&[&format!("{ACTOR_SEND},{PAYLOAD}")]);
    let expected = json!({
        "kind": "record",
        "record": {
            "command": 24,
            "name": "actorSend",
            "flags": 0,
            "correlation": null,
            "operation_id": "00000000000000010000000000000001",
            "hop_count": 0,
            "source_actor": null,
            "id": "a",
            "fence": {
                "object_generation": 1,
                "rid": "n",
                "node_generation": 1,
                "authority_owner_generation": 1,
                "owner_lease_generation": 1,
            },
            "bound_session": null,
        },
        "metadata": null,
        "payload": {
            "packet_name": "fixture.packet",
            "content_type": "application/octet-stream",
            "bytes": "7f",
        },
    });
    assert_eq!(value, expected);
    let spaced = format!("{},{PAYLOAD}", ACTOR_SEND.to_uppercase().replace("00", " 00"));
    assert_eq!(decode(&[&spaced]), expected);
}

#[test]
fn a_message_with_metadata_has_three_parts() {
    let flagged = ACTOR_SEND.replacen("0118000000", "0118010000", 1);
    let value = decode(&[&format!("{flagged},{METADATA},{PAYLOAD}")]);
    let entries =
        json!([{"key": "A", "value": "6669727374"}, {"key": "B", "value": "7365636f6e64"}]);
    assert_eq!(value["metadata"], entries);
    assert_eq!(value["record"]["flags"], 1);
    assert_eq!(value["payload"]["bytes"], "7f");
    assert_eq!(decode(&["--as", "metadata", METADATA])["metadata"], entries);
    assert_eq!(decode(&["--as", "payload", PAYLOAD])["payload"], value["payload"]);

    let end = ACTOR_SEND.len() / 2;
    assert!(refused(&[&flagged]).starts_with("metadata-missing at offset 4: "));
    let without = format!("{flagged},{METADATA}");
    assert!(refused(&[&without]).starts_with(&format!("payload-missing at offset {end}: ")));
    assert!(refused(&[&without]).contains("after a comma, or pass --partial"));
    assert_eq!(decode(&["--partial", &flagged])["record"]["flags"], 1);
    let cut = format!("{flagged},{},{PAYLOAD}", &METADATA[..METADATA.len() - 2]);
    let said = refused(&[&cut]);
    assert!(said.starts_with("truncated at offset 13 of the metadata part: "), "{said}");
}

#[test]
fn the_published_relocation_records() {
    let value = decode(&[SEAL]);
    assert_eq!(
        value["record"],
        json!({
            "command": 42,
            "name": "sessionRelocationSeal",
            "flags": 0,
            "relocation_id": "00000000000000070000000000000009",
            "coordinator": {
                "owner_id": "coordinator",
                "owner_lease_generation": 3,
                "rid": "source",
                "node_generation": 2,
                "expected_store_version": "store-v17",
            },
            "role": 1,
            "role_name": "source",
            "id": "actor-1",
            "fence": {
                "object_generation": 5,
                "rid": "source",
                "node_generation": 2,
                "authority_owner_generation": 11,
                "owner_lease_generation": 13,
            },
            "session_owner": {
                "rid": "source",
                "node_generation": 2,
                "owner_id": "session-owner",
                "owner_lease_generation": 8,
                "session": "session",
                "binding_generation": 6,
            },
        })
    );
    let value = decode(&[COMMIT]);
    assert_eq!(value["record"]["role_name"], "target");
    assert_eq!(
        value["record"]["commit"],
        json!({
            "previous_owner_generation": 11,
            "target_owner_generation": 12,
            "rid": "target",
            "node_generation": 4,
            "owner_lease_generation": 5,
        })
    );
}

/// A frame around the published message, relayed once, with the checksum given.
fn frame() -> String {
    use homing::wire::{Body, FrameParts, Origin, Record};
    let unhex = |text: &str| -> Vec<u8> {
        let digit = |i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex");
        (0..text.len()).step_by(2).map(digit).collect()
    };
    let (record, payload) = (unhex(ACTOR_SEND), unhex(PAYLOAD));
    let parts = FrameParts {
        lane: 3,
        object_hash: 0xFEDC_BA98_7654_3210,
        remaining_ms: 250,
        bundle: false,
        origin: Some(Origin {
            rid: &[0xFF, 0],
            node_generation: homing::ids::NodeGeneration::FIRST,
            reply_route: None,
        }),
        body: Body::Record(Record::decode(&record).expect("published").record),
        metadata_part: None,
        payload_part: Some(&payload),
    };
    let mut bytes = Vec::new();
    parts.encode(&mut bytes, 1 << 20).expect("valid");
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn a_whole_frame() {
    let frame = frame();
    let value = decode(&[&frame]);
    assert_eq!(value["kind"], "frame");
    assert_eq!(value["lane"], 3);
    assert_eq!(value["object_hash"], "fedcba9876543210");
    assert_eq!(value["remaining_ms"], 250);
    assert_eq!(value["bundle"], false);
    let origin = json!({"rid": "0xff00", "node_generation": 1, "reply_route": null});
    assert_eq!(value["origin"], origin);
    assert_eq!(value["record"]["name"], "actorSend");
    assert_eq!(value["payload"]["packet_name"], "fixture.packet");

    let cut = &frame[..frame.len() - 2];
    let at = cut.len() / 2;
    assert!(refused(&[cut]).starts_with(&format!("frame-truncated at offset {at}: ")));
    let flipped = format!("{}1{}", &frame[..15], &frame[16..]);
    assert!(refused(&[&flipped]).starts_with("header-crc at offset 36: "));
    let said = refused(&["--max-frame", "100", &frame]);
    assert!(said.starts_with("frame-too-large at offset 0: "), "{said}");
}

#[test]
fn control_records() {
    let credit = "0002000000030001000000000000000100000003";
    let value = decode(&["--as", "control", credit]);
    assert_eq!(
        value["control"],
        json!({
            "type": 2,
            "name": "credit",
            "total_bytes": 3,
            "entries": [{"object_hash": "0000000000000001", "bytes": 3}],
        })
    );
    let said = refused(&["--as", "control", "0063"]);
    assert!(said.starts_with("control-unknown at offset 0: "), "{said}");
}

#[test]
fn the_broken_rule_is_named() {
    let cases = [
        ("5a4d01050000000000000000", "truncated at offset 5: "),
        ("5a4d010500000000000000000700", "trailing-bytes at offset 13: "),
        ("5a4d0105000000000000000000", "probe-id-zero at offset 5: "),
        ("5a4d0205000000000000000007", "record-major at offset 2: "),
        ("5a4d0110000000000000000007", "command-unsupported at offset 3: "),
        ("5a4d01ff000000000000000007", "command-reserved at offset 3: "),
        ("5a4d0105080000000000000007", "flag-extension at offset 4: "),
        ("00", "frame-truncated at offset 1: "),
    ];
    for (hex, start) in cases {
        let said = refused(&[hex]);
        assert!(said.starts_with(start), "{hex}: {said}");
        assert!(said.trim_end().ends_with('.'), "{said}");
    }
    let said = refused(&[&format!("{PROBE},{PAYLOAD}")]);
    assert!(said.starts_with("payload-not-allowed at offset 13: "), "{said}");
}

#[test]
fn many_inputs_of_every_source() {
    let bad = "5a4d0105000000000000000000";
    let text = format!("# a capture\n\n{PROBE}\n{bad}\n  {SEAL}\n");
    let check = |output: &Output| {
        assert_eq!(output.status.code(), Some(1));
        let names: Vec<Value> = lines(output).iter().map(|v| v["record"]["name"].clone()).collect();
        assert_eq!(names, ["livenessProbe", "sessionRelocationSeal"]);
        let said = errors(output);
        assert!(said.starts_with("input 2: probe-id-zero at offset 5: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    check(&homing(&["wire", "decode", PROBE, bad, SEAL], ""));
    check(&homing(&["wire", "decode"], &text));
    check(&homing(&["wire", "decode", "--file", "-"], &text));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("frames.hex");
    std::fs::write(&path, &text).expect("written");
    check(&homing(&["wire", "decode", "--file", path.to_str().expect("UTF-8")], ""));

    let one = homing(&["wire", "decode", "--pretty", PROBE], "");
    let whole: Value = serde_json::from_slice(&one.stdout).expect("one object");
    assert_eq!(whole["record"]["probe_id"], 7);
    assert!(one.stdout.iter().filter(|b| **b == b'\n').count() > 3);
}

#[test]
fn bad_input_is_explained() {
    assert_eq!(refused(&["5a4d0g"]), "'g' at position 5 is not a hex digit\n");
    assert!(refused(&["5a4"]).contains("odd number of hex digits"));
    assert_eq!(refused(&[""]), "the input is empty\n");
    let parts = format!("{PROBE},00,00");
    assert!(refused(&[&parts]).starts_with("there are more parts than the record can have"));
    assert!(refused(&["--as", "frame", "00,00"]).starts_with("only a record has parts"));

    let missing = homing(&["wire", "decode", "--file", "/no/such/file"], "");
    assert_eq!(missing.status.code(), Some(2));
    assert!(errors(&missing).contains("cannot read /no/such/file: "));
    let empty = homing(&["wire", "decode"], "# nothing\n");
    assert_eq!(empty.status.code(), Some(2));
    assert!(errors(&empty).contains("no line with hex"));
}

/// The examples in the help work as they stand.
#[test]
fn the_help_has_examples_that_work() {
    let help = homing(&["wire", "decode", "--help"], "");
    assert_eq!(help.status.code(), Some(0));
    let text = String::from_utf8(help.stdout).expect("UTF-8").replace("\\\n", "");
    let examples: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("homing wire decode "))
        .filter(|example| !example.contains("--file"))
        .collect();
    assert_eq!(examples.len(), 3, "{text}");
    for example in examples {
        let args: Vec<&str> = example.split(' ').collect();
        decode(&args);
    }
    assert!(text.contains("RECORD[,METADATA][,PAYLOAD]"), "{text}");
}

#[test]
fn the_rules_are_listed() {
    let output = homing(&["wire", "rules"], "");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), homing::wire::Rule::ALL.len());
    assert!(text.contains("hop-count "));
}
