#![forbid(unsafe_code)]
//! `tools/contract` finds what it should and is not fooled, shown on planted trees.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const REGISTER: &str = "# Register\n\n| id | clause | proved since |\n|---|---|---|\n\
    | R1-1 | First. | 0.1.0 |\n| R2.2-8 | Second. | |\n| R2.2b-1 | Third. | |\n| R5-4b | Fourth. | |\n";

/// A tree with the register and these files. `%` stands for the word the tool looks for, so that
/// this file does not hold it.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let register = ("docs/contract.md", REGISTER);
    for (path, text) in files.iter().chain([&register]) {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, text.replace('%', "Proves")).expect("a file");
    }
    dir
}

/// Runs the tool on `dir`: exit code and what it printed.
fn run(dir: &Path, args: &[&str]) -> (i32, String) {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/contract");
    let out = Command::new(tool).arg("--root").arg(dir).args(args).output().expect("the tool runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    (out.status.code().unwrap_or(-1), text + &String::from_utf8_lossy(&out.stderr))
}

const GOOD: &[(&str, &str)] = &[
    ("src/a.rs", "    /// %  R1-1, R2.2-8. More words.\n    #[test]\n    fn first() {}\n"),
    (
        "tests/b/main.rs",
        "/// What.\n/// % R2.2b-1,\n/// R5-4b.\n#[tokio::test(\n  x\n)]\nasync fn second() {}\n",
    ),
];

#[test]
fn clauses_without_a_test_are_printed() {
    let (code, text) = run(tree(&[]).path(), &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("R1-1  First.\nR2.2-8  Second.\nR2.2b-1  Third."), "{text}");
    assert!(text.contains("0 of 4 clauses have a test"), "{text}");
    let (code, text) = run(tree(GOOD).path(), &[]);
    assert_eq!((code, text.as_str()), (0, "4 of 4 clauses have a test\n"));
}

#[test]
fn the_list_names_the_tests() {
    let (code, text) = run(tree(GOOD).path(), &["--list"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("R1-1  First.\n    src/a.rs:1 first\n"), "{text}");
    assert!(text.contains("R5-4b  Fourth.\n    tests/b/main.rs:2 second\n"), "{text}");
}

#[test]
fn required_clauses_decide_the_exit_code() {
    let good = tree(GOOD);
    let bare = tree(&[]);
    let list = good.path().join("ids");
    fs::write(&list, "# what we need\nR1-1, R2.2-8\nR5-4b # the flush\n").expect("a file");
    let list = list.to_str().expect("a plain path");
    for args in [["--require", "R1-1,R2.2b-1"].as_slice(), &["--check", list], &["--claimed"]] {
        let (code, text) = run(good.path(), args);
        assert_eq!(code, 0, "{args:?}: {text}");
        let (code, text) = run(bare.path(), args);
        assert!(code == 1 && text.contains("no test: R1-1"), "{args:?}: {text}");
    }
    let (code, text) = run(good.path(), &["--require", "R9-9"]);
    assert!(code == 1 && text.contains("not a clause: R9-9"), "{text}");
    let (code, text) = run(good.path(), &["--require", ","]);
    assert!(code == 1 && text.contains("no clause was asked for"), "{text}");
}

#[test]
fn comments_that_prove_nothing_are_errors() {
    for (path, text, says) in [
        ("src/a.rs", "/// % R7-7.\n#[test]\nfn f() {}\n", "names R7-7"),
        ("src/a.rs", "/// % R1-1.\nfn f() {}\n", "which is no test"),
        ("src/a.rs", "/// % R1-1.\nstruct X;\n", "stands on no function"),
        ("src/a.rs", "/// % R1-1.\n", "stands on no function"),
        ("src/a.rs", "/// % R1-1\n#[test]\nfn f() {}\n", "no full stop"),
        ("src/a.rs", "/// % R1-1 and more.\n#[test]\nfn f() {}\n", "no list of clause ids"),
        ("src/a.rs", "/// It % R1-1.\n#[test]\nfn f() {}\n", "begin a doc line"),
        ("src/a.rs", "// % R1-1.\n#[test]\nfn f() {}\n", "begin a doc line"),
        ("src/a.rs", "//! % R1-1.\n", "begin a doc line"),
        ("src/a.rs", "#[cfg(test)]\nmod t {\n/// % R1-1.\nfn f() {}\n}\n", "which is no test"),
    ] {
        let (code, out) = run(tree(&[(path, text)]).path(), &[]);
        assert!(code == 1 && out.contains(says), "{text}: {out}");
        assert!(out.contains("src/a.rs:"), "{text}: {out}");
        assert!(out.contains("0 of 4"), "{text}: {out}");
    }
}

#[test]
fn suites_that_others_run_count_without_the_attribute() {
    let suite = "/// % R1-1.\npub fn reads(store: &dyn S) {}\n";
    let (code, text) = run(tree(&[("src/store/conformance.rs", suite)]).path(), &["--claimed"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn wrong_use_is_told() {
    let dir = tree(&[]);
    for args in [["--nope"].as_slice(), &["--require"], &["--check", "no-such-file"]] {
        let (code, text) = run(dir.path(), args);
        assert!(code == 2 && text.contains("Usage:"), "{args:?}: {text}");
    }
    let (code, text) = run(Path::new("no-such-tree"), &[]);
    assert!(code == 2 && text.contains("no no-such-tree/docs/contract.md"), "{text}");
}
