//! Reads clocks, in nanoseconds. See clock_gettime(2).
//!
//! Calls the C library, not rustix, which finds the vDSO through /proc: on a kernel before 6.4 a
//! process that cannot read /proc/self/auxv, such as one that has changed its user, would make a
//! system call for every reading.

/// The lower bits of a clock ID, as clock_getcpuclockid(3) computes it: the scheduler's clock, of a
/// process and not of a thread.
const SCHEDULER_CLOCK: i32 = 2;

/// CLOCK_MONOTONIC: one clock for all processes of the machine, which the vDSO reads from the
/// processor's counter without a system call.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// CLOCK_MONOTONIC_COARSE: the same clock at the kernel's last tick, 1 to 10 ms ago. It is the
/// cheapest to read: the vDSO copies a number.
#[inline]
pub fn monotonic_coarse_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE).unwrap_or(0)
}

/// CLOCK_REALTIME, read by the vDSO as well.
#[inline]
pub fn realtime_ns() -> u64 {
    read(libc::CLOCK_REALTIME).unwrap_or(0)
}

/// The CPU time of the calling thread, up to the present moment.
#[inline]
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// The CPU time of all threads of a process, ended ones included; `None` once it is reaped.
pub fn process_cpu_ns(process: u32) -> Option<u64> {
    let process = i32::try_from(process).ok().filter(|process| *process > 0)?;
    read((!process << 3) | SCHEDULER_CLOCK)
}

#[inline]
fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer; an unknown clock only yields an errno.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards() {
        let first = monotonic_ns();
        assert!(monotonic_ns() >= first);
    }

    #[test]
    fn the_coarse_clock_is_a_little_behind() {
        let (before, coarse, after) = (monotonic_ns(), monotonic_coarse_ns(), monotonic_ns());
        assert!(coarse <= after);
        // A tick is at most 10 ms; a machine may be late.
        assert!(coarse + 10_000_000_000 >= before, "{coarse} is far behind {before}");
    }

    #[test]
    fn the_clocks_are_those_of_the_standard_library() {
        let since_1970 = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let (before, between, after) = (since_1970(), realtime_ns(), since_1970());
        assert!(before <= between && between <= after);
    }

    #[test]
    fn a_process_has_used_at_least_what_its_thread_has() {
        let before_ns = thread_cpu_ns();
        while thread_cpu_ns() < before_ns + 2_000_000 {
            std::hint::spin_loop();
        }
        let thread_ns = thread_cpu_ns();
        assert!(process_cpu_ns(std::process::id()).unwrap() >= thread_ns);
        assert!(thread_ns >= 2_000_000);
    }

    #[test]
    fn there_is_no_clock_without_a_process() {
        assert_eq!(process_cpu_ns(0), None);
        assert_eq!(process_cpu_ns(u32::MAX), None);
    }
}
