//! Test suites and programs plainly and under a preload library, as one table; run by
//! `cargo xtask programs`, which installs what they take and has the help.

use megapipe_apptests::operations::Extent;
use megapipe_apptests::programs::{Way, run};
use std::process::ExitCode;

/// The exit code for a command line that makes no sense, as in getopt's tools.
const EXIT_USAGE: u8 = 2;

const USAGE: &str = "usage: programs [fable|mtcp] [--quick] [--only PART-OF-A-NAME] [--json FILE]";

/// What the command line asks for.
struct Wish {
    way: Way,
    extent: Extent,
    only: String,
    json: Option<String>,
}

fn wish(mut words: impl Iterator<Item = String>) -> Option<Wish> {
    let mut wish = Wish { way: Way::Fable, extent: Extent::Full, only: String::new(), json: None };
    while let Some(word) = words.next() {
        match word.as_str() {
            "fable" => wish.way = Way::Fable,
            "mtcp" => wish.way = Way::Mtcp,
            "--quick" => wish.extent = Extent::Quick,
            "--only" => wish.only = words.next()?,
            "--json" => wish.json = Some(words.next()?),
            _ => return None,
        }
    }
    Some(wish)
}

fn main() -> ExitCode {
    let Some(wish) = wish(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    let table = match run(wish.way, wish.extent, &wish.only, |line| eprintln!("{line}")) {
        Ok(table) => table,
        Err(error) => {
            eprintln!("programs: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(path) = wish.json
        && let Err(error) = std::fs::write(&path, table.json())
    {
        eprintln!("programs: cannot write {path}: {error}");
        return ExitCode::FAILURE;
    }
    print!("{}", table.text());
    if table.faults().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
