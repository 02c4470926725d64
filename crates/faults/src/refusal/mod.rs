//! Refuses one optional call of a program and its children, from the first to the last, and counts
//! how often it was made.
//!
//! Other than a filter that answers by itself, a supervisor sees the arguments, and counts. It is a
//! process of its own and no child of the program, which keeps the process number and the exit
//! status that its parent waits for.

mod optional;

pub use optional::{ALL, Optional};

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, exit};

use crate::notify::{self, Listener, Next};

/// The errnos with which sandboxes refuse a call, or kernels that lack it.
pub const ERRNOS: [(&str, i32); 3] =
    [("EPERM", libc::EPERM), ("EACCES", libc::EACCES), ("ENOSYS", libc::ENOSYS)];

/// Length of a line of the counts.
const LINE_BYTES: u64 = 64;

/// Executes a program in place of the calling process. With `refused`, that call fails; else no
/// call fails. What is watched is counted in a new file of `counts`.
///
/// Returns why the program could not be executed.
pub fn execute(
    program: &mut Command,
    refused: Option<(&'static Optional, i32)>,
    counts: &Path,
) -> io::Error {
    match start_supervisor(program, refused, counts) {
        Ok(()) => program.exec(),
        Err(error) => error,
    }
}

/// Reads what supervisors have counted in this directory: calls with how often they were made.
///
/// # Errors
/// Those of the file system.
pub fn read_counts(directory: &Path) -> io::Result<Vec<(&'static Optional, u64)>> {
    let mut sums: Vec<(&'static Optional, u64)> = Vec::new();
    for file in fs::read_dir(directory)? {
        // Lines of calls that were not made yet are holes.
        let text = fs::read_to_string(file?.path())?.replace('\0', "");
        for (name, count) in text.lines().filter_map(|line| line.trim().split_once(' ')) {
            let (Some(call), Ok(count)) = (Optional::find(name), count.trim().parse::<u64>())
            else {
                continue;
            };
            match sums.iter_mut().find(|(other, _)| *other == call) {
                Some((_, sum)) => *sum += count,
                None => sums.push((call, count)),
            }
        }
    }
    Ok(sums)
}

/// Prepares the program's filter, and starts the process that answers it.
fn start_supervisor(
    program: &mut Command,
    refused: Option<(&'static Optional, i32)>,
    counts: &Path,
) -> io::Result<()> {
    let watched: Vec<&Optional> = match refused {
        Some((call, _)) => vec![call],
        None => ALL.iter().collect(),
    };
    let mut numbers: Vec<i64> = watched.iter().map(|call| call.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let file = File::create(counts.join(std::process::id().to_string()))?;
    let socket = notify::prepare(program, numbers.into_iter())?;
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        child => {
            // SAFETY: the status is not asked for; the child ends at once.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            return Ok(());
        }
    }
    // The supervisor is no child of the program, which may wait for any child.
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } != 0 {
        exit(0);
    }
    // Without the program's end of the socket and its output: both end with the program.
    *program = Command::new("");
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for standard in 0..=2 {
        // SAFETY: plain numbers.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&null), standard) };
    }
    let errno = refused.map(|(_, errno)| errno);
    exit(i32::from(follow(&socket, &watched, errno, &file).is_err()))
}

/// Answers the program's calls until no process has the filter any more.
fn follow(
    socket: &OwnedFd,
    watched: &[&Optional],
    errno: Option<i32>,
    file: &File,
) -> io::Result<()> {
    let Some(listener) = Listener::take(socket)? else { return Ok(()) };
    let mut counts = vec![0_u64; watched.len()];
    while let Next::Notice(notice) = listener.next(None)? {
        let matches = |call: &&Optional| call.matches(notice.number, &notice.arguments);
        let found = watched.iter().position(matches);
        if let Some(index) = found {
            counts[index] += 1;
            let line = format!("{} {}", watched[index].name, counts[index]);
            let line = format!("{line:<width$}\n", width = LINE_BYTES as usize - 1);
            file.write_all_at(line.as_bytes(), index as u64 * LINE_BYTES)?;
        }
        match errno.filter(|_| found.is_some()) {
            Some(errno) => listener.fail(&notice, errno),
            None => listener.proceed(&notice),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_listed_twice_and_each_name_fits_in_a_line() {
        for (index, call) in ALL.iter().enumerate() {
            assert_eq!(Optional::find(call.name), Some(call));
            assert!(ALL[..index].iter().all(|other| other.name != call.name), "{}", call.name);
            assert!(call.name.len() + 22 < LINE_BYTES as usize, "{}", call.name);
        }
    }

    #[test]
    fn a_call_is_told_from_others_by_its_arguments() {
        let option = Optional::find("setsockopt(SO_MARK)").unwrap();
        let arguments = |level: i32, name: i32| [3, level as u64, name as u64, 0, 4, 0];
        let mark = arguments(libc::SOL_SOCKET, libc::SO_MARK);
        assert!(option.matches(libc::SYS_setsockopt, &mark));
        assert!(!option.matches(libc::SYS_getsockopt, &mark));
        let other = arguments(libc::SOL_SOCKET, libc::SO_LINGER);
        assert!(!option.matches(libc::SYS_setsockopt, &other));
        let limit = Optional::find("prlimit64(SET)").unwrap();
        assert!(limit.matches(libc::SYS_prlimit64, &[0, 7, 0x7fff_0000, 0, 0, 0]));
        assert!(!limit.matches(libc::SYS_prlimit64, &[0, 7, 0, 0x7fff_0000, 0, 0]));
    }
}
