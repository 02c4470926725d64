//! Processes with fewer rights: what they can still do, and what the kernel knows of them.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::ffi::{c_int, c_long};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// How a system call in a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It succeeded.
    Succeeded,
    /// It failed with this errno.
    Failed(i32),
    /// A signal ended the process.
    Killed(c_int),
    /// The child could not be restricted.
    Unrestricted,
}

/// Makes a child process, restricts it, and tries one system call there, with up to six arguments.
///
/// `restrict` runs after fork(2) in a process with other threads: it must not allocate memory or
/// take locks. It returns whether it has succeeded.
///
/// # Panics
/// If there can be no child.
#[track_caller]
pub fn try_call<const N: usize>(
    restrict: impl FnOnce() -> bool,
    number: c_long,
    arguments: [c_long; N],
) -> CallOutcome {
    /// Above all errnos.
    const UNRESTRICTED: c_int = 255;
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    let [first, second, third, fourth, fifth, sixth] = all;
    // SAFETY: the child calls only `restrict`, which the caller vouches for, and the kernel.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork: {}", io::Error::last_os_error());
    if child == 0 {
        let status = if restrict() {
            // SAFETY: what the call does, it does to the child, which ends now.
            match unsafe { libc::syscall(number, first, second, third, fourth, fifth, sixth) } {
                -1 => io::Error::last_os_error().raw_os_error().unwrap_or(UNRESTRICTED),
                _ => 0,
            }
        } else {
            UNRESTRICTED
        };
        // SAFETY: it ends the process and runs nothing of the parent's.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: the status is valid for writes, and the child is this process's.
    let ended = crate::retried(|| match unsafe { libc::waitpid(child, &mut status, 0) } {
        -1 => Err(io::Error::last_os_error()),
        ended => Ok(ended),
    });
    assert_eq!(ended.expect("a child"), child);
    if libc::WIFSIGNALED(status) {
        return CallOutcome::Killed(libc::WTERMSIG(status));
    }
    match libc::WEXITSTATUS(status) {
        0 => CallOutcome::Succeeded,
        UNRESTRICTED => CallOutcome::Unrestricted,
        errno => CallOutcome::Failed(errno),
    }
}

/// Returns a line of `/proc/PID/task/TID/status` for each thread of a process, with the thread's
/// name: the text behind `name` and a colon.
///
/// # Panics
/// If the process is gone, or there is no such line.
#[track_caller]
pub fn of_threads(process: u32, name: &str) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let read = |task: io::Result<std::fs::DirEntry>| {
        let task = task.expect("a thread").path().join("status");
        // A thread may have ended in the meantime.
        let text = std::fs::read_to_string(task).ok()?;
        let of = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let line = lines.find(|(known, _)| *known == name);
            let words = line.expect("the line").1.split_whitespace();
            words.collect::<Vec<_>>().join(" ")
        };
        Some((of("Name"), of(name)))
    };
    tasks.filter_map(read).collect()
}

/// Lets a command run where seccomp(2) fails with `EPERM`, as in some containers.
///
/// # Panics
/// If there can be no such filter here.
pub fn bar_seccomp(command: &mut Command) {
    bar_calls(command, &[libc::SYS_seccomp]);
}

/// Lets a command run where these system calls fail with `EPERM`, as in some containers.
///
/// # Panics
/// If there can be no such filter here.
pub fn bar_calls(command: &mut Command, calls: &[c_long]) {
    let filter = bar(calls, libc::EPERM);
    // SAFETY: between fork(2) and execve(2), two system calls and no allocation.
    unsafe {
        command.pre_exec(move || seccompiler::apply_filter(&filter).map_err(io::Error::other));
    }
}

/// Lets a system call fail with this errno in the calling thread and in those that it starts.
///
/// # Panics
/// If there can be no such filter here.
pub fn bar_call_in_thread(number: c_long, errno: i32) {
    seccompiler::apply_filter(&bar(&[number], errno)).expect("a filter");
}

/// Returns a filter with which these system calls fail with this errno.
fn bar(calls: &[c_long], errno: i32) -> BpfProgram {
    let architecture = std::env::consts::ARCH.try_into().expect("an architecture with filters");
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let bar = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, bar, architecture);
    BpfProgram::try_from(filter.expect("a filter")).expect("a program")
}
