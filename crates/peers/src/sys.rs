//! The few raw calls: pinning, the limit of open files, and the signals that end the server.

use std::io;

use crate::error::{Context, Result};

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Binds the calling thread to one CPU.
pub(crate) fn pin_to(cpu: usize) -> Result<()> {
    ipcload::pin_to(cpu)
        .context(format!("pin a thread to CPU {cpu}"), "name CPUs that this process may use")
}

/// The first CPU that the process may run on.
pub(crate) fn first_allowed_cpu() -> Result<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes of the size passed.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) })
        .context("read the allowed CPUs", "name them with --cpus")?;
    // SAFETY: every index is below CPU_SETSIZE.
    let is_allowed = |&cpu: &usize| unsafe { libc::CPU_ISSET(cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).find(is_allowed).unwrap_or(0))
}

/// Raises the soft limit of open files to the hard one: every connection is a file.
pub(crate) fn raise_open_files() -> Result<()> {
    const REMEDY: &str = "check `ulimit -Hn`";
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })
        .context("read the limit of open files", REMEDY)?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is valid for reads.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })
        .context("raise the limit of open files", REMEDY)
}

/// The signals that end the server: SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks them in the calling thread, and so in all that it starts.
    pub(crate) fn block() -> Signals {
        // SAFETY: sigset_t is plain data; sigemptyset below makes it a defined set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is valid for writes and the numbers are constants of the platform.
        unsafe {
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        Signals(set)
    }

    /// Sleeps until one of them arrives.
    pub(crate) fn wait(&self) {
        let mut signal = 0;
        // SAFETY: the set is valid for reads and `signal` for writes.
        while unsafe { libc::sigwait(&self.0, &mut signal) } != 0 {}
    }
}
