#![forbid(unsafe_code)]
//! Bytes from the JSON that `homing wire decode` prints.

use homing::wire::{
    Body, Control, Credit, Frame, FrameParts, MetadataPart, PartRule, PayloadPart, Record, Rule,
    WireError, encode_metadata_part, encode_payload_part,
};

use super::fields::{Arena, Fields, Wrong, named};
use super::{build, show};
use crate::json::Json;

/// The hex of a frame, of a record and its parts, of a link control record, or of a part.
///
/// What follows from other fields (names, totals) may be left out, and so may what is null;
/// what is there must agree: the bytes are decoded again and compared with `json`.
pub(super) fn encode(json: &Json, partial: bool, max_frame: u32) -> Result<String, Wrong> {
    let arena = Arena::default();
    let root = Fields::of(json, "", &arena)?;
    let encode = match root.text("kind")? {
        "frame" => frame(&root, max_frame),
        "record" => record(&root, partial),
        "control" => control(&root),
        "metadata" => metadata(&root),
        "payload" => payload(&root),
        _ => {
            let kinds = "it must be frame, record, control, metadata or payload";
            return Err(root.wrong("kind", kinds));
        }
    };
    let encoded = encode?;
    agrees("", json, &encoded.shown)?;
    Ok(encoded.parts.iter().map(|part| hex(part)).collect::<Vec<_>>().join(","))
}

/// Bytes, and what they are decoded to.
struct Encoded {
    parts: Vec<Vec<u8>>,
    shown: Json,
}

fn hex(bytes: &[u8]) -> String {
    match Json::hex(bytes) {
        Json::Text(text) => text,
        _ => String::new(),
    }
}

/// The first field of `given` that is not what the bytes say.
fn agrees(path: &str, given: &Json, shown: &Json) -> Result<(), Wrong> {
    let (Json::Object(given_fields), Json::Object(shown_fields)) = (given, shown) else {
        if let (Json::List(given), Json::List(shown)) = (given, shown)
            && given.len() == shown.len()
        {
            let mut pairs = given.iter().zip(shown).enumerate();
            return pairs.try_for_each(|(i, (g, s))| agrees(&format!("{path}[{i}]"), g, s));
        }
        if given == shown {
            return Ok(());
        }
        let rule = format!("it must be {shown}, as the other fields say");
        return Err(Wrong::new(path, Some(given), rule));
    };
    for (name, value) in given_fields {
        let path = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
        match shown_fields.iter().find(|(shown, _)| shown == name) {
            Some((_, shown)) => agrees(&path, value, shown)?,
            None => {
                let known: Vec<_> = shown_fields.iter().map(|(name, _)| name.as_ref()).collect();
                let rule = format!("no such field is known here, only {}", known.join(", "));
                return Err(Wrong::new(&path, Some(value), rule));
            }
        }
    }
    Ok(())
}

fn frame(root: &Fields<'_>, max_frame: u32) -> Result<Encoded, Wrong> {
    let metadata = given_metadata(root)?;
    let payload = given_payload(root)?;
    let control = root.opt("control", build::control)?;
    let body = match &control {
        Some(_) if root.given("record").is_some() => {
            return Err(root.wrong("control", "a frame has either a record or a control"));
        }
        Some(control) => Body::Control(control_record(root, control)?),
        None => Body::Record(build::record(&root.object("record")?)?),
    };
    let parts = FrameParts {
        lane: root.number("lane")?,
        object_hash: root.hex64("object_hash")?,
        remaining_ms: root.number("remaining_ms")?,
        bundle: root.bool("bundle")?,
        origin: root.opt("origin", build::origin)?,
        body,
        metadata_part: metadata.as_deref(),
        payload_part: payload.as_deref(),
    };
    let mut bytes = Vec::new();
    parts.encode(&mut bytes, max_frame).map_err(|e| broken(root, e))?;
    let shown = Frame::decode(&bytes, max_frame).map(|f| show::frame(&f));
    let shown = shown.map_err(|e| broken(root, e))?;
    Ok(Encoded { parts: vec![bytes], shown })
}

fn record(root: &Fields<'_>, partial: bool) -> Result<Encoded, Wrong> {
    let fields = root.object("record")?;
    let record = build::record(&fields)?;
    let metadata = given_metadata(root)?;
    let payload = given_payload(root)?;
    // A record without the parts it needs, as `decode --partial` reads it.
    let promised = partial && matches!(fields.given("flags"), Some(Json::Number(n)) if n & 1 == 1);
    let has_metadata = metadata.is_some() || promised;
    if payload.is_some() && metadata.is_none() && promised {
        return Err(fields.wrong("flags", named(Rule::MetadataMissing)));
    }
    match (record.command().payload(), &payload) {
        (PartRule::Refused, Some(_)) => {
            return Err(root.wrong("payload", named(Rule::PayloadNotAllowed)));
        }
        (PartRule::Required, None) if !partial => {
            return Err(root.wrong("payload", named(Rule::PayloadMissing)));
        }
        _ => {}
    }
    let mut bytes = Vec::new();
    record.encode(has_metadata, &mut bytes).map_err(|e| broken(root, e))?;
    let decoded = Record::decode(&bytes).map_err(|e| broken(root, e))?;
    let shown_metadata = decoded_part(root, metadata.as_deref(), MetadataPart::decode)?;
    let shown_payload = decoded_part(root, payload.as_deref(), PayloadPart::decode)?;
    let shown = show::record(&decoded, shown_metadata.as_ref(), shown_payload.as_ref());
    let parts = [Some(bytes), metadata, payload].into_iter().flatten().collect();
    Ok(Encoded { parts, shown })
}

fn decoded_part<'p, T>(
    root: &Fields<'_>,
    part: Option<&'p [u8]>,
    decode: impl FnOnce(&'p [u8]) -> Result<T, WireError>,
) -> Result<Option<T>, Wrong> {
    part.map(decode).transpose().map_err(|e| broken(root, e))
}

fn control(root: &Fields<'_>) -> Result<Encoded, Wrong> {
    let control = build::control(&root.object("control")?)?;
    let control = control_record(root, &control)?;
    let mut bytes = Vec::new();
    control.encode(&mut bytes).map_err(|e| broken(root, e))?;
    let shown = Control::decode(&bytes).map(|c| show::control(&c)).map_err(|e| broken(root, e))?;
    Ok(Encoded { parts: vec![bytes], shown })
}

fn control_record<'c>(
    root: &Fields<'_>,
    control: &'c build::Control,
) -> Result<Control<'c>, Wrong> {
    match control {
        build::Control::Other(control) => Ok(*control),
        build::Control::Credit(entries) => {
            Credit::new(entries).map(Control::Credit).map_err(|e| broken(root, e))
        }
    }
}

fn metadata(root: &Fields<'_>) -> Result<Encoded, Wrong> {
    let bytes = metadata_part(root)?;
    let shown = MetadataPart::decode(&bytes).map(|m| show::metadata(&m));
    Ok(Encoded { shown: shown.map_err(|e| broken(root, e))?, parts: vec![bytes] })
}

fn payload(root: &Fields<'_>) -> Result<Encoded, Wrong> {
    let bytes = payload_part(root)?;
    let shown = PayloadPart::decode(&bytes).map(|p| show::payload(&p));
    Ok(Encoded { shown: shown.map_err(|e| broken(root, e))?, parts: vec![bytes] })
}

fn given_metadata(root: &Fields<'_>) -> Result<Option<Vec<u8>>, Wrong> {
    root.given("metadata").map(|_| metadata_part(root)).transpose()
}

fn given_payload(root: &Fields<'_>) -> Result<Option<Vec<u8>>, Wrong> {
    root.given("payload").map(|_| payload_part(root)).transpose()
}

fn metadata_part(root: &Fields<'_>) -> Result<Vec<u8>, Wrong> {
    let mut part = Vec::new();
    encode_metadata_part(&mut part, &build::metadata(root)?).map_err(|e| broken(root, e))?;
    Ok(part)
}

fn payload_part(root: &Fields<'_>) -> Result<Vec<u8>, Wrong> {
    let fields = root.object("payload")?;
    let (name, content_type) = (fields.text("packet_name")?, fields.text("content_type")?);
    let mut part = Vec::new();
    encode_payload_part(&mut part, name, content_type, fields.bytes("bytes")?)
        .map_err(|e| broken(root, e))?;
    Ok(part)
}

/// A rule that fields break together: said of the one that is most likely wrong. What one
/// field can break by itself was said when it was read.
fn broken(root: &Fields<'_>, e: WireError) -> Wrong {
    let field = match e.rule {
        Rule::MetadataTooLarge | Rule::MetadataNotAllowed | Rule::FlagNotAllowed => "metadata",
        Rule::HashNotZero => "object_hash",
        Rule::BundleNotAllowed => "bundle",
        Rule::OriginMissing | Rule::OriginNotAllowed => "origin",
        Rule::OriginReplyRoute => {
            return match root.object("origin") {
                Ok(origin) => origin.wrong("reply_route", named(e.rule)),
                Err(wrong) => wrong,
            };
        }
        Rule::CreditEmpty | Rule::CreditSum => {
            return match root.object("control") {
                Ok(control) => control.wrong("entries", named(e.rule)),
                Err(wrong) => wrong,
            };
        }
        Rule::PayloadMissing | Rule::PayloadNotAllowed | Rule::FrameTooLarge => "payload",
        _ => return Wrong::new("", None, named(e.rule)),
    };
    root.wrong(field, named(e.rule))
}
