//! Facts about this host: its CPUs, their NUMA nodes, and how many threads are runnable.

use std::fs;
use std::path::Path;

/// The weight of the latest reading.
const SMOOTHING: f64 = 0.2;

/// The CPUs and the load of this host.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The NUMA node of each CPU; CPUs that are not online have none.
    nodes: Vec<Option<u32>>,
    /// CPUs that are online.
    pub(crate) cpu_count: u32,
    /// Runnable threads, without this process, smoothed over the latest readings.
    pub(crate) runnable: f64,
}

impl Machine {
    /// Reads the facts that do not change.
    pub(crate) fn new() -> Machine {
        let online = read_list(Path::new("/sys/devices/system/cpu/online"));
        let mut nodes = vec![None; online.iter().max().map_or(0, |last| *last as usize + 1)];
        for &cpu in &online {
            nodes[cpu as usize] = Some(0);
        }
        for node in read_list(Path::new("/sys/devices/system/node/online")) {
            let file = format!("/sys/devices/system/node/node{node}/cpulist");
            for cpu in read_list(Path::new(&file)) {
                if let Some(place) = nodes.get_mut(cpu as usize) {
                    *place = Some(node);
                }
            }
        }
        let cpu_count = u32::try_from(online.len()).unwrap_or(u32::MAX).max(1);
        let mut machine = Machine { nodes, cpu_count, runnable: 0.0 };
        machine.runnable = runnable_now().unwrap_or(0.0);
        machine
    }

    /// Reads the load again.
    pub(crate) fn observe(&mut self) {
        if let Some(now) = runnable_now() {
            self.smooth(now);
        }
    }

    fn smooth(&mut self, now: f64) {
        self.runnable += (now - self.runnable) * SMOOTHING;
    }

    /// Returns the NUMA node of a CPU, if there is such a CPU.
    pub(crate) fn node(&self, cpu: u32) -> Option<u32> {
        self.nodes.get(cpu as usize).copied().flatten()
    }
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

fn read_list(path: &Path) -> Vec<u32> {
    parse_list(&fs::read_to_string(path).unwrap_or_default())
}

/// Parses a list such as `0-3,5`, see cpuset(7).
fn parse_list(text: &str) -> Vec<u32> {
    let parts = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last < 65_536).then_some(first..=last)
    });
    parts.flatten().collect()
}

fn runnable_now() -> Option<f64> {
    runnable(&fs::read_to_string("/proc/stat").ok()?)
}

fn runnable(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("procs_running "))?;
    let running: f64 = line.trim().parse().ok()?;
    // The reading thread itself is runnable.
    Some((running - 1.0).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_understood() {
        assert_eq!(parse_list("0-2,5,7-7\n"), [0, 1, 2, 5, 7]);
        assert_eq!(parse_list(""), [0_u32; 0]);
        assert_eq!(parse_list("x-3,1"), [1]);
    }

    #[test]
    fn the_cpu_of_this_thread_has_a_node() {
        let machine = Machine::new();
        // SAFETY: no arguments.
        let cpu = unsafe { libc::sched_getcpu() };
        let cpu = u32::try_from(cpu).expect("the kernel says where a thread runs");
        assert!(machine.node(cpu).is_some(), "CPU {cpu} of {machine:?}");
        assert_eq!(machine.node(1 << 20), None);
        let nodes = machine.nodes.iter().flatten();
        assert_eq!(nodes.count(), machine.cpu_count as usize);
    }

    #[test]
    fn threads_that_want_to_run_are_counted_without_the_reader() {
        assert_eq!(runnable("cpu 1\nprocs_running 7\n"), Some(6.0));
        assert_eq!(runnable("procs_running 0\n"), Some(0.0));
        assert_eq!(runnable("cpu 1\nprocs_blocked 7\n"), None);
        assert!(runnable_now().is_some(), "/proc/stat of this kernel");
    }

    #[test]
    fn readings_count_by_a_fifth() {
        let mut machine = Machine { nodes: Vec::new(), cpu_count: 1, runnable: 0.0 };
        machine.smooth(5.0);
        assert_eq!(machine.runnable, 1.0);
        machine.smooth(1.0);
        assert_eq!(machine.runnable, 1.0);
        machine.smooth(0.0);
        assert_eq!(machine.runnable, 0.8);
    }
}
