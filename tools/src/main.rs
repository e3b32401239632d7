#![forbid(unsafe_code)]
//! The `homing` command.

mod json;
mod wire;
mod wire_json;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Homing: Actors that are found by id, wherever they live now.
#[derive(Parser)]
#[command(name = "homing", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Look at the bytes of the wire
    #[command(subcommand)]
    Wire(wire::Command),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Wire(command) => wire::run(&command),
    }
}
