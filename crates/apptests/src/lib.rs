//! What the tests of the real programs (`tests/`) share: building a program by the command that a
//! person would use, running it, and ending it whatever happens.

mod daemon;
pub mod http;
pub mod memcached;
pub mod nginx;
pub mod operations;
mod port;
mod process;
pub mod programs;

pub use daemon::Daemon;
pub use process::{Running, raise_descriptor_limit, send_signal};

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a test waits for what comes unless something hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The workspace's root.
pub fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.ancestors().nth(2).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Where cargo builds, and `cargo xtask` with it.
pub fn target_dir() -> PathBuf {
    let named = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    if named.is_absolute() { named } else { root().join(named) }
}

/// Runs `cargo xtask` with these words, and gives what it said if it fails.
pub fn xtask(words: &[&str]) -> io::Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "xtask", "--"]).args(words);
    let output = command.current_dir(root()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Err(io::Error::other(format!("cargo xtask {} failed:\n{said}", words.join(" "))))
}
