#![forbid(unsafe_code)]
//! A test's other process: this very program again, for one test alone, with a word in its
//! environment that says which part it plays.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const PART: &str = "HOMING_SHM_TEST_PART";

/// The part this process plays; `None` in the process that runs the test.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// The name of the test that runs on this thread.
fn this_test() -> String {
    std::thread::current().name().expect("tests run on threads named after them").to_string()
}

/// The arguments that make this program run this test alone.
pub(crate) fn arguments() -> [String; 5] {
    let one = ["--exact", &this_test(), "--nocapture", "--test-threads", "1"];
    one.map(str::to_owned)
}

/// This program, set to play `part` in this test.
pub(crate) fn command(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments()).env(PART, part);
    command
}

/// Another process playing a part. Killed at the end, if it runs still.
pub(crate) struct Other {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Other {
    pub(crate) fn start(part: &str) -> Self {
        let mut child = command(part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        Self { child, stdin }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until it says `word` with [`say`].
    pub(crate) fn wait_for(&mut self, word: &str) {
        let wanted = format!("part says {word}");
        let out = self.child.stdout.as_mut().unwrap();
        let mut lines = BufReader::with_capacity(1, out).lines();
        let heard = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(&wanted)));
        assert!(heard.is_some(), "the other part ended without saying {word}");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It may have ended already; either way nothing of it stays.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says a word to the process that runs the test.
pub(crate) fn say(word: &str) {
    println!("part says {word}");
    std::io::stdout().flush().unwrap();
}

/// Waits until the process that runs the test lets go.
pub(crate) fn wait_for_end() {
    let mut end = Vec::new();
    std::io::stdin().read_to_end(&mut end).unwrap();
}

/// Dies at once, as by `kill -9`.
pub(crate) fn die() -> ! {
    kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    unreachable!("SIGKILL ends this process")
}
