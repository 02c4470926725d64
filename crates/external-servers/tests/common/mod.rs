//! What the tests of the built program share.

use std::process::{Command, Stdio};
use std::time::Duration;

/// Time-out of the tests' waits, long enough for a busy machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns a command of `iobench-external`.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_iobench-external"));
    command.args(arguments).stdin(Stdio::null());
    command
}
