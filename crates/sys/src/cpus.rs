//! The CPUs that a thread may run on. See sched_setaffinity(2).

use std::io;

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

/// Returns the number of CPUs that the system is configured for; CPU numbers are below it.
pub fn configured() -> usize {
    // SAFETY: sysconf takes a plain number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).max(1)
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
    fn a_cpu_that_no_set_can_hold_is_refused() {
        assert_eq!(pin_to(usize::MAX).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
