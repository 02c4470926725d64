//! Executes a program of which one optional call is refused, or whose optional calls are counted.
//!
//! `faults-refuse COUNTS [CALL ERRNO] -- PROGRAM ARGUMENT...`

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use faults::refusal::{ERRNOS, Optional, execute};

/// Exit status when the program was not executed, which no program has of its own.
const NOT_EXECUTED: u8 = 99;

const USAGE: &str = "usage: faults-refuse COUNTS [CALL ERRNO] -- PROGRAM ARGUMENT...";

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let reason = run(&words).unwrap_or_else(|| USAGE.into());
    eprintln!("faults-refuse: {reason}");
    NOT_EXECUTED.into()
}

/// Returns why the program was not executed; `None` if the command line is wrong.
fn run(words: &[OsString]) -> Option<String> {
    let middle = words.iter().position(|word| word == "--")?;
    let (own, program) = (&words[..middle], &words[middle + 1..]);
    let errno = |name: &OsString| ERRNOS.iter().find(|(known, _)| *known == name).map(|e| e.1);
    let (counts, refused) = match own {
        [counts] => (counts, None),
        [counts, call, name] => (counts, Some((Optional::find(call.to_str()?)?, errno(name)?))),
        _ => return None,
    };
    let (name, arguments) = program.split_first()?;
    let error = execute(Command::new(name).args(arguments), refused, Path::new(counts));
    Some(format!("{}: {error}", name.display()))
}
