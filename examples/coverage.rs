#![forbid(unsafe_code)]
//! Prints which states of the protocol machines met which events, from the file that the tests wrote
//! (`HOMING_COVERAGE`); `./tools/test coverage` runs it.

use std::process::ExitCode;

use homing::protocol::coverage::table;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: coverage FILE, where FILE is what HOMING_COVERAGE named in a test run");
        return ExitCode::from(2);
    };
    let lines = match std::fs::read_to_string(&path) {
        Ok(lines) if !lines.is_empty() => lines,
        Ok(_) => {
            eprintln!("{} is empty: no test reached a machine", path.display());
            return ExitCode::FAILURE;
        }
        Err(e) => {
            eprintln!("cannot read {}: {e}", path.display());
            return ExitCode::FAILURE;
        }
    };
    let (text, missed) = table(&lines);
    print!("{text}");
    println!("{missed} cells not reached");
    ExitCode::SUCCESS
}
