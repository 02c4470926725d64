//! Implements the command line of the fuzzer, which is its own agent: `callfuzz agent` serves
//! requests.

use callfuzz::{Pairs, RunMode};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs random scripts of socket calls with and without a preload library, and compares the
/// results.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    cases: fuzzkit::CaseOptions,
    /// Variant that is compared with plain processes: the preload library fable or mtcp (needs
    /// root); `plain` and `veth` test the fuzzer itself.
    #[arg(long, value_enum, default_value = "fable")]
    mode: ModeName,
    /// File to which each process appends a line about its connections, such as calls.log.
    #[arg(long, value_name = "FILE", default_value = "/dev/null")]
    statistics: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeName {
    Plain,
    Fable,
    Veth,
    Mtcp,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("agent") {
        return callfuzz::serve();
    }
    run(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("callfuzz: {error}");
        ExitCode::from(2)
    })
}

fn run(options: &Options) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let Options { cases, mode, statistics } = options;
    let mode = match mode {
        ModeName::Plain => RunMode::Plain,
        ModeName::Veth => RunMode::Veth,
        ModeName::Mtcp => RunMode::mtcp()?,
        ModeName::Fable => RunMode::fable(statistics.clone())?,
    };
    Ok(cases.run(Pairs::new(std::env::current_exe()?, mode)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
    }
}
