//! The referee for network I/O architectures: it runs servers and clients of its own, compares
//! them in interleaved slots, and says how sure it is.
//!
//! `cli` is the command line; `compare`, `ceiling`, `apps`, `programs`, `ipc`, `serve`, `load`,
//! `doctor` and `hosts` are the commands. `server` holds the servers behind one trait and the
//! process around them, `client` the load, `stack` the TCP that either may bring along, `hosts`
//! what several machines need to work together, `sys` the raw calls.

mod apps;
mod ceiling;
mod cli;
mod client;
mod compare;
mod diff;
mod disturbance;
mod doctor;
mod engine;
mod error;
mod exchange;
mod experiment;
mod figures;
mod hosts;
mod ipc;
mod load;
mod manual;
mod network;
mod open;
mod output;
mod path;
mod programs;
mod random;
mod report;
mod results;
mod serve;
mod server;
mod stack;
mod sys;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::diff::Outcome;
use crate::error::Error;

const EXIT_ERROR: u8 = 1;
const EXIT_INVALID: u8 = 2;
const EXIT_INTERRUPTED: u8 = 130;

const NOT_VALID: &str = "not all results are valid; above stands which and why (with --strict, the \
                         exit status is 2 then)";

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // clap would exit with 2, which here means that a result is not valid.
            return ExitCode::from(if error.use_stderr() { EXIT_ERROR } else { 0 });
        }
    };
    let outcome = match &cli.command {
        Command::Compare(arguments) => compare::run(arguments),
        Command::Ceiling(arguments) => ceiling::run(arguments),
        Command::Apps(arguments) => apps::run(arguments),
        Command::Ipc(arguments) => ipc::run(arguments),
        Command::IpcEnd(arguments) => ipc::end::run(arguments).map(|()| true),
        Command::Programs(arguments) => programs::run(arguments),
        Command::Run(arguments) => experiment::run(arguments),
        Command::Serve(arguments) => serve::run(arguments).map(|()| true),
        Command::Load(arguments) => load::run(arguments),
        Command::Log(arguments) => open::log::export(arguments).map(|()| true),
        Command::Doctor(arguments) => doctor::run(arguments).map(|()| true),
        Command::Hosts(arguments) => hosts::run(arguments).map(|()| true),
        Command::Report(arguments) => report::run(arguments).map(|()| true),
        Command::Diff(arguments) => match diff::run(arguments) {
            Ok(Outcome::Regression) => return ExitCode::from(EXIT_ERROR),
            other => other.map(|outcome| outcome == Outcome::Fine),
        },
        Command::Completions(arguments) => {
            manual::completions(arguments);
            Ok(true)
        }
        Command::Man(arguments) => manual::run(arguments).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) if cli.command.is_strict() => ExitCode::from(EXIT_INVALID),
        Ok(false) => {
            output::note(NOT_VALID);
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::note(&error.to_string());
            let interrupted = matches!(error, Error::Interrupted);
            ExitCode::from(if interrupted { EXIT_INTERRUPTED } else { EXIT_ERROR })
        }
    }
}
