//! Creates threads with a descriptor table of their own: the kernel limits the open files of each
//! table.

use std::io;
use std::os::fd::RawFd;
use std::thread::{Builder, JoinHandle};

use crate::error::{Context, Result};

/// The first descriptor beyond standard input, output and errors.
const FIRST: RawFd = 3;

/// A bound for the time to close all descriptors one by one.
const NUMBERS_MAX: libc::c_long = 1 << 20;

/// Runs `body` in a new thread with a descriptor table of its own, in which only standard input,
/// output and errors are open. Descriptors of other threads are invalid in it, and its own are
/// invalid in other threads: `body` must not use or drop descriptors that others opened, nor return
/// those that it opened. Its argument says whether there is such a table.
pub(crate) fn spawn_with_own_table(
    name: &str,
    body: impl FnOnce(Result<()>) + Send + 'static,
) -> Result<JoinHandle<()>> {
    Builder::new()
        .name(name.to_owned())
        .spawn(move || body(leave_table()))
        .context(format!("start the thread `{name}`"), "raise `ulimit -u`")
}

fn leave_table() -> Result<()> {
    let (first, last, flags) = (FIRST, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: plain numbers. Only descriptors of the calling thread's new table are closed, none
    // of which has an owner yet.
    let left = check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) });
    let left = left.or_else(|error| match error.raw_os_error() {
        Some(errno) if sys::is_refusal(errno) => copy_and_empty_table(),
        _ => Err(error),
    });
    left.context(
        "give a thread a table of open files of its own",
        "permit unshare in the sandbox, or close_range (Linux 5.9)",
    )
}

/// Does the same on kernels and in sandboxes without close_range(2).
fn copy_and_empty_table() -> io::Result<()> {
    // SAFETY: a plain number.
    check(unsafe { libc::unshare(libc::CLONE_FILES) }.into())?;
    // SAFETY: a plain number.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(0, NUMBERS_MAX);
    for fd in FIRST..limit as RawFd {
        // SAFETY: as in `leave_table`. Most of the numbers are of no open file.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::channel;

    use super::*;

    /// Returns the file that a descriptor of the calling thread refers to.
    fn target(descriptor: RawFd) -> Option<String> {
        let link = std::fs::read_link(format!("/proc/thread-self/fd/{descriptor}")).ok()?;
        Some(link.to_string_lossy().into_owned())
    }

    #[test]
    fn a_thread_with_its_own_table_shares_no_descriptor() {
        shares_no_descriptor();
    }

    /// Old kernels and filters of system calls refuse a call that they do not know in different
    /// ways.
    #[test]
    fn a_thread_has_its_own_table_without_close_range_too() {
        for errno in [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::EINVAL] {
            let filtered = std::thread::spawn(move || {
                testkit::bar_call_in_thread(libc::SYS_close_range, errno);
                shares_no_descriptor();
            });
            assert!(filtered.join().is_ok(), "errno {errno}");
        }
    }

    fn shares_no_descriptor() {
        let ours = File::open("/dev/null").unwrap();
        let number = ours.as_raw_fd();
        let (answers, answer) = channel();
        let thread = spawn_with_own_table("alone", move |table| {
            table.unwrap();
            let before = target(number);
            // As many files as the other table may have, so that one has the same number.
            let theirs: Vec<File> =
                (0..=number).map(|_| File::open("/dev/zero").unwrap()).collect();
            let same = theirs.iter().any(|file| file.as_raw_fd() == number);
            answers.send((before, same)).unwrap();
        });
        thread.unwrap().join().unwrap();
        assert_eq!(answer.recv().unwrap(), (None, true));
        assert_eq!(target(number).as_deref(), Some("/dev/null"));
    }
}
