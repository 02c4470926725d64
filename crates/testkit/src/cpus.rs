//! The CPUs on which tests may run.

use crate::skip::skip;
use std::io;

/// The CPUs that the calling thread may use, in ascending order.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a set of CPUs is plain bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is writable for its size.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    assert_eq!(result, 0, "sched_getaffinity: {}", io::Error::last_os_error());
    // SAFETY: the numbers are below what the set has room for.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// The first two CPUs that the calling thread may use; without them the test is skipped.
pub fn two_cpus(test: &str) -> Option<[usize; 2]> {
    match allowed_cpus()[..] {
        [one, other, ..] => Some([one, other]),
        _ => {
            skip(test, "it needs two CPUs");
            None
        }
    }
}

/// Binds the calling thread to a CPU. What it connects on the loopback device is accepted there.
#[track_caller]
pub fn pin(cpu: usize) {
    // SAFETY: a set of CPUs is plain bits, for which zero is a value; CPU_SET checks the number.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    // SAFETY: the set is readable for its size.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    assert_eq!(result, 0, "to pin to CPU {cpu}: {}", io::Error::last_os_error());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_its_cpu_alone() {
        let last = *allowed_cpus().last().expect("the one it runs on");
        pin(last);
        assert_eq!(allowed_cpus(), [last]);
    }
}
