//! Tracks the open files that the process's channels have made non-blocking.
//!
//! `O_NONBLOCK` belongs to an open file description, which duplicates share. A listener may be
//! registered with several channels of a process, by a duplicate each. The first channel that
//! leaves must not make the accepts of the others block. The lock is taken at registration, never
//! on the data path.

use crate::sys::{file_flags, file_status, set_file_flags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// fcntl(2): reports whether two descriptors share a description. Linux 6.10; libc lacks it.
const F_DUPFD_QUERY: libc::c_int = 1024 + 3;
const KCMP_FILE: libc::c_int = 0;

/// Device and inode. Both ends of a pipe have the same, and so have all timers and event counters.
type File = (libc::dev_t, libc::ino_t);

/// A descriptor that must stay non-blocking.
struct NonblockingDescriptor {
    fd: RawFd,
    /// Whether to clear the flag at the last `release`.
    restore: bool,
}

static KEPT: Mutex<BTreeMap<File, Vec<NonblockingDescriptor>>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<File, Vec<NonblockingDescriptor>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a descriptor non-blocking until `release`.
pub(crate) fn keep(fd: RawFd) -> io::Result<()> {
    let file = file_of(fd)?;
    let mut kept = lock();
    let restore = set(fd)?;
    kept.entry(file).or_default().push(NonblockingDescriptor { fd, restore });
    Ok(())
}

/// Makes a descriptor non-blocking permanently; true if it was blocking before.
pub(crate) fn set(fd: RawFd) -> io::Result<bool> {
    let flags = file_flags(fd)?;
    let blocking = flags & libc::O_NONBLOCK == 0;
    if blocking {
        set_file_flags(fd, flags | libc::O_NONBLOCK)?;
    }
    Ok(blocking)
}

/// Undoes `keep`. If another kept descriptor shares the description, its release does so instead.
pub(crate) fn release(fd: RawFd) {
    let Ok(file) = file_of(fd) else { return };
    let mut kept = lock();
    let Some(group) = kept.get_mut(&file) else { return };
    let Some(at) = group.iter().position(|other| other.fd == fd) else { return };
    let own = group.swap_remove(at);
    let heir = group.iter_mut().find(|other| own.restore && may_share(fd, other.fd));
    match heir {
        Some(heir) => heir.restore = true,
        None if own.restore => {
            if let Ok(flags) = file_flags(fd) {
                let _ = set_file_flags(fd, flags & !libc::O_NONBLOCK);
            }
        }
        None => {}
    }
    if group.is_empty() {
        kept.remove(&file);
    }
}

fn file_of(fd: RawFd) -> io::Result<File> {
    file_status(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Returns whether two descriptors of one file share their description, or may share it if the
/// kernel does not report it: a flag that stays set is better than a thread that blocks.
fn may_share(one: RawFd, other: RawFd) -> bool {
    // SAFETY: the call takes no pointers.
    match unsafe { libc::fcntl(one, F_DUPFD_QUERY, other) } {
        0 => return false,
        1 => return true,
        _ => {}
    }
    // SAFETY: the call takes no pointers.
    let order = unsafe {
        let pid = libc::getpid();
        libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_FILE, one, other)
    };
    order <= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, OwnedFd};

    fn is_nonblocking(descriptor: &impl AsRawFd) -> bool {
        file_flags(descriptor.as_raw_fd()).unwrap() & libc::O_NONBLOCK != 0
    }

    #[test]
    fn the_last_of_several_duplicates_restores_the_flag() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
        let (second, third) = (reader.try_clone().unwrap(), reader.try_clone().unwrap());
        for descriptor in [&reader, &second, &third] {
            keep(descriptor.as_raw_fd()).unwrap();
        }
        assert!(!is_nonblocking(&writer));
        for descriptor in [&reader, &third, &second] {
            assert!(is_nonblocking(&reader));
            release(descriptor.as_raw_fd());
        }
        assert!(!is_nonblocking(&reader));
    }

    #[test]
    fn what_was_nonblocking_stays_so() {
        let (reader, _writer) = std::io::pipe().unwrap();
        set(reader.as_raw_fd()).unwrap();
        keep(reader.as_raw_fd()).unwrap();
        release(reader.as_raw_fd());
        assert!(is_nonblocking(&reader));
        release(reader.as_raw_fd());
        assert!(is_nonblocking(&reader));
    }

    #[test]
    fn descriptions_of_one_file_are_told_apart() {
        let (reader, writer) = std::io::pipe().unwrap();
        keep(reader.as_raw_fd()).unwrap();
        keep(writer.as_raw_fd()).unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let again = File::open(path).unwrap();
        keep(again.as_raw_fd()).unwrap();
        for descriptor in [reader.as_raw_fd(), again.as_raw_fd()] {
            release(descriptor);
        }
        assert!(!is_nonblocking(&reader) && !is_nonblocking(&again));
        assert!(is_nonblocking(&writer));
        release(writer.as_raw_fd());
        assert!(!is_nonblocking(&writer));
    }
}
