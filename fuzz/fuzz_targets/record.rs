#![forbid(unsafe_code)]
//! A record, a link control record, a metadata part, a payload part: refused, or accepted with one
//! encoding.
#![no_main]

use homing::wire::{
    Control, MetadataPart, PayloadPart, Record, encode_metadata_part, encode_payload_part,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    if let Ok(decoded) = Record::decode(bytes) {
        decoded.record.encode(decoded.has_metadata, &mut again).expect("what was accepted encodes");
        assert_eq!(again, bytes, "one encoding");
        if let Record::Reply(reply) = decoded.record {
            let _ = (reply.no_tail(), reply.bind_tail(), reply.create_tail());
        }
    }
    if let Ok(control) = Control::decode(bytes) {
        again.clear();
        control.encode(&mut again).expect("what was accepted encodes");
        assert_eq!(again, bytes, "one encoding");
    }
    if let Ok(part) = MetadataPart::decode(bytes) {
        again.clear();
        let entries: Vec<_> = part.entries().collect();
        assert_eq!(entries.len(), part.len());
        encode_metadata_part(&mut again, &entries).expect("what was accepted encodes");
        assert_eq!(again, bytes, "one encoding");
    }
    if let Ok(part) = PayloadPart::decode(bytes) {
        again.clear();
        encode_payload_part(&mut again, part.packet_name, part.content_type, part.bytes)
            .expect("what was accepted encodes");
        assert_eq!(again, bytes, "one encoding");
    }
});
