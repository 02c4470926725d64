//! Processes that end with the test.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process gets to end by itself before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A process that is asked to end, and killed if it does not, when this is dropped.
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

    /// The process itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal; an error if the process has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // The child is not waited for, so the id is its own.
        send_signal(self.child.id(), signal)
    }

    /// Waits until it ends; `TimedOut` if it does not in time.
    pub fn wait(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                let what = format!("process {} still runs after {patience:?}", self.child.id());
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = matches!(self.child.try_wait(), Ok(Some(_)));
        if !ended && (self.signal(libc::SIGTERM).is_err() || self.wait(PATIENCE).is_err()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal to a process of this test; an error if there is none with this id.
pub fn send_signal(id: u32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes numbers alone.
    match unsafe { libc::kill(id.cast_signed(), signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets this process open as many descriptors as it may.
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

/// The CPUs that this thread may run on; at least one.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: a set of CPUs is plain bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is alive and its size is given.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the numbers are below what the set has room for.
    let is_allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(is_allowed).collect())
}

/// Keeps this thread on one of the CPUs that [`allowed_cpus`] gives.
pub fn stay_on(cpu: usize) -> io::Result<()> {
    // SAFETY: a set of CPUs is plain bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number came from a set of the same size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is alive and its size is given.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks again and again until the answer is yes; whether it was in time.
pub fn eventually(patience: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !ready() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}
