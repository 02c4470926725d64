//! Implements the command line of the fuzzer, which is its own agent: `callfuzz agent` serves
//! requests.

use callfuzz::{Campaign, RunMode, Script};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

const NAME: &str = "callfuzz";

/// Runs random scripts of socket calls with and without a preload library, and compares the
/// results.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    cases: fuzzkit::CaseOptions,
    /// Variant that is compared with plain processes: the preload library fable or mtcp (needs
    /// root); `plain` and `veth` test the fuzzer itself.
    #[arg(long, value_enum, default_value = "fable")]
    mode: WayName,
    /// File to which each process appends a line about its connections, such as calls.log.
    #[arg(long, value_name = "FILE", default_value = "/dev/null")]
    statistics: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WayName {
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
        eprintln!("{NAME}: {error}");
        ExitCode::from(2)
    })
}

fn run(options: &Options) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let Options { cases, mode, statistics } = options;
    let mode = match mode {
        WayName::Plain => RunMode::Plain,
        WayName::Veth => RunMode::Veth,
        WayName::Mtcp => RunMode::mtcp()?,
        WayName::Fable => RunMode::fable(statistics.clone())?,
    };
    let mut campaign = Campaign::new(std::env::current_exe()?, mode, !cases.no_shrink)?;
    if let Some(prefix) = &cases.strict {
        campaign = campaign.strict(prefix);
    }
    let begin = Instant::now();
    match cases.script::<Script>(NAME) {
        Ok(Some(script)) => campaign.run_script(&script),
        Ok(None) => campaign.run_seeds(cases.first_seed(NAME), cases.limit()),
        Err(code) => return Ok(code),
    }
    campaign.finish();
    let code = campaign.report().print(NAME, begin.elapsed());
    for (class, times) in campaign.kinds() {
        println!("found {times} times: {class}");
    }
    for (class, (times, seed)) in campaign.unrepeated() {
        println!("not repeated {times} times (seed {seed}): {class}");
    }
    Ok(code)
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
