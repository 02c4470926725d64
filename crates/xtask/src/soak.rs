//! Runs the soak tests: many connections are opened and closed over a long time, and leaks are
//! detected.

use std::path::Path;

use crate::cargo::cargo;

/// Runs the long forms of mtcp's tests against the kernel, in release.
pub(crate) fn run(root: &Path, minutes: u64) -> Result<(), String> {
    let status = cargo()
        .current_dir(root)
        .args("test --release --locked --package systemtests-tcp --test interop".split(' '))
        .args(["--", "soak::", "crowd::", "--nocapture", "--test-threads", "1"])
        .env("MEGAPIPE_SOAK_MINUTES", minutes.to_string())
        .status()
        .map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
    if status.success() {
        Ok(())
    } else {
        Err("a test of the soak run failed; see its output above".to_string())
    }
}
