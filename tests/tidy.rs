#![forbid(unsafe_code)]
//! Rules of the source tree that the compiler does not hold: who uses whom, what every file
//! begins with, which comments stand beside `unsafe` and atomics, what is never left behind.
//!
//! Each rule is a test; its message names file, line and what to do. The checkers themselves are
//! tested with planted text beside each of them.
#![allow(clippy::disallowed_methods)] // reads where Cargo says the tree is

#[path = "tidy/lex.rs"]
mod lex;
#[path = "tidy/manifest.rs"]
mod manifest;
#[path = "tidy/ranks.rs"]
mod ranks;
#[path = "tidy/rules.rs"]
mod rules;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use lex::Source;

/// One thing that is against a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    text: String,
}

impl Finding {
    fn new(path: &str, line: usize, text: String) -> Self {
        Self { path: path.to_owned(), line, text }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// Names of directories that hold nothing of ours.
const NOT_OURS: &[&str] = &["target", ".git"];

/// Directories of Rust code that the rules hold for.
const CODE: &[&str] = &["src/", "tools/", "tests/", "benches/", "examples/"];

fn root() -> PathBuf {
    // Cargo sets it for the running test too; a tree that was moved is then still found.
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), Into::into)
}

/// All text files of the tree: path from the root, text.
fn texts() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    found.sort();
    assert!(found.iter().any(|(p, _)| p == "src/lib.rs"), "no src/lib.rs under {}", root.display());
    found
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<(String, String)>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("reading {}: {e}", dir.display()));
    for entry in entries {
        let entry = entry.unwrap_or_else(|e| panic!("reading {}: {e}", dir.display()));
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        if kind.is_dir() && !NOT_OURS.contains(&name.as_str()) {
            walk(root, &path, found);
        } else if kind.is_file() && !NOT_OURS.contains(&name.as_str()) {
            // What is not UTF-8 is no text (recorded bytes for a test).
            if let Ok(text) = fs::read_to_string(&path) {
                let inner = path.strip_prefix(root).unwrap_or(&path);
                found.push((inner.to_string_lossy().into_owned(), text));
            }
        }
    }
}

/// The Rust files the rules hold for.
fn sources() -> Vec<Source> {
    texts()
        .iter()
        .filter(|(path, _)| path.ends_with(".rs") && CODE.iter().any(|dir| path.starts_with(dir)))
        .map(|(path, text)| Source::new(path, text))
        .collect()
}

fn none_of(rule: &str, findings: Vec<Finding>) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{rule}:\n  {}", lines.join("\n  "));
}

#[test]
fn modules_use_lower_ranks_only() {
    none_of("A module uses lower ranks only (tests/tidy/ranks.rs)", ranks::check(&sources()));
}

#[test]
fn every_file_begins_with_what_it_may_do() {
    none_of(
        "Every file forbids unsafe code, except those that need it and the modules above them",
        rules::unsafe_heads(&sources()),
    );
}

#[test]
fn every_unsafe_says_why_it_is_sound() {
    let findings = sources().iter().flat_map(rules::safety_comments).collect();
    none_of("Every `unsafe` has a SAFETY comment", findings);
}

#[test]
fn every_ordering_names_its_partner() {
    let findings = sources().iter().flat_map(rules::sync_comments).collect();
    none_of("Every ordering above Relaxed has a SYNC comment", findings);
}

#[test]
fn nothing_is_left_for_later() {
    let findings = sources().iter().flat_map(rules::left_overs).collect();
    none_of("No unfinished code, no test switched off", findings);
}

#[test]
fn files_stay_short() {
    let findings = texts()
        .iter()
        .filter(|(path, _)| path.ends_with(".rs") || path.starts_with("tools/"))
        .flat_map(|(path, text)| rules::length(path, text))
        .collect();
    none_of("Files stay short", findings);
}

#[test]
fn tests_do_not_sleep() {
    let findings = sources().iter().flat_map(rules::sleeps).collect();
    none_of("Tests do not sleep", findings);
}

#[test]
fn nothing_names_one_machine() {
    let findings = texts()
        .iter()
        .filter(|(path, _)| path != "Cargo.lock")
        .flat_map(|(path, text)| rules::machine_paths(path, text))
        .collect();
    none_of("Nothing names a place of one machine", findings);
}

#[test]
fn every_dependency_has_its_reason() {
    let findings = texts()
        .iter()
        .filter(|(path, _)| path == "Cargo.toml" || path.ends_with("/Cargo.toml"))
        .flat_map(|(path, text)| manifest::dependencies(path, text))
        .collect();
    none_of("Every dependency is one the design names or says what it is for", findings);
}

#[test]
fn links_lead_somewhere() {
    let texts = texts();
    let all: Vec<&str> = texts.iter().map(|(path, _)| path.as_str()).collect();
    let findings = texts
        .iter()
        .filter(|(path, _)| path.ends_with(".md"))
        .flat_map(|(path, text)| rules::links(path, text, &all))
        .collect();
    none_of("Links of pages lead to files of the tree", findings);
}
