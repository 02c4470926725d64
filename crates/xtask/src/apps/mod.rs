//! Real programs on the channel: their distribution's sources, and what we build beside them.

pub(crate) mod edits;
mod lock;
pub(crate) mod memcached;
pub(crate) mod nginx;
pub(crate) mod source;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The channel's C library, linked into what is built, so that one file is all one installs.
fn library(root: &Path, target: &Path) -> Result<PathBuf, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked", "--package", "megapipe-capi"]);
    quietly(command.current_dir(root), "cargo build --package megapipe-capi")?;
    let library = target.join("release/libmegapipe.a");
    match library.is_file() {
        true => Ok(library),
        false => Err(format!("{} is not there after its build", library.display())),
    }
}

fn make_directory(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("cannot make {}: {error}", path.display()))
}

/// Runs a build step and shows its output only if it fails.
fn quietly(command: &mut Command, name: &str) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        format!("cannot run {name}: {error}; cargo xtask setup installs what is missing")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    let end = lines[lines.len().saturating_sub(40)..].join("\n");
    Err(format!("{name} ended with {}; the end of its output:\n{end}", output.status))
}
