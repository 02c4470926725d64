//! Tests of real programs: nginx, memcached and redis on the channel, and unmodified programs under
//! the preload libraries.
//!
//! This library is shared by the tests (`tests/`) and the programs behind `cargo xtask operations`
//! and `cargo xtask programs`. It starts programs that `cargo xtask apps` has built, and ends them
//! in any case.
//!
//! # Modules
//!
//! - [`nginx`], [`memcached`], [`redis`]: the distribution's programs, unmodified or on the
//!   channel.
//! - `daemon`, `process`, `port`: nginx as a daemon, processes that end with the test, free ports.
//! - `options`: the command lines of the programs.
//! - [`http`]: an HTTP client that can write byte by byte and checks strictly what it reads.
//! - [`operations`]: actions of operators and clients on a stock and on an adapted server.
//! - [`programs`]: test suites and programs of others, with and without a preload library.

mod daemon;
pub mod http;
pub mod memcached;
pub mod nginx;
pub mod operations;
mod options;
mod port;
mod process;
pub mod programs;
pub mod redis;

pub use daemon::Daemon;
pub use options::{Options, finish};
pub use port::Port;
pub use process::{Running, raise_descriptor_limit, send_signal};

use std::env;
use std::io;
use std::path::{Path, PathBuf};
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

/// Returns the path of something below the target directory that `cargo xtask apps` builds.
///
/// # Errors
/// If it is missing.
pub fn built(name: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = target_dir().join(name);
    if path.exists() {
        return Ok(path);
    }
    let error = format!("{} is missing: build it with `cargo xtask apps`", path.display());
    Err(io::Error::new(io::ErrorKind::NotFound, error))
}

/// Returns the first word of each line: the releases in a file `releases`.
fn first_words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter_map(|line| line.split(' ').next())
}

/// Returns the path of a library of the workspace, which was built with this program.
fn library(name: &str) -> io::Result<PathBuf> {
    let own = env::current_exe()?;
    let mut files = own.ancestors().skip(1).map(|directory| directory.join(name));
    files.find(|path| path.exists()).ok_or_else(|| {
        let error = format!("{name} is missing beside {}: cargo build --workspace", own.display());
        io::Error::new(io::ErrorKind::NotFound, error)
    })
}
