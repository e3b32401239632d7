#![forbid(unsafe_code)]
//! `tools/test` counts right and lets nothing pass that did not, shown with a cargo that is made up.
#![allow(clippy::disallowed_methods)] // reads PATH for the scripts it runs

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs `tools/test` with a `cargo` that prints `results` and ends with `code`: exit code, output.
fn run(results: &str, code: i32, args: &[&str]) -> (i32, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cargo = dir.path().join("cargo");
    let script = format!("#!/bin/sh\ncat <<'END'\n{results}\nEND\nexit {code}\n");
    fs::write(&cargo, script).expect("a file");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("an executable");
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").expect("a PATH"));
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/test");
    let out = Command::new(tool)
        .args(args)
        .env("PATH", path)
        .env_remove("HOMING_TEST_SLOWER")
        .env("TMPDIR", dir.path())
        .output()
        .expect("the tool runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let left: Vec<_> = fs::read_dir(dir.path()).expect("the directory").flatten().collect();
    assert_eq!(left.len(), 1, "left behind: {left:?}");
    (out.status.code().unwrap_or(-1), text + &String::from_utf8_lossy(&out.stderr))
}

fn last(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

const GOOD: &str = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\n\
    test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured";

#[test]
fn passed_tests_are_summed_over_stages() {
    let (code, text) = run(GOOD, 0, &["tests", "doctests", "clippy"]);
    assert_eq!((code, last(&text)), (0, "129 passed, 0 failed"), "{text}");
    assert!(text.contains("Only the stages named ran: tests doctests clippy."), "{text}");
}

#[test]
fn failed_tests_are_counted_and_told() {
    let results = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured";
    let (code, text) = run(results, 101, &["tests"]);
    assert_eq!((code, last(&text)), (1, "3 passed, 2 failed"), "{text}");
    assert!(text.contains("tests: repeat with `./tools/test tests`, or `cargo test "), "{text}");
}

#[test]
fn a_stage_that_fails_without_a_failed_test_counts_as_one() {
    for stage in ["fmt", "clippy", "features", "tests", "doctests", "docs"] {
        let (code, text) = run("error: broken", 101, &[stage]);
        assert_eq!((code, last(&text)), (1, "0 passed, 1 failed"), "{text}");
        assert!(text.contains(&format!("{stage}: repeat with `./tools/test {stage}`")), "{text}");
    }
}

#[test]
fn later_stages_run_after_a_failed_one() {
    let (code, text) = run(GOOD, 1, &["fmt", "tests"]);
    assert_eq!((code, last(&text)), (1, "86 passed, 2 failed"), "{text}");
}

#[test]
fn no_tests_and_ignored_tests_do_not_pass() {
    let (code, text) = run("nothing here", 0, &["tests"]);
    assert_eq!((code, last(&text)), (1, "0 passed, 1 failed"), "{text}");
    let results = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured";
    let (code, text) = run(results, 0, &["doctests"]);
    assert_eq!((code, last(&text)), (1, "3 passed, 1 failed"), "{text}");
    assert!(text.contains("1 tests are switched off"), "{text}");
}

#[test]
fn wrong_use_is_told() {
    let (code, text) = run(GOOD, 0, &["no-such-stage"]);
    assert!(code == 2 && text.contains("no stage or option no-such-stage"), "{text}");
}

/// What CI may take as a whole: 25 minutes.
#[test]
fn the_budgets_add_up_to_what_ci_allows() {
    let (code, text) = run(GOOD, 0, &["--help"]);
    assert_eq!(code, 0, "{text}");
    let stages = text.split_once("Stages:\n").expect("a list of stages").1;
    let stages = stages.split_once("\n\nOnly with --deep:\n").expect("the deep ones apart").0;
    let budgets: Vec<u32> = stages
        .lines()
        .map(|line| line.split_whitespace().nth(1).and_then(|b| b.parse().ok()).expect("a budget"))
        .collect();
    assert!(budgets.len() >= 10, "{stages}");
    assert!(budgets.iter().sum::<u32>() <= 25 * 60, "{budgets:?}");
}
