//! Calls the Makefiles of `apps/`, which build nginx, memcached and redis on the channel, and the
//! programs of `systemtests/programs`, which compare adapted with stock servers.

pub(crate) mod caches;
pub(crate) mod nginx;
pub(crate) mod sanitizer;
pub(crate) mod systemtests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{absolute_target, cargo};
use crate::command::{make_directory, quietly};
use crate::setup;

/// What is built in release mode, selected as in the commands of the tutorials: with another
/// selection cargo can choose other features of dependencies, and compiles everything above these
/// again.
const LIBRARY: &[&str] = &["megapipe-capi"];
const PRELOAD: [&[&str]; 2] = [&["fabled", "fable-preload"], &["mtcp-cli", "mtcp-preload"]];

/// The Makefile of one application, with cargo's target directory.
struct App {
    makefile: PathBuf,
    include: PathBuf,
    target: PathBuf,
    /// The directory for the results.
    build: PathBuf,
}

/// `cargo xtask apps`: builds what the tests of `systemtests/programs` start. Other steps and
/// commands find it up to date.
pub(crate) fn build(root: &Path) -> Result<(), String> {
    setup::run_for(&[setup::NGINX, setup::MEMCACHED, setup::REDIS].concat())?;
    build_preload(root)?;
    nginx::releases(root)?;
    caches::MEMCACHED.both_and(root, &["releases"])?;
    caches::REDIS.both_and(root, &[])
}

/// Builds the commands that run programs under a preload library.
fn build_preload(root: &Path) -> Result<(), String> {
    PRELOAD.iter().try_for_each(|packages| build_release(root, packages))
}

/// Builds packages in release mode.
fn build_release(root: &Path, packages: &[&str]) -> Result<(), String> {
    let mut command = cargo();
    command.args(["build", "--release", "--locked"]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    quietly(command.current_dir(root), &format!("cargo build of {}", packages.join(", ")))
}

impl App {
    /// Builds the library of the application.
    fn new(root: &Path, name: &str) -> Result<App, String> {
        build_release(root, LIBRARY)?;
        let target = absolute_target(root)?;
        let build = target.join("apps").join(name);
        make_directory(&build)?;
        let include = root.join("crates/capi/include");
        Ok(App { makefile: root.join("apps").join(name), include, target, build })
    }

    /// Returns make with these words.
    fn command(&self, words: &[&str]) -> Command {
        let mut make = Command::new("make");
        make.args(["--no-print-directory", "-j2", "-C"]).arg(&self.makefile);
        for (name, path) in [
            ("BUILD=", &self.build),
            ("SOURCES=", &self.target.join("apps/src")),
            ("MEGAPIPE_LIB=", &self.target.join("release")),
            ("MEGAPIPE_INCLUDE=", &self.include),
        ] {
            let mut word = OsString::from(name);
            word.push(path);
            make.arg(word);
        }
        make.args(words)
            .env_remove("MAKEFLAGS")
            .env_remove("MFLAGS")
            .env("PATH", setup::search_path());
        make
    }

    /// Makes targets, one process at a time.
    fn make(&self, targets: &[&str]) -> Result<(), String> {
        let make = self.command(targets);
        let mut locked = Command::new("flock");
        locked.arg(self.build.join("lock")).arg(make.get_program()).args(make.get_args());
        for (name, value) in make.get_envs() {
            match value {
                Some(value) => locked.env(name, value),
                None => locked.env_remove(name),
            };
        }
        quietly(&mut locked, &format!("make -C {}", self.makefile.display()))
    }
}

/// `cargo xtask source NAME [UPSTREAM]`: fetches the sources and prints their path.
pub(crate) fn source(root: &Path, words: &[&str]) -> Result<(), String> {
    let (name, upstream) = match words {
        [name] => (name, &""),
        [name, upstream] => (name, upstream),
        _ => {
            return Err(format!(
                "wrong arguments `{}`; usage: cargo xtask source PACKAGE [UPSTREAM-VERSION]",
                words.join(" ")
            ));
        }
    };
    let mut script = Command::new("sh");
    script.arg(root.join("apps/fetch-source.sh")).arg(name);
    let status = script.arg(absolute_target(root)?.join("apps/src")).arg(upstream).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("apps/fetch-source.sh ended with {status}")),
        Err(error) => Err(format!("cannot run sh: {error}")),
    }
}
