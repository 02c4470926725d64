//! Runs the actions of operators and clients on the stock and the adapted servers, and prints one
//! table; started by `cargo xtask operations`, which builds the servers and has the help.

use clap::{Parser, ValueEnum};
use std::process::ExitCode;
use systemtests_programs::operations::{Program, Table, run};
use systemtests_programs::{Options, finish};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// Servers [default: all]
    programs: Vec<Program>,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let Arguments { mut programs, options } = Arguments::parse();
    if programs.is_empty() {
        programs = Program::value_variants().to_vec();
    }
    let mut table = Table::default();
    for program in programs {
        table.append(run(program, options.extent(), &options.only, |line| eprintln!("{line}")));
    }
    finish(&options, &table.text(), &table.json(), table.is_good())
}
