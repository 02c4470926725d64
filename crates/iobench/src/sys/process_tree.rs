//! Computes the CPU time and the memory of a foreign process with all its descendants.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::sys::cpu_ticks::TICK_NS;
use crate::sys::cpuclock;

/// Most processes that are followed, more than any server starts; the list comes from outside and
/// has to be bounded.
const MOST_PROCESSES: usize = 65_536;

/// Fails if the kernel does not list the children of a process.
pub(crate) fn check_supported() -> Result<()> {
    if Path::new("/proc/thread-self/children").exists() {
        return Ok(());
    }
    Err(Error::setup(
        "the kernel does not list child processes, so the CPU time of an external server is \
         unknown",
        "mount /proc, on a kernel with CONFIG_PROC_CHILDREN",
    ))
}

/// CPU time in nanoseconds of the process, its living descendants, and those that were waited for.
/// Children that were waited for count in ticks of 10 ms. The CPU time of a process that ended
/// without being waited for is lost, as everywhere in the kernel.
pub(crate) fn cpu_time_ns(process: u32) -> u64 {
    let mut total_ns = 0;
    visit(process, |process| {
        total_ns += cpuclock::process_ns(process).unwrap_or(0) + reaped_ns(process).unwrap_or(0);
    });
    total_ns
}

/// Returns the memory of the process and its living descendants in bytes: the proportional set
/// size, which divides shared pages among the processes that map them. The kernel's own memory,
/// such as that of sockets, is not part of it. `None` if the kernel does not tell it, or if a
/// process has ended.
pub(crate) fn memory_bytes(process: u32) -> Option<u64> {
    let mut total_bytes = Some(0);
    visit(process, |process| {
        let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok();
        total_bytes = total_bytes.zip(text.and_then(|text| parse_pss(&text))).map(|(a, b)| a + b);
    });
    total_bytes
}

/// Calls a function with the process and each of its living descendants.
fn visit(process: u32, mut action: impl FnMut(u32)) {
    let mut waiting = vec![process];
    for _ in 0..MOST_PROCESSES {
        let Some(process) = waiting.pop() else { break };
        action(process);
        list_children(process, &mut waiting);
    }
}

/// Returns the bytes of the line `Pss: 123 kB`.
fn parse_pss(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Returns the CPU time of the children that a process has waited for, including their own such
/// children.
fn reaped_ns(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(parse_reaped_ticks(&text)? * TICK_NS)
}

/// Fields 16 and 17 of the line, cutime and cstime.
fn parse_reaped_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may contain anything, so fields are counted after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Returns the living children of a process, in the order of their start, as far as the kernel has
/// not reused a process id.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let mut children = Vec::new();
    list_children(process, &mut children);
    children.sort_unstable();
    children
}

/// Appends the children of a process; every thread has children of its own.
fn list_children(process: u32, into: &mut Vec<u32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        into.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// A computation of the shell itself, without other programs.
    const BURN: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    /// The process prints a line when its work is done, and waits for the end of its input, so that
    /// it can be examined.
    const STAY: &str = "echo done; read unused";

    /// Returns the CPU time of a script that has reached `STAY`.
    fn time_of(script: &str) -> u64 {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
        let time_ns = cpu_time_ns(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        time_ns
    }

    #[test]
    fn children_count_whether_alive_or_waited_for() {
        assert!(check_supported().is_ok());
        let idle_ns = time_of(STAY);
        let alone_ns = time_of(&format!("{BURN}; {STAY}"));
        assert!(alone_ns > idle_ns + 10_000_000, "{alone_ns} after {idle_ns}");
        // A quarter, because machines differ and reaped time is reported in ticks.
        let reaped_ns = time_of(&format!("(:; {BURN}); {STAY}"));
        assert!(reaped_ns > alone_ns / 4, "{reaped_ns} of {alone_ns}");
        let alive_ns = time_of(&format!("(:; (:; {BURN}; {STAY}); :); :"));
        assert!(alive_ns > alone_ns / 4, "{alive_ns} of {alone_ns}");
    }

    #[test]
    fn memory_of_children_counts_and_that_of_a_process_that_is_gone_is_unknown() {
        assert_eq!(
            parse_pss("7f00-7f01 ---p\nRss:  9 kB\nPss:  \t 7 kB\nPss_Anon: 5 kB\n"),
            Some(7168)
        );
        assert_eq!(parse_pss("Rss: 9 kB\n"), None);
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo done; wait"]).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let both = memory_bytes(child.id()).unwrap();
        let [sleeping] = children(child.id())[..] else { panic!("one child") };
        let alone = memory_bytes(sleeping).unwrap();
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(sleeping as i32).unwrap(),
            rustix::process::Signal::KILL,
        );
        child.wait().unwrap();
        assert!(0 < alone && alone < both, "{alone} of {both}");
        assert_eq!(memory_bytes(child.id()), None);
    }

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 10 11 20 30 20 0 1 0 99";
        assert_eq!(parse_reaped_ticks(stat), Some(50));
        assert_eq!(parse_reaped_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn a_process_that_is_gone_has_no_time() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(cpu_time_ns(child.id()), 0);
    }
}
