//! This host: its CPUs, their NUMA nodes, and how many threads want to run.

use std::fs;
use std::path::Path;

/// How much the latest reading counts.
const SMOOTHING: f64 = 0.2;

/// The host.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The NUMA node of each CPU; CPUs that are not online have none.
    nodes: Vec<Option<u32>>,
    /// CPUs that are online.
    pub(crate) cpu_count: u32,
    /// Threads that want to run, this process not counted, smoothed over the latest readings.
    pub(crate) runnable: f64,
}

impl Machine {
    /// Reads what does not change.
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

    /// Takes one more reading.
    pub(crate) fn observe(&mut self) {
        if let Some(now) = runnable_now() {
            self.runnable += (now - self.runnable) * SMOOTHING;
        }
    }

    /// The NUMA node of a CPU, if there is such a CPU.
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

/// `0-3,5` and the like, see cpuset(7).
fn parse_list(text: &str) -> Vec<u32> {
    let parts = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last < 65_536).then_some(first..=last)
    });
    parts.flatten().collect()
}

fn runnable_now() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    // Who reads this runs.
    Some((running(&text)? - 1.0).max(0.0))
}

fn running(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("procs_running "))?.trim().parse().ok()
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
    fn this_machine_has_a_cpu() {
        let mut machine = Machine::new();
        assert!(machine.cpu_count >= 1);
        machine.observe();
        assert!(machine.runnable >= 0.0);
        assert_eq!(machine.node(1 << 20), None);
        assert_eq!(running("cpu 1\nprocs_running 7\n"), Some(7.0));
    }
}
