#![forbid(unsafe_code)]
//! A whole link frame: refused, or accepted with one encoding. The checksum is made to fit, so that
//! mutations get behind it.
#![no_main]

use homing::wire::{Frame, FrameHeader};
use libfuzzer_sys::fuzz_target;

const MAX_FRAME_BYTES: u32 = 1 << 20;

fn check(bytes: &[u8]) {
    let header = FrameHeader::decode(bytes, MAX_FRAME_BYTES);
    let Ok(frame) = Frame::decode(bytes, MAX_FRAME_BYTES) else { return };
    let header = header.expect("a good frame has a good header");
    assert_eq!(header.frame_len as usize, bytes.len());
    let _ = frame.check_object_hash(7);
    let mut again = Vec::new();
    frame.parts().encode(&mut again, MAX_FRAME_BYTES).expect("what was accepted encodes");
    assert_eq!(again, bytes, "one encoding");
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    if bytes.len() < 40 {
        return;
    }
    let mut fitted = bytes.to_vec();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    fitted[..4].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c(&fitted[..36]);
    fitted[36..40].copy_from_slice(&crc.to_be_bytes());
    check(&fitted);
});

/// CRC-32C, bit by bit: nothing is shared with what is tested.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 }
        })
    })
}
