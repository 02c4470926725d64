//! memcached and redis on the channel: builds the distribution's version of each twice, unmodified
//! and adapted, and compares the results of its own tests on both.

use std::path::{Path, PathBuf};

use super::{App, sanitizer};
use crate::setup;

/// One of the two.
pub(crate) struct Cache {
    name: &'static str,
    /// The server, below its directory.
    program: &'static str,
    packages: &'static [&'static str],
    suite_packages: &'static [&'static str],
    /// A file or unit of its suite.
    unit: &'static str,
    /// The variable that names another adapted server to our tests.
    variable: &'static str,
}

pub(crate) const MEMCACHED: Cache = Cache {
    name: "memcached",
    program: "memcached",
    packages: setup::MEMCACHED,
    suite_packages: setup::MEMCACHED_SUITE,
    unit: "FILE.t",
    variable: "MEGAPIPE_MEMCACHED",
};

pub(crate) const REDIS: Cache = Cache {
    name: "redis",
    program: "src/redis-server",
    packages: setup::REDIS,
    suite_packages: setup::REDIS_SUITE,
    unit: "UNIT",
    variable: "MEGAPIPE_REDIS",
};

/// What to do with the servers.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Build,
    Sanitize,
    /// Run the suite, with these variables of its Makefile.
    Test {
        tests: String,
        driver: String,
    },
}

impl Cache {
    /// `cargo xtask memcached`, `cargo xtask redis`: sets the machine up and builds both.
    pub(crate) fn run(&self, root: &Path, words: &[&str]) -> Result<(), String> {
        let action = self.parse(words)?;
        setup::run_for(self.packages)?;
        let app = App::new(root, self.name)?;
        match action {
            Action::Build => self.build(&app),
            Action::Sanitize => self.sanitize(root, &app),
            Action::Test { tests, driver } => {
                setup::run_for(self.suite_packages)?;
                self.build(&app)?;
                app.make(&["suite"])?;
                self.check(&app, &tests, &driver)
            }
        }
    }

    /// Builds the adapted server; returns its path.
    pub(crate) fn adapted(&self, root: &Path) -> Result<PathBuf, String> {
        let app = App::new(root, self.name)?;
        app.make(&["all"])?;
        Ok(app.build.join("megapipe").join(self.program))
    }

    /// Builds both servers, and what other targets of the Makefile name.
    pub(super) fn both_and(&self, root: &Path, others: &[&str]) -> Result<(), String> {
        App::new(root, self.name)?.make(&[&["stock", "all"], others].concat())
    }

    fn parse(&self, words: &[&str]) -> Result<Action, String> {
        let test = |units: &[&str], driver: &str| Action::Test {
            tests: format!("TESTS={}", units.join(" ")),
            driver: format!("DRIVER={driver}"),
        };
        match words {
            [] => Ok(Action::Build),
            ["--sanitize"] => Ok(Action::Sanitize),
            ["--test", "--driver", driver @ ("uring" | "epoll"), units @ ..] => {
                Ok(test(units, driver))
            }
            ["--test", units @ ..] if !units.iter().any(|unit| unit.starts_with('-')) => {
                Ok(test(units, ""))
            }
            _ => Err(format!(
                "unknown argument `{}`; usage: cargo xtask {} [--sanitize | --test [--driver \
                 uring|epoll] [{} ...]]",
                words.join(" "),
                self.name,
                self.unit
            )),
        }
    }

    fn build(&self, app: &App) -> Result<(), String> {
        app.make(&["stock", "all"])?;
        for tree in ["stock", "megapipe"] {
            println!("{}: {}", self.name, app.build.join(tree).join(self.program).display());
        }
        Ok(())
    }

    fn sanitize(&self, root: &Path, app: &App) -> Result<(), String> {
        app.make(&["sanitized"])?;
        sanitizer::run_tests(root, &sanitizer::reports_in(&app.build), self.name, |tests| {
            tests.args(["--package", "systemtests-programs", "--test", self.name]);
            tests.env(self.variable, app.build.join("sanitized").join(self.program));
        })
    }

    fn check(&self, app: &App, tests: &str, driver: &str) -> Result<(), String> {
        match app.command(&["check", tests, driver]).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{}'s test suite: make ended with {status}", self.name)),
            Err(error) => Err(format!("cannot run make: {error}; install the package make")),
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
        for cache in [MEMCACHED, REDIS] {
            assert_eq!(
                cache.parse(&["--test", "--driver", "epoll", "a.t", "unit/b"]),
                test("TESTS=a.t unit/b", "DRIVER=epoll")
            );
            assert_eq!(cache.parse(&["--test"]), test("TESTS=", "DRIVER="));
            for wrong in [&["--driver"][..], &["--test", "--driver", "a"], &["--test", "--quick"]] {
                let error = cache.parse(wrong).unwrap_err();
                assert!(error.contains("unknown argument") && error.contains(cache.unit));
            }
        }
    }
}
