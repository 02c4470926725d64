//! `cargo xtask programs`: sets the machine up and runs the program of `crates/apptests` that runs
//! foreign test suites and programs plainly and under a preload library.

use std::path::Path;
use std::process::ExitCode;

use crate::cargo::cargo;
use crate::setup;

const USAGE: &str = "usage: cargo xtask programs [fable|mtcp] [--quick] \
     [--only PART-OF-A-NAME] [--json FILE]";

const HELP: &str = "
  fable | mtcp  the library that is compared with plain runs (default: fable)
  --quick       what `cargo test` runs
  --only PART   the suites and programs that have this in their name
  --json FILE   write the result there, too
";

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Arguments {
    Help,
    Run,
}

/// Runs the command. Its exit status is the program's: 1 if a difference is not pinned, or a pinned
/// difference is gone.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    if check(words)? == Arguments::Help {
        print!("{USAGE}\n{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(error) = setup::run_for(setup::PROGRAMS) {
        println!("setup: {error}");
        println!("setup: going on without them; what needs one of them is skipped by name");
    }
    let mut command = cargo();
    command.args(["run", "--quiet", "--locked", "--package", "megapipe-apptests"]);
    command.arg("--manifest-path").arg(root.join("Cargo.toml"));
    command.args(["--bin", "programs", "--"]).args(words);
    command.env("PATH", setup::search_path());
    let status = command
        .status()
        .map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => Err(format!("the programs ended with {status}")),
    }
}

/// Checks the words before anything is installed.
fn check(words: &[&str]) -> Result<Arguments, String> {
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--help" | "-h" => return Ok(Arguments::Help),
            "fable" | "mtcp" | "--quick" => {}
            "--only" | "--json" if rest.next().is_some() => {}
            other => return Err(format!("unknown argument `{other}`; {USAGE}")),
        }
    }
    Ok(Arguments::Run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_words_are_named_before_anything_is_installed() {
        assert_eq!(check(&["mtcp", "--quick", "--only", "x", "--json", "y"]), Ok(Arguments::Run));
        assert!(check(&["--only"]).unwrap_err().contains("unknown argument `--only`; usage"));
        assert_eq!(check(&["--only", "--help"]), Ok(Arguments::Run), "a part of a name");
        assert!(check(&["nginx"]).unwrap_err().contains("unknown argument `nginx`; usage"));
    }

    #[test]
    fn help_is_no_fault() {
        assert_eq!(check(&["--help"]), Ok(Arguments::Help));
        assert_eq!(check(&["mtcp", "-h"]), Ok(Arguments::Help));
    }
}
