//! Tests of real programs: nginx and memcached on the channel, and unmodified programs under the
//! preload libraries.
//!
//! This library is shared by the tests (`tests/`) and the programs behind `cargo xtask operations`
//! and `cargo xtask programs`. It builds a program by the command that a user would run, starts it,
//! and ends it in any case.
//!
//! # Modules
//!
//! - [`nginx`], [`memcached`]: the distribution's programs, unmodified or on the channel.
//! - `daemon`, `process`, `port`: nginx as a daemon, processes that end with the test, free ports.
//! - [`http`]: an HTTP client that can write byte by byte and checks strictly what it reads.
//! - [`operations`]: actions of operators and clients on a stock and on an adapted server.
//! - [`programs`]: test suites and programs of others, with and without a preload library.

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

/// Time-out of tests; only a test that hangs exceeds it.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns the workspace's root.
pub fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.ancestors().nth(2).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns the target directory of cargo and `cargo xtask`.
pub fn target_dir() -> PathBuf {
    let named = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    if named.is_absolute() { named } else { root().join(named) }
}

/// Runs `cargo xtask` with these words; the error has its output.
pub fn xtask(words: &[&str]) -> io::Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    testkit::process::forget_package(&mut command);
    command.args(["run", "--quiet", "--package", "xtask", "--"]).args(words);
    let output = command.current_dir(root()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Err(io::Error::other(format!("cargo xtask {} failed:\n{said}", words.join(" "))))
}
