//! Processes that end with the test.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;
use testkit::eventually;

/// Time for a process to end by itself before it is killed.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// A process. Dropping this asks it to end, and kills it if it does not.
#[derive(Debug)]
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts a program.
    pub fn start(command: &mut Command) -> io::Result<Running> {
        Ok(Running { child: command.spawn()? })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal; an error if the process has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // The child was not waited for, so no other process has its id.
        send_signal(self.child.id(), signal)
    }

    /// Waits until it ends; `TimedOut` after the time-out.
    pub fn wait(&mut self, time_limit: Duration) -> io::Result<ExitStatus> {
        let mut ended = Ok(None);
        eventually(time_limit, || {
            ended = self.child.try_wait();
            !matches!(ended, Ok(None))
        });
        ended?.ok_or_else(|| {
            let what = format!("process {} still runs after {time_limit:?}", self.child.id());
            io::Error::new(io::ErrorKind::TimedOut, what)
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = matches!(self.child.try_wait(), Ok(Some(_)));
        if !ended && (self.signal(libc::SIGTERM).is_err() || self.wait(TIME_LIMIT).is_err()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal to a process of this test; an error if there is none with this id.
pub fn send_signal(id: u32, signal: i32) -> io::Result<()> {
    // SAFETY: kill(2) takes numbers only.
    match unsafe { libc::kill(id.cast_signed(), signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the soft limit of descriptors to the hard limit.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the two numbers, for which there is room.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads the two numbers.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
