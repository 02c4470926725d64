//! Samples what processes hold: memory, mappings, descriptors, threads, shared memory, and the
//! sockets of their network namespace.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Index;

/// What is sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    /// Anonymous and shared memory in KiB, shared pages by their part. Pages of files are left out:
    /// the kernel may take them.
    Memory,
    /// Resident memory in KiB.
    Resident,
    Mappings,
    Descriptors,
    Threads,
    Processes,
    /// Descriptors and mappings of memfd_create(2) and /dev/shm.
    Shared,
    /// TCP sockets that neither listen nor wait in TIME-WAIT, and UNIX sockets.
    Sockets,
}

/// A figure's name, and what it may grow by.
pub(crate) struct Bound {
    pub(crate) figure: Figure,
    pub(crate) name: &'static str,
    /// A leak is a slope whose whole interval is above this growth per cycle.
    pub(crate) per_cycle: f64,
    /// The growth of a whole run that is a leak in any case.
    pub(crate) in_all: f64,
}

const fn bound(figure: Figure, name: &'static str, per_cycle: f64, in_all: f64) -> Bound {
    Bound { figure, name, per_cycle, in_all }
}

/// Memory comes in pages: a growth of less than one in a cycle of hundreds of connections is below
/// what can be told from noise. A count that grows once in ten cycles is a leak.
pub(crate) const BOUNDS: [Bound; 8] = [
    bound(Figure::Memory, "memory KiB", 4.0, 32_768.0),
    bound(Figure::Resident, "resident KiB", 4.0, 32_768.0),
    bound(Figure::Mappings, "mappings", 0.1, 200.0),
    bound(Figure::Descriptors, "descriptors", 0.1, 50.0),
    bound(Figure::Threads, "threads", 0.1, 20.0),
    bound(Figure::Processes, "processes", 0.1, 10.0),
    bound(Figure::Shared, "shared memory", 0.1, 50.0),
    bound(Figure::Sockets, "sockets", 0.1, 50.0),
];

/// The figures of one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample([u64; BOUNDS.len()]);

impl Index<Figure> for Sample {
    type Output = u64;

    fn index(&self, figure: Figure) -> &u64 {
        &self.0[figure as usize]
    }
}

impl Sample {
    /// Sums up these processes with all their descendants. A process that ends meanwhile counts as
    /// far as it is read.
    pub(crate) fn of(roots: &[u32]) -> Sample {
        let mut sample = Sample::default();
        for process in tree(roots) {
            sample.add_process(process);
        }
        sample.0[Figure::Sockets as usize] = sockets();
        sample
    }

    /// Sets one figure.
    pub(crate) fn set(&mut self, figure: Figure, value: u64) {
        self.0[figure as usize] = value;
    }

    fn add_process(&mut self, process: u32) {
        let read = |name| fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
        let (status, rollup, maps) = (read("status"), read("smaps_rollup"), read("maps"));
        let links = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let links: Vec<_> = links.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        let shared_links = links.iter().filter(|link| is_shared(&link.to_string_lossy()));
        let mut add = |figure, count| self.0[figure as usize] += count;
        add(Figure::Memory, field(&rollup, "Pss_Anon:") + field(&rollup, "Pss_Shmem:"));
        add(Figure::Resident, field(&status, "VmRSS:"));
        add(Figure::Mappings, maps.lines().count() as u64);
        add(Figure::Descriptors, links.len() as u64);
        add(Figure::Threads, field(&status, "Threads:"));
        add(Figure::Processes, 1);
        let shared_maps = maps.lines().filter(|line| is_shared(line)).count();
        add(Figure::Shared, (shared_maps + shared_links.count()) as u64);
    }

    /// Whether no count is above that of an earlier sample; memory is none.
    pub(crate) fn is_at_rest(&self, before: &Sample) -> bool {
        let counts = BOUNDS.iter().map(|bound| bound.figure as usize).skip(2);
        counts.into_iter().all(|at| self.0[at] <= before.0[at])
    }
}

fn is_shared(name: &str) -> bool {
    name.contains("/memfd:") || name.contains("/dev/shm/")
}

/// Returns the number behind a name in a file of proc(5).
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns processes with all their descendants.
fn tree(roots: &[u32]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut left = roots.to_vec();
    while let Some(process) = left.pop() {
        if !found.insert(process) {
            continue;
        }
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            left.extend(children.split(' ').filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    found
}

/// Counts sockets of the calling thread's network namespace.
fn sockets() -> u64 {
    const TIME_WAIT: &str = "06";
    const LISTEN: &str = "0A";
    let lines = |name| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        text.unwrap_or_default().lines().skip(1).map(String::from).collect::<Vec<_>>()
    };
    let tcp = [lines("tcp"), lines("tcp6")].concat();
    let state = |line: &String| line.split_whitespace().nth(3).unwrap_or_default().to_owned();
    let open = tcp.iter().map(state).filter(|state| ![TIME_WAIT, LISTEN].contains(&&**state));
    (open.count() + lines("unix").len()) as u64
}

#[test]
fn a_descriptor_a_thread_and_a_mapping_count() {
    let own = [std::process::id()];
    let before = Sample::of(&own);
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receiver.recv());
    let child = testkit::process::Guard::spawn_piped(&mut std::process::Command::new("cat"));
    let after = Sample::of(&own);
    assert!(after[Figure::Threads] >= before[Figure::Threads] + 2, "{before:?}, {after:?}");
    assert!(after[Figure::Processes] > before[Figure::Processes], "{before:?}, {after:?}");
    assert!(after[Figure::Memory] > 100 && after[Figure::Resident] > 100, "{after:?}");
    assert!(!after.is_at_rest(&before));
    drop((sender, child));
    let _ = thread.join();
}
