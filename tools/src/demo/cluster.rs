#![forbid(unsafe_code)]
//! The node processes as the demo sees them: started, told, listened to, and never left behind.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::talk::{Order, Report, hear, say};

/// Lines of a process's standard error that are kept to explain its end.
const KEPT_LINES: usize = 20;
/// How long a process that has said its last word may take to end.
const END_TIME: Duration = Duration::from_secs(5);

/// What the demo waits for.
pub(crate) enum Event {
    /// A process said something.
    Report(usize, Report),
    /// A process closed its output, or said what is no report.
    Gone(usize, Option<String>),
    /// A signal came.
    Signal(i32),
}

/// One node process.
pub(crate) struct NodeProcess {
    pub(crate) name: String,
    child: Child,
    orders: Option<ChildStdin>,
    last_lines: Arc<Mutex<VecDeque<String>>>,
    errors: Option<JoinHandle<()>>,
    /// When it said something last, or was told something.
    pub(crate) heard: Instant,
    /// It was told to end.
    pub(crate) is_stopping: bool,
}

impl NodeProcess {
    /// Starts the process: this program again. It gets a process group of its own, so that Ctrl-C
    /// on a terminal reaches the demo alone, which ends its processes itself.
    pub(crate) fn start(at: usize, name: &str, events: &Sender<Event>) -> Result<Self, String> {
        // This very program, also when its file was replaced meanwhile.
        let mut child = Command::new("/proc/self/exe")
            .arg0("homing")
            .arg("demo-node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| format!("the process of {name} does not start: {e}"))?;
        let last_lines: Arc<Mutex<VecDeque<String>>> = Arc::default();
        let errors = child.stderr.take().map(|from| {
            let kept = last_lines.clone();
            thread::spawn(move || keep_lines(BufReader::new(from), &kept))
        });
        if let Some(from) = child.stdout.take() {
            let events = events.clone();
            thread::spawn(move || pass_on(at, BufReader::new(from), &events));
        }
        let orders = child.stdin.take();
        Ok(Self {
            name: name.to_owned(),
            child,
            orders,
            last_lines,
            errors,
            heard: Instant::now(),
            is_stopping: false,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order. That the process is gone is told by its [`Event::Gone`].
    pub(crate) fn order(&mut self, order: &Order) {
        self.heard = Instant::now();
        if let Some(orders) = &mut self.orders {
            let _ = say(orders, order);
        }
    }

    /// Why a process that ended by itself did.
    pub(crate) fn end(&mut self, said: Option<&str>) -> String {
        let status = self.wait(END_TIME);
        let mut text = match (said, status) {
            (Some(why), _) => format!("{}: {why}", self.name),
            (None, Some(status)) => {
                format!("{} (process {}) {}", self.name, self.pid(), how(status))
            }
            (None, None) => format!("{} closed its output and does not end", self.name),
        };
        self.kill();
        let lines = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none() && !lines.is_empty() {
            text.push_str("; its last lines:");
            lines.iter().for_each(|line| text.push_str(&format!("\n    {line}")));
        }
        text
    }

    /// The exit status, when the process ends in time.
    fn wait(&mut self, time: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + time;
        let mut pause = Duration::from_millis(1);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => thread::sleep(pause),
                _ => return None,
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Waits for the end of a process that was told to stop.
    pub(crate) fn ended_well(&mut self) -> Result<(), String> {
        self.orders = None;
        match self.wait(END_TIME) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{} stopped, but {}", self.name, how(status))),
            None => Err(format!("{} stopped, but its process does not end", self.name)),
        }
    }

    fn kill(&mut self) {
        self.orders = None;
        // Fails only when the process has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(errors) = self.errors.take() {
            let _ = errors.join();
        }
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a process ended, as the end of a sentence.
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => format!("ended: {status}"),
    }
}

fn keep_lines(from: impl BufRead, kept: &Mutex<VecDeque<String>>) {
    for line in from.split(b'\n').map_while(Result::ok) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_LINES {
            kept.pop_front();
        }
        kept.push_back(String::from_utf8_lossy(&line).into_owned());
    }
}

fn pass_on(at: usize, mut from: impl BufRead, events: &Sender<Event>) {
    let end = loop {
        match hear(&mut from) {
            Ok(Some(report)) => {
                if events.send(Event::Report(at, report)).is_err() {
                    return;
                }
            }
            Ok(None) => break None,
            Err(e) => break Some(format!("it said what is no report: {e}")),
        }
    };
    // The demo may have ended.
    let _ = events.send(Event::Gone(at, end));
}
