//! What /proc says about stolen time and about single threads, read through descriptors that stay
//! open, so that a sample is a handful of preads.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::{Context, Result};

/// Nanoseconds per unit of /proc/stat (USER_HZ is 100 on every Linux of today).
pub(crate) const TICK_NS: u64 = 10_000_000;

/// Sums over the watched CPUs, in ticks since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuTicks {
    /// Everything but idle, waiting and stolen time. Interrupt work is included, because a
    /// thread's own time includes the interrupts that it was interrupted by.
    pub(crate) busy: u64,
    /// Time that the host gave to somebody else.
    pub(crate) steal: u64,
}

/// Reads /proc/stat for some CPUs.
pub(crate) struct CpuReader {
    file: File,
    watched: Vec<usize>,
    buffer: Vec<u8>,
}

impl CpuReader {
    pub(crate) fn new(cpus: &[usize]) -> Result<CpuReader> {
        let file = File::open("/proc/stat").context("open /proc/stat", "mount /proc")?;
        // The lines of the CPUs come first, one per CPU online, well under 256 bytes each.
        let highest = cpus.iter().copied().max().unwrap_or(0);
        Ok(CpuReader { file, watched: cpus.to_vec(), buffer: vec![0; (highest + 2) * 256] })
    }

    pub(crate) fn read(&mut self) -> CpuTicks {
        let length = self.file.read_at(&mut self.buffer, 0).unwrap_or(0);
        parse_cpu_ticks(&self.buffer[..length], &self.watched)
    }
}

fn parse_cpu_ticks(text: &[u8], watched: &[usize]) -> CpuTicks {
    let mut sum = CpuTicks::default();
    for line in text.split(|&byte| byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let Some(rest) = line.strip_prefix("cpu") else { continue };
        let mut fields = rest.split(' ');
        let Some(Ok(cpu)) = fields.next().map(str::parse::<usize>) else { continue };
        if !watched.contains(&cpu) {
            continue;
        }
        let mut values = [0_u64; 8];
        for (value, field) in values.iter_mut().zip(fields) {
            *value = field.parse().unwrap_or(0);
        }
        let [user, nice, system, _idle, _wait, irq, softirq, steal] = values;
        sum.busy += user + nice + system + irq + softirq;
        sum.steal += steal;
    }
    sum
}

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

    /// Zeros when the thread is gone.
    pub(crate) fn read(&self) -> ThreadTimes {
        let mut buffer = [0_u8; 96];
        let length = self.file.read_at(&mut buffer, 0).unwrap_or(0);
        parse_schedstat(&buffer[..length])
    }
}

/// The kernel's own threads that finish the network's work (ksoftirqd) on some CPUs when it is too
/// much for the interrupts; none where /proc hides them.
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
    fn ticks_of_the_watched_cpus_are_added_up() {
        let text = b"cpu  99 99 99 99 99 99 99 99 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n\
                     cpu1 10 20 30 40 50 60 70 80 0 0\ncpu11 7 7 7 7 7 7 7 7 0 0\nintr 5\n";
        assert_eq!(parse_cpu_ticks(text, &[0, 1]), CpuTicks { busy: 209, steal: 88 });
        assert_eq!(parse_cpu_ticks(text, &[1]), CpuTicks { busy: 190, steal: 80 });
        assert_eq!(parse_cpu_ticks(text, &[5]), CpuTicks::default());
    }

    #[test]
    fn a_thread_can_read_its_own_times() {
        let reader =
            ThreadReader::new(std::process::id(), crate::sys::affinity::thread_id()).unwrap();
        // A running thread's time is brought up to date at the latest when it stops to run.
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(reader.read().run_ns > 0);
        assert_eq!(parse_schedstat(b"12 34 5\n"), ThreadTimes { run_ns: 12, delay_ns: 34 });
        assert_eq!(parse_schedstat(b""), ThreadTimes::default());
    }
}
