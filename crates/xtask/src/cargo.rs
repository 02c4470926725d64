//! Command lines of cargo, and where it builds.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup;

/// A cargo command line with what it needs in its environment.
#[derive(Clone)]
pub(crate) struct Cargo {
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) arguments: Vec<String>,
}

impl Cargo {
    pub(crate) fn new(words: &str) -> Cargo {
        let arguments = words.split(' ').map(String::from).collect();
        Cargo { environment: Vec::new(), arguments }
    }

    pub(crate) fn and(mut self, argument: &str) -> Cargo {
        self.arguments.push(argument.to_string());
        self
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Cargo {
        self.environment.push((name, value.to_string()));
        self
    }

    /// Legs with flags of their own get a directory of their own: in a shared one each would
    /// throw away what the other has built.
    pub(crate) fn in_own_target_dir(self, name: &str) -> Cargo {
        let directory = target_dir().join(name);
        self.and("--target-dir").and(&directory.to_string_lossy())
    }

    /// The process to start, still without its input and output.
    pub(crate) fn command(&self) -> Command {
        // The cargo that runs us, so that every step uses the same toolchain.
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(&self.arguments).env("PATH", setup::search_path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The command as one would type it.
impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        write!(f, "cargo")?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Where cargo builds, relative to the root unless the environment says otherwise.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// The target directory as an absolute path, made if need be.
pub(crate) fn absolute_target(root: &Path) -> Result<PathBuf, String> {
    let target = root.join(target_dir());
    let unusable = |error| format!("cannot use {}: {error}", target.display());
    fs::create_dir_all(&target).map_err(unusable)?;
    target.canonicalize().map_err(unusable)
}

pub(crate) fn host_triple() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output();
    let output =
        output.map_err(|error| format!("cannot run `rustc -vV`: {error}; is it there?"))?;
    host_of(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| "`rustc -vV` names no host; run it to see what is wrong".to_string())
}

fn host_of(version: &str) -> Option<String> {
    version.lines().find_map(|line| line.strip_prefix("host: ")).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_as_one_would_type_it() {
        let line = Cargo::new("test").and("it's").and("").with("RUSTFLAGS", "--cfg loom");
        assert_eq!(line.to_string(), r"RUSTFLAGS='--cfg loom' cargo test 'it'\''s' ''");
    }

    #[test]
    fn the_host_is_read_from_the_version() {
        let version = "rustc 1.88.0\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1";
        assert_eq!(host_of(version).as_deref(), Some("x86_64-unknown-linux-gnu"));
        assert_eq!(host_of("rustc 1.88.0"), None);
    }
}
