//! Raw calls: pinning, the limit of open files, and the signals that end the server.

use std::time::Duration;

use ::sys::signals::SignalSet;

use crate::error::{Context, Result};

/// Binds the calling thread to one CPU.
pub(crate) fn pin_to(cpu: usize) -> Result<()> {
    ::sys::cpus::pin_to(cpu)
        .context(format!("pin a thread to CPU {cpu}"), "name CPUs that this process may use")
}

/// Returns the first CPU that the process may run on.
pub(crate) fn first_allowed_cpu() -> Result<usize> {
    let allowed =
        ::sys::cpus::allowed().context("read the allowed CPUs", "name them with --cpus")?;
    Ok(allowed.first().copied().unwrap_or(0))
}

/// Raises the soft limit of open files to the hard limit: every connection is a file.
pub(crate) fn raise_open_files() -> Result<()> {
    ::sys::limits::raise_open_files()
        .map(drop)
        .context("raise the limit of open files", "check `ulimit -Hn`")
}

/// The signals that end the server: SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Signals(SignalSet);

impl Signals {
    /// Blocks the signals in the calling thread, and in threads that it starts later.
    pub(crate) fn block() -> Signals {
        let set = SignalSet::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        set.block();
        Signals(set)
    }

    /// Sleeps until one of the signals arrives.
    pub(crate) fn wait(&self) {
        while self.0.wait_within(Duration::MAX).is_none() {}
    }
}
