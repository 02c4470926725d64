//! CPU time as the scheduler counts it, in nanoseconds, brought up to date at every reading.

/// The bit that names a process rather than a thread, and the scheduler's clock, as
/// clock_getcpuclockid(3) would compute them.
const SCHEDULER_CLOCK: i32 = 2;

/// What the calling thread has used.
pub(crate) fn thread_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// What all threads of a process have used, ended ones included; nothing once it is reaped.
pub(crate) fn process_ns(process: u32) -> Option<u64> {
    let process = i32::try_from(process).ok().filter(|process| *process > 0)?;
    read((!process << 3) | SCHEDULER_CLOCK)
}

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
    fn a_process_has_used_at_least_what_its_thread_has() {
        let before_ns = thread_ns();
        while thread_ns() < before_ns + 2_000_000 {
            std::hint::spin_loop();
        }
        let thread_ns = thread_ns();
        assert!(process_ns(std::process::id()).unwrap() >= thread_ns && thread_ns >= 2_000_000);
    }

    #[test]
    fn there_is_no_clock_without_a_process() {
        assert_eq!(process_ns(0), None);
        assert_eq!(process_ns(u32::MAX), None);
    }
}
