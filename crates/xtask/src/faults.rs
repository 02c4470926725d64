//! `cargo xtask faults`: builds the programs of the scenarios and runs the harness of
//! `crates/faults`.

use std::path::Path;
use std::process::ExitCode;

use crate::cargo::{Cargo, cargo};

/// The programs that the harness starts, and the harness.
const BUILD: &str = "build --locked --package faults --package fabled --package fable-preload \
                     --package mtcp-cli --package mtcp-preload";

/// Runs the command, whose words are the harness's. Its exit status is the harness's: 1 if a fault
/// was found.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    let told = |error| format!("cannot run cargo: {error}; add cargo to the PATH");
    let built = Cargo::new(BUILD).command().current_dir(root).status().map_err(told)?;
    if !built.success() {
        return Err("cannot build the programs of the scenarios; correct the errors above".into());
    }
    let mut command = cargo();
    command.args(["run", "--quiet", "--locked", "--package", "faults", "--bin", "faults", "--"]);
    let status = command.args(words).current_dir(root).status().map_err(told)?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => Err(format!("the harness ended with {status}")),
    }
}
