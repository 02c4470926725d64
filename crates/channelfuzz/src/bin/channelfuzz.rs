//! Implements the command line of the fuzzer.

use channelfuzz::{Drivers, Stacks};
use clap::{Parser, ValueEnum};
use megapipe::DriverChoice;
use std::process::ExitCode;

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
                eprintln!("channelfuzz: {error}");
                return ExitCode::from(2);
            }
        },
    };
    cases.run(drivers)
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
