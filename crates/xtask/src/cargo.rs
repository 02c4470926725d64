//! Builds command lines of cargo, and determines its target directory.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file that this process runs, also when a build has replaced it in the target directory, as
/// one of the whole workspace does (proc_pid_exe(5)).
const THIS_PROGRAM: &str = "/proc/self/exe";

/// A cargo command line with its environment.
#[derive(Clone)]
pub(crate) struct Cargo {
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) arguments: Vec<String>,
}

impl Cargo {
    /// Makes a command line from words that are separated by spaces. `xtask` as the first word
    /// stands for this program.
    pub(crate) fn new(words: &str) -> Cargo {
        let arguments = words.split(' ').map(String::from).collect();
        Cargo { environment: Vec::new(), arguments }
    }

    /// Appends an argument.
    pub(crate) fn and(mut self, argument: &str) -> Cargo {
        self.arguments.push(argument.to_string());
        self
    }

    /// Sets an environment variable.
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Cargo {
        self.environment.push((name, value.to_string()));
        self
    }

    /// Gives the command its own target directory, for builds with their own compiler flags: in a
    /// shared one, each would invalidate the others.
    pub(crate) fn in_own_target_dir(self, name: &str) -> Cargo {
        let directory = target_dir().join(name);
        self.and("--target-dir").and(&directory.to_string_lossy())
    }

    /// Returns the process to start, whose standard streams are not configured yet.
    pub(crate) fn command(&self) -> Command {
        let mut command = match self.arguments.first() {
            Some(first) if first == "xtask" => {
                let mut command = Command::new(THIS_PROGRAM);
                command.args(&self.arguments[1..]);
                command
            }
            _ => {
                let mut command = cargo();
                command.args(&self.arguments);
                command
            }
        };
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The cargo that runs us, so that every step uses the same toolchain.
pub(crate) fn program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns cargo without the variables that it has set for xtask. Some build scripts depend on them
/// (that of `ring`): a user's own cargo would build everything above these again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(program());
    let of_package =
        |name: &str| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        command.env_remove(name);
    }
    command
}

/// Formats the command as a user would type it.
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

/// Returns the target directory, relative to the root unless the environment sets another one.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Returns the target directory as an absolute path; creates it if necessary.
pub(crate) fn absolute_target(root: &Path) -> Result<PathBuf, String> {
    let target = root.join(target_dir());
    let unusable = |error| format!("cannot use {}: {error}", target.display());
    fs::create_dir_all(&target).map_err(unusable)?;
    target.canonicalize().map_err(unusable)
}

/// Returns the directory for programs that only this workspace uses.
pub(crate) fn tools() -> PathBuf {
    target_dir().join("tools")
}

/// Returns the command that compiles a version of a program into [`tools`], without its default
/// features and without optimization, which takes more time than it saves in one run.
pub(crate) fn install_tool(name: &str, version: &str) -> Cargo {
    Cargo::new("install --locked --no-default-features --debug --quiet --version")
        .and(version)
        .and("--root")
        .and(&tools().to_string_lossy())
        .and(name)
        .with("CARGO_PROFILE_DEV_DEBUG", "0")
}

/// Returns the target triple of this machine.
pub(crate) fn host_triple() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output();
    let output = output
        .map_err(|error| format!("cannot run `rustc -vV`: {error}; add rustc to the PATH"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from).ok_or_else(|| {
        "`rustc -vV` names no host; run it to see its error, and reinstall the toolchain"
            .to_string()
    })
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
    fn xtask_is_this_program_even_if_its_file_is_gone() {
        const NAME: &str = "cargo::tests::xtask_is_this_program_even_if_its_file_is_gone";
        const STAGE: &str = "XTASK_TEST_STAGE";
        let this = env::current_exe().unwrap();
        let output = match env::var(STAGE).as_deref() {
            Ok("copy") => {
                fs::remove_file(this).unwrap();
                Cargo::new("xtask --nocapture --exact")
                    .and(NAME)
                    .with(STAGE, "end")
                    .command()
                    .output()
            }
            Ok(_) => return println!("reached the end"),
            Err(_) => {
                let directory = tempfile::tempdir().unwrap();
                let copy = directory.path().join("copy");
                // By another process: a child of a parallel test could inherit a descriptor with
                // which the file is written, and it could not be executed as long.
                assert!(Command::new("cp").args([&this, &copy]).status().unwrap().success());
                Command::new(copy)
                    .args(["--nocapture", "--exact", NAME])
                    .env(STAGE, "copy")
                    .output()
            }
        };
        let output = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        println!("{output}");
        assert!(output.contains("reached the end"));
    }
}
