//! Other people's test suites and programs, plainly and under a preload library: sets the machine
//! up and runs the program of `crates/apptests`, which has the list of them.

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::setup;

const USAGE: &str = "usage: cargo xtask programs [fable|mtcp] [--quick] \
     [--only PART-OF-A-NAME] [--json FILE]";

const HELP: &str = "
  fable | mtcp  the library that is compared with plain runs (default: fable)
  --quick       what `cargo test` runs
  --only PART   the suites and programs that have this in their name
  --json FILE   write the result there, too
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Help,
    Run,
}

/// `cargo xtask programs`. Its end is the program's: 1 if something differs that is not pinned, or
/// something is pinned that does not differ.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    if check(words)? == Wish::Help {
        print!("{USAGE}\n{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(error) = setup::run_for(setup::PROGRAMS) {
        println!("setup: {error}");
        println!("setup: going on without them; what needs one of them is skipped by name");
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--locked", "--package", "megapipe-apptests"]);
    command.arg("--manifest-path").arg(root.join("Cargo.toml"));
    command.args(["--bin", "programs", "--"]).args(words);
    command.env("PATH", setup::search_path());
    let status = command.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => Err(format!("the programs ended with {status}")),
    }
}

/// Whether the words make sense, before anything is installed.
fn check(words: &[&str]) -> Result<Wish, String> {
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--help" | "-h" => return Ok(Wish::Help),
            "fable" | "mtcp" | "--quick" => {}
            "--only" | "--json" if rest.next().is_some() => {}
            other => return Err(format!("cannot make sense of `{other}`; {USAGE}")),
        }
    }
    Ok(Wish::Run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_words_are_named_before_anything_is_installed() {
        assert_eq!(check(&["mtcp", "--quick", "--only", "x", "--json", "y"]), Ok(Wish::Run));
        assert!(check(&["--only"]).unwrap_err().contains("cannot make sense of `--only`; usage"));
        assert_eq!(check(&["--only", "--help"]), Ok(Wish::Run), "a part of a name");
        assert!(check(&["nginx"]).unwrap_err().contains("cannot make sense of `nginx`; usage"));
    }

    #[test]
    fn help_is_no_fault() {
        assert_eq!(check(&["--help"]), Ok(Wish::Help));
        assert_eq!(check(&["mtcp", "-h"]), Ok(Wish::Help));
    }
}
