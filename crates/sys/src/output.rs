//! Writes messages to standard error and standard output for programs that go on without a reader.
//!
//! `eprintln!` panics if standard error is full or closed, and waits for ever if its reader does
//! not read. An [`Output`] drops a message that cannot be written, counts it, and says before the
//! next one that is written how many were lost. It takes no lock, so that a process made by fork(2)
//! can use it, raises no `SIGPIPE`, and calls the kernel past the hooks of a preload library.
//!
//! A command's result is not for these outputs: the program must end with an error if it cannot be
//! written.

use std::fmt::Display;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::signals::QuietPipe;

/// Standard output.
pub static STDOUT: Output = Output::new(libc::STDOUT_FILENO);
/// Standard error.
pub static STDERR: Output = Output::new(libc::STDERR_FILENO);

/// How long a message waits for a reader, in nanoseconds. The next ones wait no more, until one is
/// written.
const WAIT_NS: i64 = 100_000_000;

/// A descriptor to which whole messages are written or not.
#[derive(Debug)]
pub struct Output {
    fd: RawFd,
    /// The messages that were dropped since the last one that was written.
    lost: AtomicU64,
    /// The last message could be written only in part.
    is_cut: AtomicBool,
    /// The last message found no space within [`WAIT_NS`].
    is_stalled: AtomicBool,
}

impl Output {
    const fn new(fd: RawFd) -> Output {
        let (is_cut, is_stalled) = (AtomicBool::new(false), AtomicBool::new(false));
        Output { fd, lost: AtomicU64::new(0), is_cut, is_stalled }
    }

    /// Writes a text and a line feed, or drops and counts it.
    pub fn line(&self, text: impl Display) {
        self.write(format!("{text}\n").as_bytes());
    }

    /// Writes lines, or drops them and counts them as one message.
    pub fn write(&self, text: &[u8]) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let line_end = if self.is_cut.load(Ordering::Relaxed) { "\n" } else { "" };
        let note = match lost {
            0 => String::new(),
            _ => format!("{line_end}messages lost here, which could not be written: {lost}\n"),
        };
        let text = [note.as_bytes(), text].concat();
        let written = self.write_until_failure(&text);
        if written == text.len() {
            self.is_cut.store(false, Ordering::Relaxed);
        } else {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
            self.is_cut.fetch_or(written > 0, Ordering::Relaxed);
        }
    }

    /// Returns how many bytes were written.
    fn write_until_failure(&self, text: &[u8]) -> usize {
        let _quiet = QuietPipe::enter();
        // SAFETY: the descriptor is used only for this call. If it is closed, the calls fail.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let mut rest = text;
        while !rest.is_empty() && self.has_space(fd) {
            // Into a pipe that has space, writes of this size do not wait.
            match rustix::io::write(fd, &rest[..rest.len().min(libc::PIPE_BUF)]) {
                Ok(0) => break,
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        text.len() - rest.len()
    }

    /// Waits until the descriptor takes data or has an error.
    fn has_space(&self, fd: BorrowedFd<'_>) -> bool {
        let limit = if self.is_stalled.load(Ordering::Relaxed) { 0 } else { WAIT_NS };
        let limit = Timespec { tv_sec: 0, tv_nsec: limit };
        // After an error of poll(2), write(2) tells.
        let has_space =
            rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(&limit))
                != Ok(0);
        self.is_stalled.store(!has_space, Ordering::Relaxed);
        has_space
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    #[test]
    fn lost_messages_are_counted_and_told() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (mut reader, writer) = pipe().unwrap();
        let mut output = Output::new(full.as_raw_fd());
        output.line("one");
        output.line("two");
        output.fd = writer.as_raw_fd();
        output.line("three");
        output.line("four");
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let expected = "messages lost here, which could not be written: 2\nthree\nfour\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn without_a_reader_messages_do_not_wait() {
        let (mut reader, writer) = pipe().unwrap();
        let output = Output::new(writer.as_raw_fd());
        let text = vec![b'x'; 1 << 20];
        output.write(&text);
        assert!(output.is_cut.load(Ordering::Relaxed));
        // Only the first one waits.
        (0..1000).for_each(|_| output.line("lost"));
        assert_eq!(output.lost.load(Ordering::Relaxed), 1001);
        assert!(reader.read(&mut vec![0; 1 << 20]).unwrap() > 0);
        output.line("seen");
        let mut seen = vec![0; 100];
        let count = reader.read(&mut seen).unwrap();
        let expected = "\nmessages lost here, which could not be written: 1001\nseen\n";
        assert_eq!(String::from_utf8_lossy(&seen[..count]), expected);
    }

    #[test]
    fn a_pipe_without_a_reader_raises_no_signal() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        // The runtime of tests ignores the signal; this child does not.
        // SAFETY: the child calls only what takes no lock, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the default action is valid for the signal.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let output = Output::new(writer.as_raw_fd());
            output.write(b"lost\n");
            output.write(b"lost\n");
            let lost = output.lost.load(Ordering::Relaxed);
            // SAFETY: it ends the child and runs nothing of the parent's.
            unsafe { libc::_exit(lost as libc::c_int) };
        }
        let mut status = 0;
        // SAFETY: the status is valid for writes, and the child is this process's.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), 2);
    }
}
