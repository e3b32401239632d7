#![forbid(unsafe_code)]
//! The `homing` command.

mod demo;
mod json;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Homing: Actors that are found by id, wherever they live now.
#[derive(Parser)]
#[command(name = "homing", version, about, max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start nodes on this machine, let them talk, and judge what became of every message
    ///
    /// Starts node processes with real links between them and the embedded store in a temporary
    /// directory, creates Actors across them, and sends and requests from every node to every
    /// node. Messages are numbered per sender and Actor. Then a fresh process asks every Actor what
    /// it handled and compares with the senders' logs: none lost, none doubled, every sender's
    /// order kept. Ctrl-C ends it and leaves nothing behind.
    Demo(demo::Args),
    /// One node process of the demo
    #[command(hide = true)]
    DemoNode,
    /// Look at the bytes of the wire
    #[command(subcommand)]
    Wire(wire::Command),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::DemoNode => demo::run_node(),
        Command::Wire(command) => wire::run(&command),
    }
}
