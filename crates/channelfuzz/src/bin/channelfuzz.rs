//! Implements the command line of the fuzzer.

use channelfuzz::{Campaign, Drivers, Script, Stacks};
use clap::{Parser, ValueEnum};
use megapipe::DriverChoice;
use std::process::ExitCode;
use std::time::Instant;

const NAME: &str = "channelfuzz";

/// Runs random scripts of channel operations over several drivers and compares them.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    cases: fuzzkit::CaseOptions,
    /// Drivers to run: `both` compares uring and epoll with each other, `mtcp` compares user-level
    /// TCP with the kernel and needs root.
    #[arg(long, value_enum, default_value = "both")]
    driver: Driver,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Driver {
    Uring,
    Epoll,
    Both,
    Mtcp,
}

fn main() -> ExitCode {
    let Options { cases, driver } = Options::parse();
    let drivers = match driver {
        Driver::Uring => Drivers::One(DriverChoice::Uring),
        Driver::Epoll => Drivers::One(DriverChoice::Epoll),
        Driver::Both => Drivers::Both,
        Driver::Mtcp => match Stacks::start() {
            Ok(stacks) => Drivers::Stacks(stacks),
            Err(error) => {
                eprintln!("{NAME}: {error}");
                return ExitCode::from(2);
            }
        },
    };
    let mut campaign = Campaign::new(drivers, !cases.no_shrink);
    if let Some(prefix) = &cases.strict {
        campaign = campaign.strict(prefix);
    }
    let begin = Instant::now();
    match cases.script::<Script>(NAME) {
        Ok(Some(script)) => campaign.run_script(&script),
        Ok(None) => campaign.run_seeds(cases.first_seed(NAME), cases.limit()),
        Err(code) => return code,
    }
    campaign.report().print(NAME, begin.elapsed())
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
