//! `iobench`, a benchmark for network I/O architectures: runs servers and clients, compares them in
//! interleaved slots, and reports confidence intervals and whether a result is valid.
//!
//! # Modules
//!
//! - `cli`: the command line. `manual`: shell completions and manual pages made of it.
//! - `compare`, `ceiling`, `apps`, `programs`, `http`, `ipc`, `load`, `serve`, `doctor`, `agent`,
//!   `diff`, `replay`, `report`: the commands of these names. `experiment`: the command `run`.
//! - `server`: the servers under test behind one trait, and the process that runs one.
//! - `client`: the closed loop. `open`: the open loop. `http_client`: both over HTTP.
//! - `engine`: rounds, slots, CPU samples and statistics, which all measuring commands share.
//! - `network`, `path`: delay, loss and rate between clients and servers, and where servers run.
//! - `stack`: TCP in user space on either side.
//! - `results`, `figures`, `output`: result files, histograms, writing to the terminal.
//! - `exchange`, `random`, `units`: requests and replies, seeded numbers, quantities as text.
//! - `error`, `sys`: errors with their remedies, system calls. [`fuzzing`]: called by fuzz targets.

mod access_log;
mod apps;
mod ceiling;
mod cli;
mod client;
mod compare;
mod diff;
mod doctor;
mod engine;
mod error;
mod exchange;
mod experiment;
mod figures;
#[doc(hidden)]
pub mod fuzzing;
mod hosts;
mod http;
mod http_client;
mod installed;
mod ipc;
mod load;
mod manual;
mod network;
mod open;
mod output;
mod path;
mod programs;
mod random;
mod replay;
mod report;
mod results;
mod serve;
mod server;
mod stack;
mod sys;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, LogArgs};
use crate::diff::Outcome;
use crate::error::Error;

const EXIT_ERROR: u8 = 1;
const EXIT_INVALID: u8 = 3;
const EXIT_INTERRUPTED: u8 = 130;

const NOT_VALID: &str = "not all results are valid; the lines above name them and the causes (with \
     --strict, the exit status is 3 then)";

/// Runs the command that the command line names; returns the exit status.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return print_answer(&answer),
    };
    let outcome = match &cli.command {
        Command::Compare(arguments) => compare::run(arguments),
        Command::Ceiling(arguments) => ceiling::run(arguments),
        Command::Apps(arguments) => apps::run(arguments),
        Command::Http(arguments) => http::run(arguments),
        Command::Ipc(arguments) => ipc::run(arguments),
        Command::IpcEnd(arguments) => ipc::end::run(arguments).map(|()| true),
        Command::Programs(arguments) => programs::run(arguments),
        Command::Run(arguments) => experiment::run(arguments),
        Command::Serve(arguments) => serve::run(arguments).map(|()| true),
        Command::Load(arguments) => load::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::GenerateLog(arguments) => replay::generate::run(arguments).map(|()| true),
        Command::Log(LogArgs { file, .. }) => Err(Error::setup(
            "there is no `iobench log` any more",
            format!("read {} as it is: `load --log` writes CSV", file.display()),
        )),
        Command::Doctor(arguments) => doctor::run(arguments).map(|()| true),
        Command::Agent(arguments) => hosts::run(arguments).map(|()| true),
        Command::Hosts(arguments) => {
            output::superseded("`hosts`", "`agent --check`");
            hosts::run(arguments).map(|()| true)
        }
        Command::Report(arguments) => report::run(arguments).map(|()| true),
        Command::Diff(arguments) => match diff::run(arguments) {
            Ok(Outcome::Regression) => return ExitCode::from(EXIT_ERROR),
            other => other.map(|outcome| outcome == Outcome::Fine),
        },
        Command::Completions(arguments) => manual::completions(arguments).map(|()| true),
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
            let interrupted = matches!(error, Error::Interrupted | Error::Partial(_));
            ExitCode::from(if interrupted { EXIT_INTERRUPTED } else { EXIT_ERROR })
        }
    }
}

/// Prints the help or the version, or why the command line is wrong; returns the exit status.
fn print_answer(answer: &clap::Error) -> ExitCode {
    let usual = ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(EXIT_ERROR));
    if answer.use_stderr() {
        // If standard error cannot be written to, there is nowhere left to tell.
        let _ = answer.print();
        return usual;
    }
    match output::print_with(|_| answer.print()) {
        Ok(()) => usual,
        Err(error) => {
            output::note(&error.to_string());
            ExitCode::from(EXIT_ERROR)
        }
    }
}
