//! `cargo xtask operations` and `cargo xtask programs`: set the machine up, build what is compared,
//! and run the program of `systemtests/programs`.

use std::path::Path;
use std::process::ExitCode;

use super::{build_preload, caches, nginx};
use crate::cargo::cargo;
use crate::setup;

const OPERATIONS: &str = "usage: cargo xtask operations [nginx|memcached|redis] [--quick] \
     [--only PART-OF-A-NAME] [--json FILE]";

const PROGRAMS: &str = "usage: cargo xtask programs [fable|mtcp] [--quick] \
     [--only PART-OF-A-NAME] [--json FILE]";

const HELP: &str = "
  nginx | memcached | redis
                     only this server (operations)
  fable | mtcp       the library that is compared with plain runs (programs; default: fable)
  --quick            what the tests run
  --only PART        what has this in its name
  --json FILE        write the result there, too
";

/// Runs the actions of operators and clients. The exit status is the program's: 1 if a cell of the
/// table is worse than the stock server's, and not by a documented limit.
pub(crate) fn operations(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    let Some(chosen) = check(words, &["nginx", "memcached", "redis"], OPERATIONS)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let is_chosen = |name| chosen.is_empty() || chosen.contains(&name);
    if is_chosen("nginx") {
        setup::run_for(&[setup::NGINX, setup::NGINX_CLIENTS].concat())?;
        nginx::module(root)?;
    }
    if is_chosen("memcached") {
        setup::run_for(setup::MEMCACHED)?;
        caches::MEMCACHED.both_and(root, &[])?;
    }
    if is_chosen("redis") {
        setup::run_for(setup::REDIS)?;
        caches::REDIS.both_and(root, &[])?;
    }
    start(root, "operations", words)
}

/// Runs foreign test suites and programs. The exit status is the program's: 1 if a difference is
/// not pinned, or a pinned difference is gone.
pub(crate) fn programs(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    if check(words, &["fable", "mtcp"], PROGRAMS)?.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(error) = setup::run_for(setup::PROGRAMS) {
        println!("setup: {error}");
        println!("setup: going on without them; what needs one of them is skipped by name");
    }
    build_preload(root)?;
    start(root, "programs", words)
}

/// Checks the words before anything is installed; returns the chosen names, or prints the help and
/// returns `None`.
fn check<'a>(
    words: &[&'a str],
    names: &[&str],
    usage: &str,
) -> Result<Option<Vec<&'a str>>, String> {
    let mut chosen = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--help" | "-h" => {
                print!("{usage}\n{HELP}");
                return Ok(None);
            }
            "--quick" => {}
            "--only" | "--json" if rest.next().is_some() => {}
            name if names.contains(&name) => chosen.push(name),
            other => return Err(format!("unknown argument `{other}`; {usage}")),
        }
    }
    Ok(Some(chosen))
}

fn start(root: &Path, program: &str, words: &[&str]) -> Result<ExitCode, String> {
    let mut command = cargo();
    command.args(["run", "--quiet", "--locked", "--package", "systemtests-programs"]);
    command.arg("--manifest-path").arg(root.join("Cargo.toml"));
    command.args(["--bin", program, "--"]).args(words);
    let status = command.env("PATH", setup::search_path()).status();
    let status =
        status.map_err(|error| format!("cannot run cargo: {error}; add it to the PATH"))?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => Err(format!("{program} ended with {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_words_are_named_before_anything_is_installed() {
        let check =
            |words: &[&'static str]| check(words, &["nginx", "memcached", "redis"], OPERATIONS);
        let words = ["--only", "memcached", "nginx", "--quick", "--json", "y"];
        assert_eq!(check(&words), Ok(Some(vec!["nginx"])), "a value is no name");
        assert!(check(&["--only"]).unwrap_err().contains("unknown argument `--only`; usage"));
        assert_eq!(check(&["--only", "--help"]), Ok(Some(Vec::new())), "a part of a name");
        assert_eq!(check(&["nginx", "-h"]), Ok(None));
        assert!(check(&["mtcp"]).unwrap_err().contains("unknown argument `mtcp`; usage"));
    }
}
