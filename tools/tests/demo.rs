#![forbid(unsafe_code)]
//! `homing demo` as people run it, and as they end it.

#[path = "../../tests/support/eventually.rs"]
mod eventually;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use eventually::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A small load, so that many runs fit into a test.
const SMALL: &[&str] = &["--actors", "60", "--seconds", "1", "--window", "16", "--json"];

fn demo(dir: &Path, args: &[&[&str]]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command
        .arg("demo")
        .args(args.concat())
        .env("TMPDIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A run to its end: exit code, the JSON of the last line, all of its output.
fn run(args: &[&[&str]]) -> (i32, Value, String) {
    let dir = TempDir::new().expect("a temporary directory");
    let output = demo(dir.path(), args).output().expect("the demo runs");
    assert_nothing_left(dir.path());
    let (code, text) = (output.status.code().unwrap_or(-1), text_of(&output));
    let last = String::from_utf8_lossy(&output.stdout).lines().last().map(str::to_owned);
    let json = serde_json::from_str(&last.unwrap_or_default()).unwrap_or(Value::Null);
    (code, json, text)
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[track_caller]
fn assert_nothing_left(dir: &Path) {
    let left: Vec<_> = std::fs::read_dir(dir).expect("the directory").flatten().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

fn sum(matrix: &Value) -> u64 {
    let rows = matrix.as_array().expect("rows").iter();
    rows.flat_map(|row| row.as_array().expect("cells")).filter_map(Value::as_u64).sum()
}

/// Three processes, every node to every node: each message is handled once, in its sender's order.
///
/// Proves R5-4.
#[test]
fn a_healthy_run_passes() {
    for (listen, driver) in [("tcp", "auto"), ("unix", "epoll")] {
        let more: &[&str] =
            &["--listen", listen, "--driver", driver, "--cores", "2", "--senders", "2"];
        let (code, json, text) = run(&[SMALL, more]);
        assert_eq!(code, 0, "{text}");
        assert_eq!((&json["verdict"], &json["reason"]), (&"passed".into(), &Value::Null), "{text}");
        assert_eq!(json["errors"], serde_json::json!({}), "{text}");
        assert_eq!(json["actors_asked"], 60, "{text}");
        assert_eq!(json["settings"]["listen"], listen, "{text}");
        assert_eq!(json["settings"]["driver"], driver, "{text}");
        let used = json["driver"].as_str().expect("a name");
        assert!(used == driver || driver == "auto" && ["uring", "epoll"].contains(&used), "{text}");
        assert!(text.contains(&format!("frames sent with {used};")), "{text}");
        // Six senders told each of 60 Actors two things in the end, and more before.
        let sent = json["sent"].as_u64().expect("a number");
        assert!(sent > 6 * 60 * 2, "{text}");
        assert_eq!(json["handled"], sent, "{text}");
        assert_eq!(sum(&json["handled_from_node_to_node"]), sent, "{text}");
        let rows = json["handled_from_node_to_node"].as_array().expect("rows");
        let each = rows.iter().flat_map(|row| row.as_array().expect("cells"));
        assert_eq!(each.filter(|n| n.as_u64() > Some(0)).count(), 9, "{text}");
        assert!(text.contains("PASSED"), "{text}");
    }
}

#[test]
fn each_sabotage_fails_the_verdict_with_its_reason() {
    for (sabotage, reason, sentence) in [
        ("lose", "1 lost", "sender 0 to actor 30: number 1 was "),
        ("double", "1 doubled", "sender 0 to actor 30: number 1 was handled again"),
        ("swap", "1 swapped", "sender 0 to actor 30: number 1 was handled behind 2"),
    ] {
        let (code, json, text) = run(&[SMALL, &["--sabotage", sabotage]]);
        assert_eq!(code, 1, "{text}");
        assert_eq!(
            (&json["verdict"], &json["reason"]),
            (&"failed".into(), &reason.into()),
            "{text}"
        );
        let example = json["defect_examples"][0].as_str().expect("an example");
        assert!(example.starts_with(sentence), "{text}");
        assert!(text.contains(&format!("FAILED  {reason}\n")), "{text}");
    }
}

/// A demo that is on its way.
struct Running {
    dir: Arc<TempDir>,
    child: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
}

impl Running {
    /// Starts a load that is far longer than a test.
    fn start(args: &[&str]) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let long: &[&str] = &["--seconds", "3600", "--listen", "unix"];
        let mut child = demo(dir.path(), &[long, args]).spawn().expect("the demo starts");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let (to_lines, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if to_lines.send(line).is_err() {
                    return;
                }
            }
        });
        Self { dir: Arc::new(dir), child, lines, heard: Vec::new() }
    }

    /// Reads on until a line begins with this.
    fn until(&mut self, text: &str) {
        while let Ok(line) = self.lines.recv() {
            let found = line.starts_with(text);
            self.heard.push(line);
            if found {
                return;
            }
        }
        panic!("no line begins with {text:?}: {:#?}", self.heard);
    }

    /// The processes of the nodes, from the lines that name them.
    fn nodes(&self) -> Vec<Pid> {
        let pid = |line: &String| {
            let rest = line.strip_prefix("  node-")?.split_once("process ")?.1;
            Pid::from_raw(rest.split_whitespace().next()?.parse().ok()?)
        };
        self.heard.iter().filter_map(pid).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the end: exit code, all lines of standard error.
    fn end(mut self) -> (Option<i32>, String, Arc<TempDir>) {
        let status =
            eventually("the end of the demo", || self.child.try_wait().expect("it is a child"));
        self.heard.extend(self.lines.iter());
        (status.code(), self.heard.join("\n"), self.dir.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a process is gone (a zombie is: its parent may be gone itself).
fn assert_gone(pid: Pid) {
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    eventually("the end of a node's process", || {
        let text = std::fs::read_to_string(&stat).unwrap_or_default();
        let state = text.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
        matches!(state, None | Some(Some('Z' | 'X'))).then_some(())
    });
}

#[test]
fn a_signal_ends_it_and_leaves_nothing_behind() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut running = Running::start(&["--actors", "60"]);
        running.until("sending and requesting");
        let nodes = running.nodes();
        assert_eq!(nodes.len(), 3, "{:#?}", running.heard);
        let inner = std::fs::read_dir(running.dir.path()).expect("the directory").next();
        let inner = inner.expect("the demo's directory").expect("an entry").path();
        assert!(inner.join("node-0.sock").exists() && inner.join("store").exists());
        kill_process(running.pid(), signal).expect("it is there");
        let (ended, text, dir) = running.end();
        assert_eq!(ended, Some(code), "{text}");
        // It waited for its processes: they are gone already.
        for node in nodes {
            let stat = format!("/proc/{}", node.as_raw_nonzero());
            assert!(!Path::new(&stat).exists(), "a node is left: {text}");
        }
        assert_nothing_left(dir.path());
    }
}

#[test]
fn a_signal_before_the_load_ends_it_too() {
    let mut running = Running::start(&["--actors", "100000"]);
    running.until("creating");
    kill_process(running.pid(), Signal::INT).expect("it is there");
    let (ended, text, dir) = running.end();
    assert_eq!(ended, Some(130), "{text}");
    assert_nothing_left(dir.path());
}

#[test]
fn a_node_that_dies_fails_the_demo_with_its_reason() {
    let mut running = Running::start(&["--actors", "60"]);
    running.until("sending and requesting");
    let nodes = running.nodes();
    kill_process(nodes[1], Signal::KILL).expect("it is there");
    let (ended, text, dir) = running.end();
    assert_eq!(ended, Some(2), "{text}");
    let reason = format!("node-1 (process {}) was killed by signal 9", nodes[1].as_raw_nonzero());
    assert!(text.contains(&reason), "{text}");
    nodes.into_iter().for_each(assert_gone);
    assert_nothing_left(dir.path());
}

#[test]
fn a_node_that_stands_still_fails_the_demo() {
    let mut running = Running::start(&["--actors", "60", "--patience", "5"]);
    running.until("sending and requesting");
    let nodes = running.nodes();
    kill_process(nodes[2], Signal::STOP).expect("it is there");
    let (ended, text, dir) = running.end();
    assert_eq!(ended, Some(2), "{text}");
    let reason = format!("node-2 (process {}) has said nothing for 5 s", nodes[2].as_raw_nonzero());
    assert!(text.contains(&reason), "{text}");
    nodes.into_iter().for_each(assert_gone);
    assert_nothing_left(dir.path());
}

#[test]
fn nodes_end_by_themselves_when_the_demo_is_killed() {
    let mut running = Running::start(&["--actors", "60"]);
    running.until("sending and requesting");
    let nodes = running.nodes();
    kill_process(running.pid(), Signal::KILL).expect("it is there");
    nodes.into_iter().for_each(assert_gone);
}

#[test]
fn bad_settings_are_named_before_anything_starts() {
    for (setting, value, rule) in [
        ("--nodes", "0", "1..=64"),
        ("--actors", "many", "invalid digit"),
        ("--seconds", "3601", "1..=3600"),
        ("--payload", "1048577", "0..=1048576"),
        ("--cores", "257", "1..=256"),
        ("--listen", "pigeon", "[possible values: tcp, unix]"),
    ] {
        let (code, _, text) = run(&[&[setting, value]]);
        assert_eq!(code, 2, "{text}");
        assert!(
            text.contains(setting) && text.contains(value) && text.contains(rule),
            "{setting} {value}: {text}"
        );
    }
}

#[test]
fn a_place_that_cannot_be_used_is_told() {
    let dir = TempDir::new().expect("a temporary directory");
    let missing = dir.path().join("missing");
    let output = demo(&missing, &[SMALL]).output().expect("the demo runs");
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("TMPDIR") && text.contains("missing"), "{text}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(json["verdict"], "none");

    // A path that is too long for a Unix socket: a node does not start, and says why.
    let deep = dir.path().join("a".repeat(120));
    std::fs::create_dir(&deep).expect("a directory");
    let output = demo(&deep, &[SMALL, &["--listen", "unix"]]).output().expect("the demo runs");
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("node-") && text.contains("the node does not start"), "{text}");
    assert_nothing_left(&deep);
}

#[test]
fn the_help_shows_examples_and_hides_what_is_for_tests() {
    let (code, _, text) = run(&[&["--help"]]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("Examples:") && text.contains("--listen unix"), "{text}");
    assert!(!text.contains("sabotage") && !text.contains("patience"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}
