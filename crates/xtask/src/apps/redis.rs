//! redis on the channel: builds the distribution's version twice, unmodified and adapted, and
//! compares the results of its own tests on both.

use std::path::Path;

use super::{App, sanitizer};
use crate::setup;

const USAGE: &str =
    "usage: cargo xtask redis [--sanitize | --test [--driver uring|epoll] [UNIT ...]]";

/// What to do with the servers.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Build,
    Sanitize,
    /// Run redis' suite, with these variables of its Makefile.
    Test {
        tests: String,
        driver: String,
    },
}

/// `cargo xtask redis`: sets the machine up and builds both.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    perform(root, &parse(words)?)
}

/// Builds both servers.
pub(super) fn both(root: &Path) -> Result<(), String> {
    App::new(root, "redis")?.make(&["stock", "all"])
}

fn parse(words: &[&str]) -> Result<Action, String> {
    let test = |units: &[&str], driver: &str| Action::Test {
        tests: format!("TESTS={}", units.join(" ")),
        driver: format!("DRIVER={driver}"),
    };
    match words {
        [] => Ok(Action::Build),
        ["--sanitize"] => Ok(Action::Sanitize),
        ["--test", "--driver", driver @ ("uring" | "epoll"), units @ ..] => Ok(test(units, driver)),
        ["--test", units @ ..] if !units.iter().any(|unit| unit.starts_with('-')) => {
            Ok(test(units, ""))
        }
        _ => Err(format!("unknown argument `{}`; {USAGE}", words.join(" "))),
    }
}

fn perform(root: &Path, action: &Action) -> Result<(), String> {
    setup::run_for(setup::REDIS)?;
    let app = App::new(root, "redis")?;
    match action {
        Action::Build => {
            app.make(&["stock", "all"])?;
            for tree in ["stock", "megapipe"] {
                println!("redis: {}", app.build.join(tree).join("src/redis-server").display());
            }
            Ok(())
        }
        Action::Sanitize => {
            app.make(&["sanitized"])?;
            sanitizer::run_tests(root, &sanitizer::reports_in(&app.build), "redis", |tests| {
                tests.args(["--package", "systemtests-programs", "--test", "redis"]);
                tests.env("MEGAPIPE_REDIS", app.build.join("sanitized/src/redis-server"));
            })
        }
        Action::Test { tests, driver } => {
            setup::run_for(setup::REDIS_SUITE)?;
            app.make(&["stock", "all", "suite"])?;
            match app.command(&["check", tests, driver]).status() {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(format!("redis' test suite: make ended with {status}")),
                Err(error) => Err(format!("cannot run make: {error}; install the package make")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_and_units_can_be_chosen() {
        let test = |tests: &str, driver: &str| {
            Ok(Action::Test { tests: tests.to_string(), driver: driver.to_string() })
        };
        assert_eq!(
            parse(&["--test", "--driver", "epoll", "unit/multi", "unit/sort"]),
            test("TESTS=unit/multi unit/sort", "DRIVER=epoll")
        );
        assert_eq!(parse(&["--test"]), test("TESTS=", "DRIVER="));
        for wrong in [&["--driver"][..], &["--test", "--driver", "a"], &["--test", "--quick"]] {
            assert!(parse(wrong).unwrap_err().contains("unknown argument"));
        }
    }
}
