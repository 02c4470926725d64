//! Runs the actions of operators and clients on the stock and the adapted servers, and prints one
//! table; started by `cargo xtask operations`, which builds the servers and has the help.

use megapipe_apptests::operations::{Extent, Program, Table, run};
use std::process::ExitCode;

/// Exit status after a wrong command line, as in programs with getopt.
const EXIT_USAGE: u8 = 2;

const USAGE: &str =
    "usage: operations [nginx|memcached] [--quick] [--only PART-OF-A-NAME] [--json FILE]";

/// The parsed command line.
struct Arguments {
    programs: Vec<Program>,
    extent: Extent,
    only: String,
    json: Option<String>,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let (programs, extent) = (Vec::new(), Extent::Full);
    let mut arguments = Arguments { programs, extent, only: String::new(), json: None };
    while let Some(word) = words.next() {
        match word.as_str() {
            "nginx" => arguments.programs.push(Program::Nginx),
            "memcached" => arguments.programs.push(Program::Memcached),
            "--quick" => arguments.extent = Extent::Quick,
            "--only" => arguments.only = words.next()?,
            "--json" => arguments.json = Some(words.next()?),
            _ => return None,
        }
    }
    if arguments.programs.is_empty() {
        arguments.programs = vec![Program::Nginx, Program::Memcached];
    }
    Some(arguments)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    let mut table = Table::default();
    for program in arguments.programs {
        table.append(run(program, arguments.extent, &arguments.only, |line| eprintln!("{line}")));
    }
    print!("{}", table.text());
    if let Some(path) = arguments.json
        && let Err(error) = std::fs::write(&path, table.json())
    {
        eprintln!("operations: cannot write {path}: {error}");
        return ExitCode::FAILURE;
    }
    if table.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
