//! memcached on the channel: builds the distribution's version twice, unmodified and adapted, and
//! compares the results of its own tests on both.

use std::path::{Path, PathBuf};

use super::{App, sanitizer};
use crate::setup;

const USAGE: &str = "usage: cargo xtask memcached \
     [--sanitize | --test [--driver uring|epoll] [FILE.t ...]]";

/// What to do with the servers.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Build,
    Sanitize,
    /// Run memcached's suite, with these variables of its Makefile.
    Test {
        tests: String,
        driver: String,
    },
}

/// `cargo xtask memcached`: sets the machine up and builds both.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    perform(root, &parse(words)?)
}

/// Builds the adapted server; returns its path.
pub(crate) fn program(root: &Path) -> Result<PathBuf, String> {
    let app = App::new(root, "memcached")?;
    app.make(&["all"])?;
    Ok(app.build.join("megapipe/memcached"))
}

/// Builds both servers.
pub(super) fn both(root: &Path) -> Result<(), String> {
    App::new(root, "memcached")?.make(&["stock", "all"])
}

/// Builds both servers of all releases.
pub(super) fn releases(root: &Path) -> Result<(), String> {
    App::new(root, "memcached")?.make(&["stock", "all", "releases"])
}

fn parse(words: &[&str]) -> Result<Action, String> {
    let test = |files: &[&str], driver: &str| Action::Test {
        tests: format!("TESTS={}", files.join(" ")),
        driver: format!("DRIVER={driver}"),
    };
    match words {
        [] => Ok(Action::Build),
        ["--sanitize"] => Ok(Action::Sanitize),
        ["--test", "--driver", driver @ ("uring" | "epoll"), files @ ..] => Ok(test(files, driver)),
        ["--test", files @ ..] if !files.iter().any(|file| file.starts_with('-')) => {
            Ok(test(files, ""))
        }
        _ => Err(format!("unknown argument `{}`; {USAGE}", words.join(" "))),
    }
}

fn perform(root: &Path, action: &Action) -> Result<(), String> {
    setup::run_for(setup::MEMCACHED)?;
    if let Action::Test { .. } = action {
        setup::run_for(setup::MEMCACHED_SUITE)?;
    }
    let app = App::new(root, "memcached")?;
    if *action == Action::Sanitize {
        app.make(&["sanitized"])?;
        return sanitizer::run_tests(
            root,
            &sanitizer::reports_in(&app.build),
            "memcached",
            |tests| {
                tests.args(["--package", "systemtests-programs", "--test", "memcached"]);
                tests.env("MEGAPIPE_MEMCACHED", app.build.join("sanitized/memcached"));
            },
        );
    }
    app.make(&["stock", "all"])?;
    for tree in ["stock", "megapipe"] {
        println!("memcached: {}", app.build.join(tree).join("memcached").display());
    }
    let Action::Test { tests, driver } = action else { return Ok(()) };
    app.make(&["suite"])?;
    let status = app.command(&["check", tests, driver]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("memcached's test suite: make ended with {status}")),
        Err(error) => Err(format!("cannot run make: {error}; install the package make")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_and_files_can_be_chosen() {
        let test = |tests: &str, driver: &str| {
            Ok(Action::Test { tests: tests.to_string(), driver: driver.to_string() })
        };
        assert_eq!(
            parse(&["--test", "--driver", "epoll", "a.t", "b.t"]),
            test("TESTS=a.t b.t", "DRIVER=epoll")
        );
        assert_eq!(parse(&["--test"]), test("TESTS=", "DRIVER="));
        for wrong in [&["--driver"][..], &["--test", "--driver", "a.t"], &["--test", "--quick"]] {
            assert!(parse(wrong).unwrap_err().contains("unknown argument"));
        }
    }
}
