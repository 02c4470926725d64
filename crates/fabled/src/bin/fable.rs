//! `fable`: run programs over flows, and look at the flows.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fabled::run;

/// Flows between programs, over the best road there is.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program whose TCP connections to others like it on this host go through shared memory.
    Run(run::Options),
}

/// What shells say of a command that cannot be executed.
const CANNOT_EXECUTE: u8 = 126;

fn main() -> ExitCode {
    let Command::Run(options) = Arguments::parse().command;
    match run::run(&options) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("fable: {error}");
            ExitCode::from(CANNOT_EXECUTE)
        }
    }
}
