//! Stores which kernel sockets were shut down before they were connected.

use crate::outcome::Outcome;
use crate::state::{self, EarlyShutdown, File, Guard};
use core::ffi::c_int;
use std::net::Shutdown;

/// Records that a socket that is not connected was shut down.
///
/// # Errors
/// The errors of the lock.
pub(crate) fn note(fd: c_int, how: Shutdown) -> Outcome<()> {
    let mut guard = state::lock()?;
    let Some(file) = file_of(fd) else { return Ok(()) };
    let mut known = take(&mut guard, fd);
    known.retain(|known| *known != how);
    let own = known.into_iter().chain([how]).map(|how| EarlyShutdown { file, how });
    guard.state().shut.extend(own);
    Ok(())
}

/// Takes the recorded shutdowns of a socket.
pub(crate) fn take(guard: &mut Guard, fd: c_int) -> Vec<Shutdown> {
    let shut = &mut guard.state().shut;
    let file = if shut.is_empty() { None } else { file_of(fd) };
    let own = shut.extract_if(.., |early| Some(early.file) == file);
    own.map(|early| early.how).collect()
}

/// Returns the file of a descriptor.
pub(crate) fn file_of(fd: c_int) -> Option<File> {
    // SAFETY: the structure is plain data, which the call fills.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut status) == 0).then_some((status.st_dev, status.st_ino))
    }
}
