//! Starts the process that resets the program's connections if the program is killed: `mtcp
//! reset-peers`. It gets shared memory that lists the open connections, and a descriptor of this
//! process.

use crate::outcome::{self, Outcome};
use crate::report;
use mtcp::peer_reset::SharedConnections;
use preload::real;
use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The variable with the program to start, which `mtcp run` sets.
const LAUNCHER: &str = "MTCP_RUN_LAUNCHER";
/// The least number for descriptors that are moved out of the way of the numbers that the process
/// expects.
const ASIDE: usize = 10;

/// Starts the process. Returns the list of open connections; `None`: the connections of a killed
/// program are not reset.
pub(crate) fn start() -> Option<SharedConnections> {
    let launcher = std::env::var_os(LAUNCHER)?;
    let started = start_process(launcher);
    if let Err(error) = &started {
        report::note(format_args!("a killed program's peers will not be told: {error}"));
    }
    started.ok()
}

fn start_process(launcher: OsString) -> Outcome<SharedConnections> {
    let (connections, memory) = SharedConnections::new()?;
    let process = call(libc::SYS_pidfd_open, [std::process::id() as usize, 0, 0])?;
    let process = owned(process);
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let (memory, process, null) =
        (aside(memory.as_raw_fd())?, aside(process.as_raw_fd())?, aside(null.as_raw_fd())?);
    let path = CString::new(launcher.as_bytes())?;
    let words = [path.as_ptr(), c"reset-peers".as_ptr(), std::ptr::null()];
    let environment: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| name != "LD_PRELOAD")
        .filter_map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            CString::new(name.into_vec()).ok()
        })
        .collect();
    let mut values: Vec<_> = environment.iter().map(|entry| entry.as_ptr()).collect();
    values.push(std::ptr::null());
    let descriptors = descriptors_max();
    // A child without a signal at its end: a program that waits for its own children does not find
    // it (clone(2), the low byte of flags).
    if call(libc::SYS_clone, [0, 0, 0])? == 0 {
        // This child has no other threads, so it must neither allocate memory nor take a lock.
        for (from, to) in [(&null, 0), (&null, 1), (&null, 2), (&memory, 3), (&process, 4)] {
            let _ = call(libc::SYS_dup3, [from.as_raw_fd() as usize, to, 0]);
        }
        // Kernels before Linux 5.9, and filters that do not know the call, refuse it.
        if call(libc::SYS_close_range, [5, u32::MAX as usize, 0]).is_err() {
            for fd in 5..descriptors {
                let _ = call(libc::SYS_close, [fd, 0, 0]);
            }
        }
        let _ = call(libc::SYS_setsid, [0; 3]);
        let arguments = [path.as_ptr() as usize, words.as_ptr() as usize, values.as_ptr() as usize];
        let _ = call(libc::SYS_execve, arguments);
        let _ = call(libc::SYS_exit_group, [127, 0, 0]);
    }
    Ok(connections)
}

/// Returns how many descriptors this process may have, with a bound for the time to close them.
fn descriptors_max() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local variable of the right type.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur.min(1 << 20) as usize
}

/// Makes a system call that this library does not interpose.
fn call(number: libc::c_long, [first, second, third]: [usize; 3]) -> Outcome<i32> {
    // SAFETY: the callers pass numbers, and pointers to memory that lives during the call.
    outcome::check(unsafe { real::syscall(number, first, second, third, 0, 0, 0) } as i32)
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the descriptor is new and has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn aside(fd: i32) -> Outcome<OwnedFd> {
    // SAFETY: the call takes only numbers.
    let fd = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, ASIDE) };
    outcome::check(fd).map(owned)
}
