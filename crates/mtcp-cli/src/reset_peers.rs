//! Implements the process that outlives a program under `mtcp run`. It sleeps until the program has
//! ended, and resets the connections of a killed program.

use mtcp::StartError;
use mtcp::config::{Config, ConfigError};
use mtcp::peer_reset::{self, SharedConnections};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The descriptors that the library passes: the shared connections, and the program
/// (pidfd_open(2)).
const CONNECTIONS: RawFd = 3;
const PROGRAM: RawFd = 4;

/// The reason why the connections cannot be reset.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResetError {
    /// It was not started by the library.
    #[error(
        "cannot read the connections of a program: {0}; do not start this command: the library of \
         `mtcp run` does"
    )]
    Connections(#[source] io::Error),
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The stack cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Waits for the program's end, and resets its connections if it was killed.
pub(crate) fn run() -> Result<(), ResetError> {
    let config = Config::from_environment()?;
    // SAFETY: the library leaves both descriptors to this process alone. If a number is not open,
    // the calls below return an error.
    let (memory, program) =
        unsafe { (OwnedFd::from_raw_fd(CONNECTIONS), OwnedFd::from_raw_fd(PROGRAM)) };
    let shared = SharedConnections::open(&memory).map_err(ResetError::Connections)?;
    await_end(&program).map_err(ResetError::Connections)?;
    let connections = shared.connections();
    if !connections.is_empty() {
        peer_reset::reset(config, &connections)?;
    }
    Ok(())
}

fn await_end(program: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let mut entry = libc::pollfd { fd: program.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: the pointer is to one valid entry.
        if unsafe { libc::poll(&raw mut entry, 1, -1) } > 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
