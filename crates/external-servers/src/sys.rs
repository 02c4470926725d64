//! Raw calls: CPUs, the limit of open files, and the signals that end the server.

use std::time::Duration;

use ::sys::signals::SignalSet;

use crate::error::{Context, Result};

/// Binds the calling thread, and threads that it starts later, to a set of CPUs.
pub(crate) fn restrict_to(cpus: &[usize]) -> Result<()> {
    ::sys::cpus::restrict_to(&::sys::cpus::set_of(cpus)).context(
        format!("bind a thread to CPU {}", list(cpus)),
        "name CPUs that this process may use",
    )
}

/// Returns numbers as a list with commas.
fn list(cpus: &[usize]) -> String {
    cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the CPUs that the user chose, by default the first one of the process.
pub(crate) fn chosen_cpus(choice: Option<&[usize]>) -> Result<Vec<usize>> {
    if let Some(cpus) = choice {
        return Ok(cpus.to_vec());
    }
    let allowed =
        ::sys::cpus::allowed().context("read the allowed CPUs", "name them with --cpus")?;
    Ok(vec![allowed.first().copied().unwrap_or(0)])
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
