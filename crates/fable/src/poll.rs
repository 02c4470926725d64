//! Waits for descriptors with poll(2).

use std::io;
use std::os::fd::RawFd;
use std::time::Instant;

use crate::clock::timespec;

/// Waits until one of the descriptors has an event or the deadline has passed; `None` waits without
/// limit. Returns how many have events. A signal does not end the wait.
pub(crate) fn wait(entries: &mut [libc::pollfd], deadline: Option<Instant>) -> io::Result<usize> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = left.map(timespec);
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = entries.len() as libc::nfds_t;
        // SAFETY: the entries and the time outlive the call, and the mask is not changed.
        let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), count, time, std::ptr::null()) };
        match usize::try_from(ready) {
            Ok(ready) => return Ok(ready),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Returns which of these events, errors or ends the descriptor has now.
pub(crate) fn look(descriptor: RawFd, events: i16) -> i16 {
    let mut polled = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: the entry outlives the call, which does not wait.
    unsafe { libc::poll(&raw mut polled, 1, 0) };
    polled.revents
}

/// Waits for one descriptor, as [`wait`] does. Returns whether it has one of the events, an error,
/// or an end.
pub(crate) fn wait_for(
    descriptor: RawFd,
    events: i16,
    deadline: Option<Instant>,
) -> io::Result<bool> {
    Ok(wait(&mut [libc::pollfd { fd: descriptor, events, revents: 0 }], deadline)? > 0)
}
