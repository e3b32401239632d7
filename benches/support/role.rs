#![forbid(unsafe_code)]
//! What a child process does, and the segments that are made of two of them.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bare::{self, BareWork};
use super::node_work::{self, LocalWork, RemoteWork};
use super::process::{Child, ROLE, until_input_ends};
use super::samples::Outcome;

/// What a child process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    Local(LocalWork),
    ServeNode(RemoteWork),
    CallNode(RemoteWork),
    ServeBare(BareWork),
    CallBare(BareWork, String),
}

impl Role {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Local(_) => "one node",
            Self::ServeNode(_) => "the node with the target",
            Self::CallNode(_) => "the node with the caller",
            Self::ServeBare(_) => "the bare answering side",
            Self::CallBare(..) => "the bare calling side",
        }
    }

    fn play(&self) {
        match self {
            Self::Local(work) => say_outcome(&node_work::local(work)),
            Self::ServeNode(work) => {
                node_work::serve(work, || println!("ready"), until_input_ends);
            }
            Self::CallNode(work) => say_outcome(&node_work::call(work)),
            Self::ServeBare(work) => bare::serve(work, |address| println!("{address}")),
            Self::CallBare(work, address) => say_outcome(&bare::call(work, address)),
        }
    }
}

fn say_outcome(outcome: &Outcome) {
    println!("{}", serde_json::to_string(outcome).expect("an outcome is JSON"));
}

/// In a child process: plays its role. Whether this is one.
pub(crate) fn played() -> bool {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() != Some(ROLE) {
        return false;
    }
    let text = words.next().unwrap_or_default();
    let role: Role = serde_json::from_str(&text).expect("a role as this program writes it");
    role.play();
    true
}

fn outcome_of(mut child: Child) -> Outcome {
    let outcome = serde_json::from_str(&child.line()).expect("an outcome");
    child.finish();
    outcome
}

/// One segment between two fresh node processes. The files take what a tracer counts in them.
pub(crate) fn remote(work: &RemoteWork, counts: Option<(&Path, &Path)>) -> Outcome {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let work = RemoteWork { dir: dir.path().to_owned(), ..work.clone() };
    let (caller, server) = counts.unzip();
    let mut server = Child::start(&Role::ServeNode(work.clone()), server);
    assert_eq!(server.line(), "ready");
    let outcome = outcome_of(Child::start(&Role::CallNode(work), caller));
    server.finish();
    outcome
}

/// One segment between two fresh bare processes.
pub(crate) fn bare_pair(work: &BareWork) -> Outcome {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let work = BareWork { dir: dir.path().to_owned(), ..work.clone() };
    let mut server = Child::start(&Role::ServeBare(work.clone()), None);
    let address = server.line();
    let outcome = outcome_of(Child::start(&Role::CallBare(work, address), None));
    server.finish();
    outcome
}

/// One segment of one node in a child process, traced.
pub(crate) fn local_traced(work: &LocalWork, counts: &Path) -> Outcome {
    outcome_of(Child::start(&Role::Local(work.clone()), Some(counts)))
}
