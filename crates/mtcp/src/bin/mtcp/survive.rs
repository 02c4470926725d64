//! The process that outlives a program under `mtcp run`: it sleeps until the program has ended, and
//! resets the connections of one that was killed.

use mtcp::config::{Config, ConfigError};
use mtcp::{StartError, survivor};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Where the library leaves its descriptors: the ledger, and the program (pidfd_open(2)).
const LEDGER: RawFd = 3;
const PROGRAM: RawFd = 4;

/// Why the peers cannot be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SurviveError {
    /// It was not started by the library.
    #[error("the ledger of a program: {0}; only `mtcp run` starts this")]
    Ledger(#[source] io::Error),
    /// The settings are not good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The stack does not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Waits for the program's end, and tells its peers if it did not do so itself.
pub(crate) fn survive() -> Result<(), SurviveError> {
    let config = Config::from_environment()?;
    // SAFETY: the library leaves both for this process alone; a number that is not open is an
    // error of the calls below.
    let (ledger, program) =
        unsafe { (OwnedFd::from_raw_fd(LEDGER), OwnedFd::from_raw_fd(PROGRAM)) };
    let ledger = survivor::Ledger::open(&ledger).map_err(SurviveError::Ledger)?;
    await_end(&program).map_err(SurviveError::Ledger)?;
    let orphans = ledger.orphans();
    if !orphans.is_empty() {
        survivor::reset(config, &orphans)?;
    }
    Ok(())
}

fn await_end(program: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let mut entry = libc::pollfd { fd: program.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one entry is valid.
        if unsafe { libc::poll(&raw mut entry, 1, -1) } > 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
