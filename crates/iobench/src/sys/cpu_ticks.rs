//! Reads busy and stolen time of CPUs from /proc/stat.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::{Context, Result};
use crate::sys::interrupts;

/// Nanoseconds per unit of /proc/stat (USER_HZ is 100 on every present Linux).
pub(crate) const TICK_NS: u64 = 10_000_000;

/// Sums over the watched CPUs, in ticks since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuTicks {
    /// All time but idle, waiting and stolen time. Interrupts are included if the kernel includes
    /// them in a thread's CPU time.
    pub(crate) busy: u64,
    /// Time that the host gave to other virtual machines.
    pub(crate) steal: u64,
}

/// Reads /proc/stat for some CPUs.
pub(crate) struct CpuReader {
    file: File,
    watched: Vec<usize>,
    counts_interrupts: bool,
    buffer: Vec<u8>,
}

impl CpuReader {
    pub(crate) fn new(cpus: &[usize]) -> Result<CpuReader> {
        let file = File::open("/proc/stat").context("open /proc/stat", "mount /proc")?;
        // The lines of the CPUs come first, one per CPU online, well under 256 bytes each.
        let highest = cpus.iter().copied().max().unwrap_or(0);
        let buffer = vec![0; (highest + 2) * 256];
        let counts_interrupts = !interrupts::are_kept_apart();
        Ok(CpuReader { file, watched: cpus.to_vec(), counts_interrupts, buffer })
    }

    pub(crate) fn read(&mut self) -> CpuTicks {
        let length = self.file.read_at(&mut self.buffer, 0).unwrap_or(0);
        parse_cpu_ticks(&self.buffer[..length], &self.watched, self.counts_interrupts)
    }
}

fn parse_cpu_ticks(text: &[u8], watched: &[usize], counts_interrupts: bool) -> CpuTicks {
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
        let interrupts = if counts_interrupts { irq + softirq } else { 0 };
        sum.busy += user + nice + system + interrupts;
        sum.steal += steal;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_the_watched_cpus_are_added_up() {
        let text = b"cpu  99 99 99 99 99 99 99 99 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n\
                     cpu1 10 20 30 40 50 60 70 80 0 0\ncpu11 7 7 7 7 7 7 7 7 0 0\nintr 5\n";
        let ticks = |watched: &[usize]| parse_cpu_ticks(text, watched, true);
        assert_eq!(ticks(&[0, 1]), CpuTicks { busy: 209, steal: 88 });
        assert_eq!(ticks(&[1]), CpuTicks { busy: 190, steal: 80 });
        assert_eq!(ticks(&[5]), CpuTicks::default());
        let without = parse_cpu_ticks(text, &[1], false);
        assert_eq!(without, CpuTicks { busy: 60, steal: 80 });
    }
}
