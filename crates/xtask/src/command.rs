//! Runs other programs, and creates their directories.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Creates a directory and its parents.
pub(crate) fn make_directory(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| {
        format!(
            "cannot make {}: {error}; make its parent writable, or set CARGO_TARGET_DIR",
            path.display()
        )
    })
}

/// Runs a build step and shows its output only if it fails.
pub(crate) fn quietly(command: &mut Command, name: &str) -> Result<(), String> {
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
