//! Connections that come and go for a long time, with what is left of them.

use std::path::Path;
use std::process::Command;

/// Runs the long forms of mtcp's tests against the kernel, in release.
pub(crate) fn run(root: &Path, minutes: u64) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(["test", "--release", "--package", "mtcp", "--locked", "--test", "interop"])
        .args(["--", "soak::", "crowd::", "--nocapture", "--test-threads", "1"])
        .env("MEGAPIPE_SOAK_MINUTES", minutes.to_string())
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("the soak has failed".to_string()) }
}
