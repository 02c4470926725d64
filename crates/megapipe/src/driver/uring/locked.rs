//! Tells how much locked memory a ring takes, and whether that of several rings is free.
//!
//! All rings of a user share the limit `RLIMIT_MEMLOCK`, and the kernel tells nobody how much of it
//! is in use. It counts registered buffers in the same way, and frees them at once, where the
//! memory of a closed ring stays counted for some milliseconds.

use super::buffers::ENTRY_BYTES;
use super::ring::{COMPLETION_BYTES, SUBMISSION_BYTES, submissions};
use crate::config::Config;
use crate::sys::Mapping;
use io_uring::IoUring;
use std::io;
use std::thread;

/// The kernel's limit on the buffers of a ring.
const BUFFERS_MAX: usize = 1 << 14;

/// Returns the bytes of locked memory that the ring of one channel takes: its queues and the rings
/// of its provided buffers, each in whole pages.
pub(crate) fn locked_bytes(config: &Config) -> usize {
    let pages = |count: usize, bytes: usize| (count * bytes).next_multiple_of(page_bytes());
    let buffers = |count: u16| pages(count.into(), ENTRY_BYTES);
    // The heads and tails of both queues precede the completions.
    pages(config.completions as usize + 4, COMPLETION_BYTES)
        + pages(submissions(config.batch, config.completions) as usize, SUBMISSION_BYTES)
        + buffers(config.small_buffers.count)
        + buffers(config.large_buffers.count)
}

/// Locks as much memory as `count` rings take, and unlocks it.
///
/// # Errors
/// `ENOMEM` if the limit does not permit so much. Those of io_uring_setup(2).
pub(crate) fn try_to_lock(config: &Config, count: usize) -> io::Result<()> {
    let bytes = locked_bytes(config);
    // The kernel interrupts the calls of a thread that has closed a ring.
    let thread = thread::Builder::new().spawn(move || {
        let ring: IoUring = IoUring::builder().dontfork().build(1)?;
        // Rings count since Linux 6.14. This is the first feature after it that a ring shows.
        if !ring.params().is_feature_no_iowait() {
            return Ok(());
        }
        let memory = Mapping::anonymous(bytes)?;
        // A large page would count once. A kernel that has none refuses the advice.
        let _ = memory.advise(libc::MADV_NOHUGEPAGE);
        let buffer = libc::iovec { iov_base: memory.address().cast(), iov_len: bytes };
        let buffers = vec![buffer; count.min(BUFFERS_MAX)];
        // SAFETY: no request uses the buffers, which stay mapped until they are unregistered, or
        // until the ring is dropped.
        unsafe { ring.submitter().register_buffers(&buffers)? };
        ring.submitter().unregister_buffers()
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

fn page_bytes() -> usize {
    // SAFETY: the call takes only a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, DriverChoice, DriverKind, Error};
    use testkit::eventually;

    const CHANNELS: usize = 10;

    /// Makes rings count: they do in a process without capabilities. Nobody else has this user, if
    /// this one may change.
    fn limit_memory(bytes: usize) {
        let limit = libc::rlimit { rlim_cur: bytes as u64, rlim_max: bytes as u64 };
        // SAFETY: the limit is valid for reads, and the other call takes a number.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
            libc::setuid(1_000_000_000 + std::process::id());
        }
    }

    #[test]
    fn as_many_channels_get_rings_as_the_check_says() {
        let name = "driver::uring::locked::tests::as_many_channels_get_rings_as_the_check_says";
        testkit::process::alone(name, || {
            let config = Config::default();
            assert_eq!(config.locked_bytes(), 104 << 10);
            let alone = testkit::is_root();
            limit_memory(config.locked_bytes() * CHANNELS + (52 << 10));
            match config.check_locked_memory(CHANNELS + 1) {
                Ok(()) => return testkit::skip(name, "rings do not count as locked memory here"),
                Err(Error::LockedMemory { channels: 11, bytes: 1_171_456, .. }) => {}
                Err(error) => panic!("{error}"),
            }
            let named = Config { driver: DriverChoice::Epoll, ..Config::default() };
            named.check_locked_memory(CHANNELS + 1).unwrap();
            if !alone {
                return;
            }
            let fits = |channels| config.check_locked_memory(channels).is_ok();
            assert!(fits(CHANNELS));
            let channels = (0..=CHANNELS).map(|_| Channel::<()>::with_config(config.clone()));
            let channels: Vec<_> = channels.map(Result::unwrap).collect();
            let kinds = channels.iter().map(|channel| channel.driver().kind);
            assert_eq!(kinds.filter(|kind| *kind == DriverKind::Uring).count(), CHANNELS);
            assert!(!fits(1));
            drop(channels);
            assert!(eventually(testkit::process::TIME_LIMIT, || fits(CHANNELS)), "not released");
        });
    }
}
