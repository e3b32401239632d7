#![forbid(unsafe_code)]
//! Failpoints of a real node (feature `failpoints`): a test arms a step, and the process stops,
//! ends or waits there.
//!
//! ```
//! use homing::env::Failpoint;
//! homing::failpoints::arm("turn-done@3=wait, commit-sent=wait")?;
//! homing::failpoints::disarm();
//! assert_eq!(homing::failpoints::hits(Failpoint::TurnDone), 0);
//! let e = homing::failpoints::arm("turn-over=stop").unwrap_err();
//! assert!(e.text().contains("turn-over"));
//! # Ok::<(), homing::Error>(())
//! ```

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::env::Failpoint;
use crate::error::Error;

/// The variable that a node reads when it starts: what [`arm`] takes.
pub const VARIABLE: &str = "HOMING_FAILPOINTS";

/// What happens at an armed point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The process stops itself with SIGSTOP; SIGCONT lets it go on.
    Stop,
    /// The process ends at once, as by a crash.
    Abort,
    /// The thread waits until [`release`].
    Wait,
}

struct Armed {
    point: Failpoint,
    /// Arrivals until it acts, this one included.
    left: u64,
    action: Action,
}

#[derive(Default)]
struct State {
    armed: Vec<Armed>,
    waiting: Vec<Failpoint>,
}

static STATE: Mutex<State> = Mutex::new(State { armed: Vec::new(), waiting: Vec::new() });
static RELEASED: Condvar = Condvar::new();
/// How many points are armed, so that a node with none pays a load.
static ARMED: AtomicUsize = AtomicUsize::new(0);
static HITS: [AtomicU64; Failpoint::ALL.len()] = [const { AtomicU64::new(0) }; _];

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arms points: `name[@n]=action`, separated by commas. The action is taken once, at the `n`-th
/// arrival from now (the first when left out): `stop` (SIGSTOP to the own process), `abort`, or
/// `wait` (until [`release`]).
///
/// # Errors
/// `NotConfigured` names what is not understood; nothing is armed then.
pub fn arm(text: &str) -> Result<(), Error> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let armed = parts.map(parse).collect::<Result<Vec<_>, _>>()?;
    let mut state = state();
    state.armed.extend(armed);
    ARMED.store(state.armed.len(), Ordering::Relaxed);
    Ok(())
}

/// Arms what the variable [`VARIABLE`] says.
///
/// # Errors
/// As [`arm`].
pub(super) fn arm_from_environment() -> Result<(), Error> {
    match std::env::var(VARIABLE) {
        Ok(text) => arm(&text),
        Err(_) => Ok(()),
    }
}

fn parse(part: &str) -> Result<Armed, Error> {
    let wrong = |what: &str| {
        let names: Vec<_> = Failpoint::ALL.iter().map(|point| point.name()).collect();
        Error::not_configured(format!(
            "failpoint {part:?} {what}; write name[@n]=stop, abort or wait, with a name of: {}",
            names.join(" ")
        ))
    };
    let (point, action) = part.split_once('=').ok_or_else(|| wrong("has no ="))?;
    let (name, left) = point.split_once('@').unwrap_or((point, "1"));
    let action = match action {
        "stop" => Action::Stop,
        "abort" => Action::Abort,
        "wait" => Action::Wait,
        _ => return Err(wrong("has no such action")),
    };
    let left = left.parse().ok().filter(|n| *n > 0).ok_or_else(|| wrong("has no such count"))?;
    let point = Failpoint::from_name(name).ok_or_else(|| wrong("has no such name"))?;
    Ok(Armed { point, left, action })
}

/// Disarms every point, and lets go what waits.
pub fn disarm() {
    let mut state = state();
    state.armed.clear();
    state.waiting.clear();
    ARMED.store(0, Ordering::Relaxed);
    RELEASED.notify_all();
}

/// Lets a thread that waits at the point go on.
pub fn release(point: Failpoint) {
    state().waiting.retain(|waiting| *waiting != point);
    RELEASED.notify_all();
}

/// Whether a thread waits at the point.
#[must_use]
pub fn is_waiting(point: Failpoint) -> bool {
    state().waiting.contains(&point)
}

/// How often the point was reached in this process.
#[must_use]
pub fn hits(point: Failpoint) -> u64 {
    HITS[point as usize].load(Ordering::Relaxed)
}

/// A point was reached.
pub(super) fn reached(point: Failpoint) {
    HITS[point as usize].fetch_add(1, Ordering::Relaxed);
    if ARMED.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut state = state();
    let Some(at) = state.armed.iter_mut().position(|armed| {
        armed.left -= u64::from(armed.point == point);
        armed.left == 0
    }) else {
        return;
    };
    let action = state.armed.remove(at).action;
    ARMED.store(state.armed.len(), Ordering::Relaxed);
    match action {
        Action::Stop => {
            drop(state);
            stop();
        }
        Action::Abort => std::process::abort(),
        Action::Wait => {
            state.waiting.push(point);
            let waits = |state: &mut State| state.waiting.contains(&point);
            drop(RELEASED.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Stops the whole process, this thread not a step further.
fn stop() {
    use rustix::process::{Signal, getpid, kill_process};
    // The kernel may hand the signal to another thread. This one goes on only when none holds it
    // any more: then the stop is in force, and takes this thread at its next system call's end.
    let sent = kill_process(getpid(), Signal::STOP);
    while sent.is_ok() && is_pending() {}
}

/// Whether SIGSTOP waits to be taken by a thread of this process.
fn is_pending() -> bool {
    const SIGSTOP_BIT: u64 = 1 << 18;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let mask = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & SIGSTOP_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_named_and_arms_nothing() {
        for bad in ["turn-done", "turn-done=", "turn-done=go", "x=stop", "turn-done@0=stop"] {
            let e = arm(&format!("commit-sent@9999=wait, {bad}")).unwrap_err();
            assert!(
                e.text().contains(&format!("{bad:?}")) && e.text().contains("turn-done"),
                "{e}"
            );
        }
        assert!(state().armed.is_empty());
    }

    #[test]
    fn names_are_unique_and_read_back() {
        for (i, point) in Failpoint::ALL.iter().enumerate() {
            assert_eq!(*point as usize, i);
            assert_eq!(Failpoint::from_name(point.name()), Some(*point));
        }
    }
}
