#![forbid(unsafe_code)]
//! Which states of the protocol machines met which events (feature `protocol-coverage`).
//!
//! A machine declares its states and events by `names!`, whose matches are exhaustive, so that a
//! new variant cannot be forgotten; and tells [`Machine::hit`] of every step. A cell (state, event)
//! that is met for the first time in a process is written as one line to the file that
//! `HOMING_COVERAGE` names, where any number of processes add theirs; without the variable nothing
//! is written. [`table`] makes the table of such lines. A cell that a machine declares impossible
//! fails the process that meets it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::ids::FixedSet;

/// The variable that names the file.
pub const VARIABLE: &str = "HOMING_COVERAGE";

/// What a machine consists of.
#[derive(Debug)]
pub struct Machine {
    /// Its name.
    pub name: &'static str,
    /// Its states.
    pub states: &'static [&'static str],
    /// Its events.
    pub events: &'static [&'static str],
    /// State, event, and why they never meet.
    pub impossible: &'static [(&'static str, &'static str, &'static str)],
}

/// Every machine.
pub static MACHINES: [&Machine; 8] = [
    &super::resolve::MACHINE,
    &super::create::MACHINE,
    &super::destroy::MACHINE,
    &super::request::MACHINE,
    &super::peer::MACHINE,
    &super::peer::LINK_MACHINE,
    &super::credit::MACHINE,
    &super::batch::MACHINE,
];

/// Names the variants of a type: all of them as a list, and each by a function.
macro_rules! names {
    ($all:ident, $name:ident($value:ident: $type:ty) { $($pattern:pat => $text:literal,)* }) => {
        const $all: &[&str] = &[$($text,)*];

        fn $name($value: $type) -> &'static str {
            match $value { $($pattern => $text,)* }
        }
    };
}
pub(super) use names;

type Seen = FixedSet<(&'static str, &'static str, &'static str)>;

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

/// The file of this process, opened to add to it.
fn file() -> Option<&'static File> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    #[allow(clippy::disallowed_methods)] // for a test run, as its environment says
    let open = || {
        let path = std::env::var_os(VARIABLE)?;
        File::options().append(true).create(true).open(path).ok()
    };
    FILE.get_or_init(open).as_ref()
}

impl Machine {
    /// The event meets a thing in the state.
    ///
    /// # Panics
    /// When they are declared never to meet.
    pub fn hit(&self, state: &'static str, event: &'static str) {
        debug_assert!(self.states.contains(&state) && self.events.contains(&event));
        let never = self.impossible.iter().find(|(s, e, _)| *s == state && *e == event);
        if let Some((_, _, why)) = never {
            panic!("{}: {event} came in state {state}, which is impossible: {why}", self.name);
        }
        let Some(mut file) = file() else { return };
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.get_or_insert_default().insert((self.name, state, event)) {
            // One write: lines of several processes do not mix. A cell that is not written is
            // shown as missed.
            let _ = file.write_all(format!("{} {state} {event}\n", self.name).as_bytes());
        }
    }
}

/// How a cell is shown: met, missed, or impossible.
fn mark(machine: &Machine, met: &BTreeMap<&str, usize>, state: &str, event: &str) -> &'static str {
    if machine.impossible.iter().any(|(s, e, _)| *s == state && *e == event) {
        "-"
    } else if met.contains_key(format!("{} {state} {event}", machine.name).as_str()) {
        "x"
    } else {
        "."
    }
}

/// The table of every machine for the lines of a coverage file, and the number of cells missed.
#[must_use]
pub fn table(lines: &str) -> (String, usize) {
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines.lines() {
        *met.entry(line).or_default() += 1;
    }
    let (mut text, mut all_missed) = (String::new(), 0);
    for machine in MACHINES {
        let wide = machine.states.iter().map(|state| state.len()).max().unwrap_or(0);
        let (mut rows, mut missed, mut reached) = (String::new(), Vec::new(), 0);
        for state in machine.states {
            let _ = write!(rows, "  {state:wide$}");
            for event in machine.events {
                let mark = mark(machine, &met, state, event);
                let _ = write!(rows, "  {mark:^width$}", width = event.len());
                match mark {
                    "x" => reached += 1,
                    "." => missed.push(format!("{state} × {event}")),
                    _ => {}
                }
            }
            rows.push('\n');
        }
        let possible = reached + missed.len();
        let _ = writeln!(text, "{}: {reached} of {possible} cells reached", machine.name);
        let _ = writeln!(text, "  {:wide$}  {}", "", machine.events.join("  "));
        text += &rows;
        if !missed.is_empty() {
            let _ = writeln!(text, "  not reached: {}", missed.join(", "));
        }
        for (state, event, why) in machine.impossible {
            let _ = writeln!(text, "  impossible: {state} × {event}: {why}");
        }
        text.push('\n');
        all_missed += missed.len();
    }
    (text, all_missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_met_missed_and_impossible_is_told_apart() {
        let destroy = &super::super::destroy::MACHINE;
        let (state, event) = (destroy.states[0], destroy.events[0]);
        let (text, missed) = table(&format!("{} {state} {event}\n", destroy.name));
        let (_, all) = table("");
        assert_eq!(missed + 1, all);
        assert!(text.contains("destroy: 1 of "), "{text}");
        assert!(!text.contains(&format!("not reached: {state} × {event},")), "{text}");
    }

    /// What is declared is there.
    #[test]
    fn impossible_cells_are_cells() {
        for machine in MACHINES {
            for (state, event, why) in machine.impossible {
                assert!(machine.states.contains(state), "{}: {state}", machine.name);
                assert!(machine.events.contains(event), "{}: {event}", machine.name);
                assert!(why.len() > 10);
            }
        }
    }
}
