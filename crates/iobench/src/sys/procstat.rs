//! Reads the scheduler's statistics of single threads from /proc, through descriptors that stay
//! open, so that a sample takes a few calls of pread(2).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Context, Result};

/// One thread's time on a CPU and time spent runnable but waiting for one, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThreadTimes {
    pub(crate) run_ns: u64,
    pub(crate) delay_ns: u64,
}

/// Reads one thread's schedstat.
pub(crate) struct ThreadReader {
    file: File,
}

impl ThreadReader {
    pub(crate) fn new(process: u32, thread: i32) -> Result<ThreadReader> {
        let path = format!("/proc/{process}/task/{thread}/schedstat");
        let file = File::open(&path).context(
            format!("open {path}"),
            "the kernel needs CONFIG_SCHED_INFO and the thread must be alive",
        )?;
        Ok(ThreadReader { file })
    }

    /// Returns a reader for a thread of any process; `None` if the thread has ended.
    pub(crate) fn of_living(thread: i32) -> Option<Result<ThreadReader>> {
        // The kernel finds a thread of any process by its number alone.
        let reader = ThreadReader::new(thread as u32, thread);
        let lives = || Path::new(&format!("/proc/{thread}/task/{thread}")).exists();
        (reader.is_ok() || lives()).then_some(reader)
    }

    /// Reads the times; zeros if the thread has ended.
    pub(crate) fn read(&self) -> ThreadTimes {
        let mut buffer = [0_u8; 96];
        let length = self.file.read_at(&mut buffer, 0).unwrap_or(0);
        parse_schedstat(&buffer[..length])
    }
}

/// Returns the kernel's threads (ksoftirqd) that process packets on some CPUs when there are too
/// many for the interrupts; empty if /proc hides them.
pub(crate) fn softirq_threads(cpus: &[usize]) -> Vec<ThreadReader> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let names: Vec<String> = cpus.iter().map(|cpu| format!("ksoftirqd/{cpu}")).collect();
    processes
        .filter_map(|process| process.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|process| {
            let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
            name.is_ok_and(|name| names.iter().any(|known| known == name.trim_end()))
        })
        .filter_map(|process| ThreadReader::new(process, i32::try_from(process).ok()?).ok())
        .collect()
}

fn parse_schedstat(text: &[u8]) -> ThreadTimes {
    let text = std::str::from_utf8(text).unwrap_or("");
    let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or(0));
    ThreadTimes { run_ns: fields.next().unwrap_or(0), delay_ns: fields.next().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_read_its_own_times() {
        let reader =
            ThreadReader::new(std::process::id(), crate::sys::affinity::thread_id()).unwrap();
        // The kernel updates a running thread's time at the latest when the thread stops running.
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(reader.read().run_ns > 0);
        assert_eq!(parse_schedstat(b"12 34 5\n"), ThreadTimes { run_ns: 12, delay_ns: 34 });
        assert_eq!(parse_schedstat(b""), ThreadTimes::default());
        assert!(ThreadReader::of_living(crate::sys::affinity::thread_id()).is_some());
        assert!(ThreadReader::of_living(i32::MAX).is_none(), "no such thread");
    }
}
