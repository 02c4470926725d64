//! Outputs that take no data.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// How a program's standard error, or standard output, takes no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenOutput {
    /// The disk is full.
    Full,
    /// The reader of the pipe has gone.
    NoReader,
    /// The descriptor is closed.
    Closed,
}

impl BrokenOutput {
    /// All ways.
    pub const ALL: [BrokenOutput; 3] =
        [BrokenOutput::Full, BrokenOutput::NoReader, BrokenOutput::Closed];

    fn stdio(self) -> Stdio {
        match self {
            BrokenOutput::Full => full().into(),
            BrokenOutput::NoReader => io::pipe().expect("a pipe").1.into(),
            BrokenOutput::Closed => Stdio::null(),
        }
    }

    /// Breaks the standard error of a command.
    pub fn break_stderr(self, command: &mut Command) -> &mut Command {
        command.stderr(self.stdio());
        if self == BrokenOutput::Closed {
            // SAFETY: between fork(2) and execve(2), one system call on the child's own descriptor.
            unsafe {
                command.pre_exec(|| {
                    (libc::close(libc::STDERR_FILENO) == 0)
                        .then_some(())
                        .ok_or_else(io::Error::last_os_error)
                })
            };
        }
        command
    }
}

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("a device of every Linux")
}

/// Runs a command whose result goes to a full disk.
///
/// # Panics
/// If the command does not fail with the reason and status 1, or cannot run.
#[track_caller]
pub fn assert_result_is_not_lost(command: &mut Command) {
    let output = command.stdin(Stdio::null()).stdout(full()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{command:?}: {message}");
    assert!(message.contains("cannot write to standard output"), "{command:?}: {message}");
}
