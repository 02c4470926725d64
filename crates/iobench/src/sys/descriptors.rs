//! Creates threads with a descriptor table of their own: the kernel limits the open files of each
//! table.

use std::os::fd::RawFd;
use std::thread::{Builder, JoinHandle};

use crate::error::{Context, Result};

/// The first descriptor beyond standard input, output and errors.
const FIRST: RawFd = 3;

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
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()).context(
            "give a thread a table of open files of its own",
            "the kernel needs close_range (Linux 5.9)",
        ),
    }
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
