//! What operators and clients do to the stock and the adapted servers, as one table; run by
//! `cargo xtask operations`, which builds the servers and has the help.

use megapipe_apptests::operations::{Extent, Program, Table, run};
use std::process::ExitCode;

/// The exit code for a command line that makes no sense, as in getopt's tools.
const EXIT_USAGE: u8 = 2;

const USAGE: &str =
    "usage: operations [nginx|memcached] [--quick] [--only PART-OF-A-NAME] [--json FILE]";

/// What the command line asks for.
struct Wish {
    programs: Vec<Program>,
    extent: Extent,
    only: String,
    json: Option<String>,
}

fn wish(mut words: impl Iterator<Item = String>) -> Option<Wish> {
    let (programs, extent) = (Vec::new(), Extent::Full);
    let mut wish = Wish { programs, extent, only: String::new(), json: None };
    while let Some(word) = words.next() {
        match word.as_str() {
            "nginx" => wish.programs.push(Program::Nginx),
            "memcached" => wish.programs.push(Program::Memcached),
            "--quick" => wish.extent = Extent::Quick,
            "--only" => wish.only = words.next()?,
            "--json" => wish.json = Some(words.next()?),
            _ => return None,
        }
    }
    if wish.programs.is_empty() {
        wish.programs = vec![Program::Nginx, Program::Memcached];
    }
    Some(wish)
}

fn main() -> ExitCode {
    let Some(wish) = wish(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    let mut table = Table::default();
    for program in wish.programs {
        table.append(run(program, wish.extent, &wish.only, |line| eprintln!("{line}")));
    }
    print!("{}", table.text());
    if let Some(path) = wish.json
        && let Err(error) = std::fs::write(&path, table.json())
    {
        eprintln!("operations: cannot write {path}: {error}");
        return ExitCode::FAILURE;
    }
    if table.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
