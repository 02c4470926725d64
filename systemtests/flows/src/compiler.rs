//! Compiles the C programs and libraries of the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of `c/NAME.c`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"))
}

/// Compiles a C file without a warning, with further flags for the compiler.
#[track_caller]
pub fn compile(source: &Path, output: &Path, flags: &[&str]) {
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    compiler.args(flags).arg("-o").arg(output).arg(source);
    assert!(compiler.status().expect("a C compiler").success(), "{compiler:?}");
}
