//! Runs test suites and programs plainly and under a preload library, and prints one table; started
//! by `cargo xtask programs`, which installs what they need and has the help.

use megapipe_apptests::operations::Extent;
use megapipe_apptests::programs::{PreloadCommand, run};
use std::process::ExitCode;

/// Exit status after a wrong command line, as in programs with getopt.
const EXIT_USAGE: u8 = 2;

const USAGE: &str = "usage: programs [fable|mtcp] [--quick] [--only PART-OF-A-NAME] [--json FILE]";

/// The parsed command line.
struct Arguments {
    preload_command: PreloadCommand,
    extent: Extent,
    only: String,
    json: Option<String>,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments {
        preload_command: PreloadCommand::Fable,
        extent: Extent::Full,
        only: String::new(),
        json: None,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "fable" => arguments.preload_command = PreloadCommand::Fable,
            "mtcp" => arguments.preload_command = PreloadCommand::Mtcp,
            "--quick" => arguments.extent = Extent::Quick,
            "--only" => arguments.only = words.next()?,
            "--json" => arguments.json = Some(words.next()?),
            _ => return None,
        }
    }
    Some(arguments)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    let table = match run(arguments.preload_command, arguments.extent, &arguments.only, |line| {
        eprintln!("{line}")
    }) {
        Ok(table) => table,
        Err(error) => {
            eprintln!("programs: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(path) = arguments.json
        && let Err(error) = std::fs::write(&path, table.json())
    {
        eprintln!("programs: cannot write {path}: {error}");
        return ExitCode::FAILURE;
    }
    print!("{}", table.text());
    if table.faults().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
