//! Runs test suites and programs plainly and under a preload library, and prints one table; started
//! by `cargo xtask programs`, which installs what they need and has the help.

use clap::Parser;
use std::process::ExitCode;
use systemtests_programs::programs::{PreloadCommand, run};
use systemtests_programs::{Options, finish};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// The library that is compared with plain runs
    #[arg(default_value = "fable")]
    library: PreloadCommand,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let Arguments { library, options } = Arguments::parse();
    match run(library, options.extent(), &options.only, |line| eprintln!("{line}")) {
        Ok(table) => finish(&options, &table.text(), &table.json(), table.faults().is_empty()),
        Err(error) => {
            eprintln!("programs: {error}");
            ExitCode::FAILURE
        }
    }
}
