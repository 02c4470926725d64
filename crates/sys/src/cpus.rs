//! The CPUs of the machine, and those that a thread may run on. See sched_setaffinity(2) and the
//! kernel's documentation of /sys/devices/system/cpu.

use std::{fs, io};

pub use rustix::thread::CpuSet;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// The CPUs that the calling thread may run on, in ascending order.
///
/// # Errors
/// `EINVAL` on a machine with more than [`CpuSet::MAX_CPU`] CPUs.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// The CPUs that the machine may ever have, in ascending order; their numbers may have holes.
/// Without sysfs, all numbers for which the kernel's sets of CPUs have room.
pub fn possible() -> Vec<usize> {
    listed("possible").unwrap_or_else(|| (0..numbers()).collect())
}

/// The CPUs that are switched on, in ascending order. Without sysfs, those that the calling thread
/// may use.
pub fn online() -> Vec<usize> {
    listed("online").unwrap_or_else(|| allowed().unwrap_or_default())
}

/// Some of the CPUs that the calling thread may run on, as many as the quota of its control group
/// keeps busy (`cpu.max`), at least one. More threads would be stopped in the middle of their work.
///
/// # Errors
/// As for [`allowed`].
pub fn usable() -> io::Result<Vec<usize>> {
    let mut cpus = allowed()?;
    let count = std::thread::available_parallelism().map_or(cpus.len(), usize::from);
    cpus.truncate(count.max(1));
    Ok(cpus)
}

/// The CPUs whose work falls to thread `index` of those that run on `cpus`: its own, and its share
/// of the CPUs without a thread, on which the kernel may process handshakes nevertheless. With
/// more threads than CPUs, some threads have none.
pub fn share_of(index: usize, cpus: &[usize]) -> Vec<usize> {
    let owner = |cpu| cpus.iter().position(|own| *own == cpu).unwrap_or(cpu % cpus.len());
    let mut all = possible();
    all.extend(cpus.iter().filter(|cpu| !all.contains(cpu)).copied().collect::<Vec<_>>());
    all.into_iter().filter(|cpu| owner(*cpu) == index).collect()
}

/// The socket and the core of a CPU; two CPUs with the same are hardware threads of one core. A CPU
/// about which sysfs has nothing counts as a core of its own.
pub fn core_of(cpu: usize) -> (u32, u32) {
    let number = |what: &str| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}");
        fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    (number("physical_package_id").unwrap_or(0), number("core_id").unwrap_or(cpu as u32))
}

/// The CPUs of one of the kernel's lists, such as `online`, in ascending order; `None` without
/// sysfs.
pub fn listed(name: &str) -> Option<Vec<usize>> {
    parse_list(&fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).ok()?)
}

/// Parses the kernel's notation, such as `0-3,8`; `None` if it is none.
pub fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        cpus.extend(first..=last.min(first.saturating_add(65_536)));
    }
    Some(cpus)
}

/// Returns the size of the kernel's sets of CPUs. All CPU numbers are below it.
fn numbers() -> usize {
    let mut set = CpuSet::new();
    let bytes = std::mem::size_of_val(&set);
    // SAFETY: the kernel writes at most `bytes` bytes to the set, which is a plain array of bits.
    let written = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, bytes, &raw mut set) };
    usize::try_from(written).map_or(CpuSet::MAX_CPU, |written| 8 * written)
}

/// The set of these CPUs; numbers above the set's maximum are left out.
pub fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    set
}

/// Binds the calling thread, and threads that it starts later, to one CPU.
///
/// # Errors
/// `EINVAL` for a CPU that the process may not use, or above the 1024 that a set can hold.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    restrict_to(&set_of(&[cpu]))
}

/// Binds the calling thread, and threads that it starts later, to a set of CPUs. May be called
/// between fork and exec.
///
/// # Errors
/// `EINVAL` if the process may use none of them.
pub fn restrict_to(set: &CpuSet) -> io::Result<()> {
    Ok(sched_setaffinity(None, set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_its_cpu_alone() {
        let last = *allowed().unwrap().last().expect("the one it runs on");
        pin_to(last).unwrap();
        assert_eq!(allowed().unwrap(), [last]);
    }

    #[test]
    fn every_cpu_belongs_to_one_thread() {
        // More threads than CPUs are unusual, but must not leave a CPU without a thread. The last
        // list has numbers that this machine does not have.
        for cpus in [vec![0], vec![1, 0], vec![0, 0], vec![4, 0, 900]] {
            let shares: Vec<Vec<usize>> =
                (0..cpus.len()).map(|thread| share_of(thread, &cpus)).collect();
            for cpu in possible().into_iter().chain(cpus.iter().copied()) {
                let owners: Vec<usize> =
                    (0..cpus.len()).filter(|thread| shares[*thread].contains(&cpu)).collect();
                let expected = cpus.iter().position(|own| *own == cpu);
                assert_eq!(owners, [expected.unwrap_or(cpu % cpus.len())], "CPU {cpu}");
            }
        }
    }

    #[test]
    fn numbers_may_have_holes() {
        assert_eq!(parse_list("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse_list("0,2-3,9"), Some(vec![0, 2, 3, 9]));
        assert_eq!(parse_list("7"), Some(vec![7]));
        assert!(possible().contains(&0));
        for wrong in ["", "0-x", "a"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn without_sysfs_no_cpu_is_missing() {
        let all = numbers();
        assert!(all <= CpuSet::MAX_CPU);
        for cpu in possible().into_iter().chain(online()).chain(allowed().unwrap()) {
            assert!(cpu < all, "{cpu}, {all}");
        }
    }

    #[test]
    fn usable_cpus_are_allowed_ones_and_at_least_one() {
        let (allowed, usable) = (allowed().unwrap(), usable().unwrap());
        assert!(!usable.is_empty() && allowed.starts_with(&usable), "{usable:?}, {allowed:?}");
    }

    #[test]
    fn a_cpu_that_no_set_can_hold_is_refused() {
        assert_eq!(pin_to(usize::MAX).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
