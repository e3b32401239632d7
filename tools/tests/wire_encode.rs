#![forbid(unsafe_code)]
//! `homing wire encode` as people run it: the way back of `homing wire decode`.

#[path = "../../tests/wire/sample.rs"]
#[allow(dead_code)] // its other tables are for the tests of the library
mod sample;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use homing::limits::DEFAULT_MAX_FRAME_BYTES;
use homing::wire::{Body, Control, Frame, FrameParts, Origin, PartRule, Record};
use sample::{Sample, metadata_part, payload_part, records, u16be, u32be, u64be};
use serde_json::{Value, json};

fn homing(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_homing"))
        .args(["wire"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // The child writes while it reads; it may also end without reading.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn controls() -> Vec<Vec<u8>> {
    let credit = [u16be(2), u32be(300), u16be(2), u64be(0xABCD), u32be(100), u64be(0), u32be(200)];
    vec![
        [u16be(1), u64be(12), u16be(3), vec![5; 32]].concat(),
        credit.concat(),
        [u16be(9), u64be(1), u64be(2), u32be(9_000)].concat(),
    ]
}

/// Runs hex through decode and then encode, and compares.
fn come_back(args: &[&str], lines: &[String]) {
    let input = lines.join("\n");
    let decoded = homing(&[&["decode"], args].concat(), input.as_bytes());
    assert_eq!(text(&decoded.stderr), "");
    let partial: Vec<&str> = args.iter().copied().filter(|arg| *arg == "--partial").collect();
    let encoded = homing(&[&["encode"][..], &partial].concat(), &decoded.stdout);
    assert_eq!(text(&encoded.stderr), "");
    assert_eq!(encoded.status.code(), Some(0));
    let back = text(&encoded.stdout);
    assert_eq!(back.lines().count(), lines.len());
    for (line, back) in lines.iter().zip(back.lines()) {
        assert_eq!(line, back);
    }
}

/// A record and the parts it may have.
fn whole(record: &[u8]) -> String {
    let decoded = Record::decode(record).expect("valid");
    let mut parts = vec![hex(record)];
    if decoded.has_metadata {
        parts.push(hex(&metadata_part().bytes()));
    }
    if decoded.record.command().payload() != PartRule::Refused {
        parts.push(hex(&payload_part().bytes()));
    }
    parts.join(",")
}

/// The sample, and it with every byte replaced by every other of a few, as far as that is valid.
fn variants(bytes: &[u8], valid: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let mut all = vec![bytes.to_vec()];
    for at in 0..bytes.len() {
        for value in [0, 1, 2, 3, 7, 34, 47, 92, 103, 0x7F, 0x80, 0xFF, bytes[at] ^ 1] {
            let mut changed = bytes.to_vec();
            changed[at] = value;
            if value != bytes[at] && valid(&changed) {
                all.push(changed);
            }
        }
    }
    all
}

#[test]
fn every_record_comes_back() {
    let mut lines = Vec::new();
    for sample in records() {
        let all = variants(&sample.bytes(), |bytes| Record::decode(bytes).is_ok());
        lines.extend(all.iter().map(|bytes| whole(bytes)));
    }
    assert!(lines.len() > 2_000, "{}", lines.len());
    come_back(&[], &lines);
}

#[test]
fn records_without_their_parts_come_back() {
    let lines: Vec<String> = records().iter().map(|sample| hex(&sample.bytes())).collect();
    come_back(&["--partial"], &lines);
    let refused = homing(&["encode", &decoded(&["--partial", &lines[9]]).to_string()], b"");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).starts_with("payload is null: payload-missing: "));
}

#[test]
fn every_control_record_and_part_comes_back() {
    for (kind, samples) in [
        ("control", controls()),
        ("metadata", vec![metadata_part().bytes(), vec![1, 0]]),
        ("payload", vec![payload_part().bytes()]),
    ] {
        let valid = |bytes: &[u8]| match kind {
            "control" => Control::decode(bytes).is_ok(),
            "metadata" => homing::wire::MetadataPart::decode(bytes).is_ok(),
            _ => homing::wire::PayloadPart::decode(bytes).is_ok(),
        };
        let all: Vec<_> = samples.iter().flat_map(|bytes| variants(bytes, valid)).collect();
        let lines: Vec<String> = all.iter().map(|bytes| hex(bytes)).collect();
        come_back(&["--as", kind], &lines);
    }
}

/// Frames of every record, of every control record, relayed ones, and of a bundle.
fn frames() -> Vec<Vec<u8>> {
    let (metadata, payload) = (metadata_part().bytes(), payload_part().bytes());
    let records: Vec<Vec<u8>> = records().iter().map(Sample::bytes).collect();
    let controls = controls();
    let frame = |parts: &FrameParts<'_>| {
        let mut bytes = Vec::new();
        parts.encode(&mut bytes, DEFAULT_MAX_FRAME_BYTES).expect("valid");
        bytes
    };
    let mut frames = Vec::new();
    for record in &records {
        let decoded = Record::decode(record).expect("valid");
        let command = decoded.record.command();
        let mut parts = FrameParts {
            object_hash: if command.is_link_scoped() { 0 } else { u64::MAX - 1 },
            remaining_ms: 250,
            metadata_part: decoded.has_metadata.then_some(&metadata),
            payload_part: (command.payload() != PartRule::Refused).then_some(&payload),
            ..FrameParts::link(3, Body::Record(decoded.record))
        };
        frames.push(frame(&parts));
        if command.can_be_relayed() {
            parts.origin = Some(Origin {
                rid: &[0xFF, 0],
                node_generation: homing::ids::NodeGeneration::FIRST,
                reply_route: decoded.record.awaited_reply(),
            });
            parts.bundle = true;
            frames.push(frame(&parts));
        }
    }
    for control in &controls {
        let control = Control::decode(control).expect("valid");
        frames.push(frame(&FrameParts::link(15, Body::Control(control))));
    }
    frames
}

#[test]
fn every_frame_comes_back() {
    let frames = frames();
    for bytes in &frames {
        Frame::decode(bytes, DEFAULT_MAX_FRAME_BYTES).expect("valid");
    }
    let lines: Vec<String> = frames.iter().map(|bytes| hex(bytes)).collect();
    come_back(&[], &lines);
}

/// The JSON of one input.
fn decoded(args: &[&str]) -> Value {
    let output = homing(&[&["decode"], args].concat(), b"");
    assert_eq!(text(&output.stderr), "");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What is said of JSON that cannot be encoded.
fn refused(json: &Value) -> String {
    let output = homing(&["encode", &json.to_string()], b"");
    assert_eq!(output.status.code(), Some(1), "{json}");
    assert_eq!(text(&output.stdout), "", "{json}");
    text(&output.stderr)
}

fn changed(json: &Value, pointer: &str, value: Value) -> Value {
    let mut json = json.clone();
    let (object, name) = pointer.rsplit_once('/').expect("a pointer");
    json.pointer_mut(object).expect("there")[name] = value;
    json
}

#[test]
fn a_wrong_field_is_named_with_its_value_and_the_rule() {
    let follow = decoded(&[&whole(&sample::record("messageFollow").bytes())]);
    let send = decoded(&[&whole(&sample::record("actorRequest").bytes())]);
    let hello = decoded(&[&whole(&sample::record("hello").bytes())]);
    let reply = decoded(&[&whole(&sample::record("reply").bytes())]);
    let abort = decoded(&[&whole(&sample::record("sessionRelocationRoute abort").bytes())]);
    let cases = [
        (&send, "/record/hop_count", json!(9), "record.hop_count is 9: hop-count: "),
        (
            &send,
            "/record/hop_count",
            json!(-1),
            "record.hop_count is -1: it must be a whole number of 0 to 2^8-1",
        ),
        (
            &send,
            "/record/hop_count",
            json!(1.5),
            "record.hop_count is 1.5: it must be a whole number of 0 to 2^8-1",
        ),
        (&send, "/record/hop_count", json!("1"), "record.hop_count is \"1\": it must be a whole"),
        (
            &send,
            "/record/hop_count",
            json!(256),
            "record.hop_count is 256: it must be a whole number of 0 to 2^8-1",
        ),
        (&send, "/record/id", json!(""), "record.id is \"\": text-empty: "),
        (&send, "/record/id", json!("a\u{0}b"), "record.id is \"a\\u0000b\": text-nul: "),
        (&send, "/record/id", json!("é".repeat(128)), "record.id is \"ééé"),
        (&send, "/record/id", Value::Null, "record.id is null: it must be text"),
        (
            &send,
            "/record/fence/rid",
            json!("0xf"),
            "record.fence.rid is \"0xf\": it must be text, or 0x",
        ),
        (&send, "/record/fence/rid", json!("0x"), "record.fence.rid is \"0x\": rid-empty: "),
        (
            &send,
            "/record/fence/rid",
            json!("0x61"),
            "record.fence.rid is \"0x61\": it must be \"a\"",
        ),
        (
            &send,
            "/record/fence/node_generation",
            json!(0),
            "record.fence.node_generation is 0: generation-zero: ",
        ),
        (
            &send,
            "/record/fence/node_generation",
            json!(1_u64 << 63),
            "record.fence.node_generation is 9223372036854775808: generation-range: ",
        ),
        (&send, "/record/operation_id", json!("0".repeat(32)), "record.operation_id is \"0000"),
        (
            &send,
            "/record/operation_id",
            json!("12"),
            "record.operation_id is \"12\": it must be text of 32 small hex digits",
        ),
        (&send, "/record/command", json!(26), "record.command is 26: command-unsupported: "),
        (
            &send,
            "/record/command",
            json!(24),
            "record.correlation is 77: it must be null, as the other fields say",
        ),
        (&send, "/record/flags", json!(6), "record.flags is 6: it must be 7, as the other"),
        (
            &send,
            "/record/colour",
            json!(1),
            "record.colour is 1: no such field is known here, only command, name, ",
        ),
        (
            &send,
            "/record/bound_session/sequence",
            json!(0),
            "record.bound_session.sequence is 0: generation-zero: ",
        ),
        (&send, "/payload", Value::Null, "payload is null: payload-missing: "),
        (
            &send,
            "/payload/bytes",
            json!("0G"),
            "payload.bytes is \"0G\": it must be text of small hex digits",
        ),
        (
            &send,
            "/metadata/1/key",
            json!("A"),
            "metadata[1].key is \"A\": metadata-duplicate-key: ",
        ),
        (&send, "/metadata/0/value", json!("00".repeat(1_020)), "metadata is [{"),
        (
            &send,
            "/kind",
            json!("picture"),
            "kind is \"picture\": it must be frame, record, control, ",
        ),
        (&hello, "/record/cores", json!(257), "record.cores is 257: core-count: "),
        (
            &hello,
            "/record/max_frame_bytes",
            json!(1),
            "record.max_frame_bytes is 1: max-frame-range: ",
        ),
        (
            &hello,
            "/record/nonce",
            json!("00"),
            "record.nonce is \"00\": it must be text of 64 small hex digits",
        ),
        (&hello, "/payload", send["payload"].clone(), "payload is {\"bytes\""),
        (&reply, "/record/terminal", json!(0), "record.failure_code is 1: ok-with-failure: "),
        (&reply, "/record/terminal", json!(5), "record.terminal is 5: terminal-unknown: "),
        (&reply, "/record/tail", json!("00"), "record.tail is \"00\": tail-not-allowed: "),
        (
            &reply,
            "/record/error_kind",
            json!("Unavailable"),
            "record.error_kind is \"Unavailable\": it must be ",
        ),
        (&abort, "/record/role", json!(2), "record.role is 2: abort-role: "),
        (
            &abort,
            "/record/commit",
            json!({}),
            "record.commit.previous_owner_generation is missing: ",
        ),
        (
            &follow,
            "/record/target/object_generation",
            json!(6),
            "record.target.object_generation is 6: follow-routes: ",
        ),
        (
            &follow,
            "/record/target/authority_owner_generation",
            json!(11),
            "record.target.authority_owner_generation is 11: follow-order: ",
        ),
        (
            &follow,
            "/record/object_kind",
            json!("room"),
            "record.object_kind is \"room\": it must be actor or spot",
        ),
    ];
    for (json, pointer, value, start) in cases {
        let said = refused(&changed(json, pointer, value));
        assert!(said.starts_with(start), "{pointer}\nsaid:     {said}\nexpected: {start}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn rules_of_a_frame_are_named_too() {
    let all: Vec<Value> = frames().iter().map(|bytes| decoded(&[&hex(bytes)])).collect();
    let of = |name: &str, origin: bool| {
        let found =
            all.iter().find(|f| f["record"]["name"] == name && f["origin"].is_null() != origin);
        found.expect("a frame")
    };
    let credit = all.iter().find(|f| f["control"]["name"] == "credit").expect("a frame");
    let send = of("actorSend", false);
    let relayed = of("actorRequest", true);
    let probe = of("livenessProbe", false);
    let cases = [
        (
            probe,
            "/object_hash",
            json!("0000000000000001"),
            "object_hash is \"0000000000000001\": hash-not-zero: ",
        ),
        (probe, "/bundle", json!(true), "bundle is true: bundle-not-allowed: "),
        (probe, "/origin", relayed["origin"].clone(), "origin is {\"node_generation\":1"),
        (send, "/record/hop_count", json!(1), "origin is null: origin-missing: "),
        (
            relayed,
            "/origin/reply_route",
            json!(78),
            "origin.reply_route is 78: origin-reply-route: ",
        ),
        (send, "/lane", json!(65_536), "lane is 65536: it must be a whole number of 0 to 2^16-1"),
        (credit, "/control/entries", json!([]), "control.entries is []: credit-empty: "),
        (credit, "/control/total_bytes", json!(1), "control.total_bytes is 1: it must be 300, as "),
        (
            credit,
            "/control/entries/0/bytes",
            json!(0),
            "control.entries[0].bytes is 0: credit-empty: ",
        ),
        (credit, "/control/type", json!(3), "control.type is 3: control-unknown: "),
    ];
    for (json, pointer, value, start) in cases {
        let said = refused(&changed(json, pointer, value));
        assert!(said.starts_with(start), "{pointer}\nsaid:     {said}\nexpected: {start}");
    }
    let output = homing(&["encode", "--max-frame", "100", &send.to_string()], b"");
    assert!(text(&output.stderr).contains("frame-too-large: "), "{}", text(&output.stderr));
}

#[test]
fn input_of_every_source_and_input_that_is_no_json() {
    let probe = r#"{"kind":"record","record":{"command":5,"probe_id":7}}"#;
    let good = "5a4d0105000000000000000007\n";
    assert_eq!(text(&homing(&["encode", probe], b"").stdout), good);
    let lines = format!("# a capture\n\n{probe}\n{{\n{probe}\n");
    let check = |output: &Output| {
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(text(&output.stdout), good.repeat(2));
        let said = text(&output.stderr);
        assert!(said.starts_with("input 2: this is no JSON to encode: EOF while "), "{said}");
    };
    check(&homing(&["encode"], lines.as_bytes()));
    check(&homing(&["encode", "--file", "-"], lines.as_bytes()));
    check(&homing(&["encode", probe, "{", probe], b""));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("frames.json");
    std::fs::write(&path, &lines).expect("written");
    check(&homing(&["encode", "--file", path.to_str().expect("UTF-8")], b""));

    let said = |json: &str| text(&homing(&["encode", json], b"").stderr);
    assert_eq!(said("[]"), "the input is []: it must be an object {…}\n");
    assert_eq!(said("{}"), "kind is missing: it must be text\n");
    let twice = r#"{"kind":"record","kind":"frame"}"#;
    assert!(said(twice).contains("the field \"kind\" is there twice"), "{}", said(twice));
    let deep = "[".repeat(100_000);
    assert!(said(&deep[..1_000]).contains("recursion limit"), "{}", said(&deep[..1_000]));
    assert_eq!(homing(&["encode"], b"# nothing\n").status.code(), Some(2));
}

/// The examples in the help work as they stand.
#[test]
fn the_help_has_examples_that_work() {
    let help = text(&homing(&["encode", "--help"], b"").stdout);
    let probe = "homing wire encode '";
    let start = help.find(probe).expect("an example") + probe.len();
    let json = &help[start..start + help[start..].find('\'').expect("its end")];
    let output = homing(&["encode", json], b"");
    assert_eq!(text(&output.stdout), "5a4d0105000000000000000007\n");
    assert!(help.contains("homing wire decode 5a4d0105000000000000000007 | homing wire encode"));
}
