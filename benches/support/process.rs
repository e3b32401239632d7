#![forbid(unsafe_code)]
//! Child processes: this program run again with a role.
//!
//! A child is told its role as JSON, says what it has to say line by line, and ends when its
//! standard input does: one whose parent dies ends too.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child as Process, ChildStdout, Command, Stdio};

use super::role::Role;

/// The argument before a role.
pub(crate) const ROLE: &str = "--role";

/// A child process. Dropped, it is ended.
pub(crate) struct Child {
    process: Process,
    lines: BufReader<ChildStdout>,
    name: &'static str,
}

impl Child {
    /// Starts a child. With `counts`, under a tracer that writes its system calls there.
    pub(crate) fn start(role: &Role, counts: Option<&Path>) -> Self {
        let this = std::env::current_exe().expect("this program has a path");
        let mut command = match counts {
            None => Command::new(this),
            Some(counts) => {
                let mut command = Command::new("strace");
                command.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(counts).arg(this);
                command
            }
        };
        let text = serde_json::to_string(role).expect("a role is JSON");
        command.args([ROLE, &text]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program runs again");
        let lines = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, lines, name: role.name() }
    }

    /// The next line it says.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a pipe");
        assert!(!line.is_empty(), "the child process ({}) ended without an answer", self.name);
        line.trim_end().to_owned()
    }

    /// Lets it end, and sees that it ended well.
    pub(crate) fn finish(mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait().expect("a child");
        assert!(status.success(), "the child process ({}) failed: {status}", self.name);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has ended already when all went well; then both do nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a child: waits until the parent lets it end.
pub(crate) fn until_input_ends() {
    let mut rest = Vec::new();
    // However the input ends, it has ended.
    let _ = std::io::stdin().read_to_end(&mut rest);
}
