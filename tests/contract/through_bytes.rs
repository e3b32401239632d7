#![forbid(unsafe_code)]
//! The tests of messages once more, with every message of a node encoded and decoded.

use std::process::Command;

use super::command::THROUGH_BYTES;

/// The modules whose tests send messages.
const MODULES: &[&str] = &["r1::", "r2_1::", "r2_4::", "r2_5::", "r2_6::", "r4::", "r5::"];

/// What a handler and a caller see does not depend on whether a message was moved as a value or
/// encoded.
///
/// Proves R2.1-5.
#[test]
fn message_tests_pass_with_every_message_through_bytes() {
    if std::env::var_os(THROUGH_BYTES).is_some() {
        return; // This is the run below.
    }
    let program = std::env::current_exe().expect("this program");
    let ran = Command::new(program)
        .args(MODULES)
        .args(["--test-threads", "2"])
        .env(THROUGH_BYTES, "1")
        .output()
        .expect("this program runs");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success(),
        "{}\n{text}\n{}",
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
    for module in MODULES {
        let passed = text.lines().filter(|l| l.contains(module) && l.ends_with("ok")).count();
        assert!(passed > 0, "no test of {module} ran:\n{text}");
    }
}
