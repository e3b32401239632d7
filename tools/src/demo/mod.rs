#![forbid(unsafe_code)]
//! `homing demo`: node processes on this machine, a load from every node to every node, and a
//! verdict on what became of each message.
//!
//! The program starts itself again once per node (`demo-node`, hidden) and talks to these
//! processes over pipes. Messages are numbered per sender and Actor. When the load is over, a
//! fresh process asks every Actor what it handled and compares with the senders' logs.

mod actor;
mod args;
mod cluster;
mod driver;
mod figures;
mod ledger;
mod node;
mod progress;
mod run;
mod summary;
mod talk;
mod window;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) use args::Args;
pub(crate) use node::run as run_node;

use cluster::Event;
use run::{Run, Stop};
use summary::{Colours, Outcome};

/// Exit code of a verdict that is not good.
const NOT_GOOD: u8 = 1;
/// Exit code of a demo that could not be carried out.
const NOT_RUN: u8 = 2;

/// Runs the demo. Whatever its end is, no process, socket or file of it is left.
pub(crate) fn run(args: &Args) -> ExitCode {
    let outcome = match run_in_directory(args) {
        Ok(summary) => Outcome::Ended(Box::new(summary)),
        Err(Stop::Failed(why)) => Outcome::Failed(why),
        Err(Stop::Signal(signal)) => Outcome::Signal(signal),
    };
    let code = tell(args, &outcome);
    ExitCode::from(code)
}

fn run_in_directory(args: &Args) -> Result<summary::Summary, Stop> {
    let (to_events, events) = mpsc::channel();
    // Before there is anything that would have to be cleaned up.
    pass_signals_on(to_events.clone())
        .map_err(|e| Stop::Failed(format!("signals cannot be received: {e}")))?;
    let dir = tempfile::Builder::new()
        .prefix("homing-demo-")
        .tempdir()
        .map_err(|e| Stop::Failed(format!("no temporary directory (TMPDIR names where): {e}")))?;
    let mut run = Run::new(args, dir.path(), events, to_events);
    let outcome = run.carry_out();
    // The processes end before their files go.
    drop(run);
    let path = dir.path().display().to_string();
    match (outcome, dir.close()) {
        (Ok(_), Err(e)) => {
            Err(Stop::Failed(format!("the directory {path} cannot be removed: {e}")))
        }
        (outcome, _) => outcome,
    }
}

fn pass_signals_on(to: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            // Nobody listens when the demo is ending anyway.
            let _ = to.send(Event::Signal(signal));
        }
    })?;
    Ok(())
}

/// Prints the outcome; gives the exit code. Nobody may be reading: that changes no exit code.
fn tell(args: &Args, outcome: &Outcome) -> u8 {
    let mut out = io::stdout().lock();
    let colours = Colours(out.is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let code = match outcome {
        Outcome::Ended(summary) => {
            let _ = out.write_all(summary.page(args, colours).as_bytes());
            if summary.verdict.reason().is_none() { 0 } else { NOT_GOOD }
        }
        Outcome::Failed(why) => {
            let _ = writeln!(io::stderr(), "homing demo: {why}");
            NOT_RUN
        }
        Outcome::Signal(signal) => {
            let _ = writeln!(io::stderr(), "homing demo: ended by signal {signal}");
            128 + u8::try_from(*signal).unwrap_or(0)
        }
    };
    if args.json {
        let _ = writeln!(out, "{}", summary::json_line(args, outcome));
    }
    let _ = out.flush();
    code
}
