//! The child processes of a server on the page of counters: enough for another process to tell
//! how much CPU time all of them have used, without a call per message in the children.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::cpuclock;

/// Children that a server thread may have at once.
pub(crate) const MOST_CHILDREN: usize = 1 << 16;

/// Looks at a place that is about to change; then its last child is left out.
const MOST_LOOKS: usize = 1_000;

/// A place for one child at a time. The server's thread is the only one to write.
#[repr(C)]
pub(crate) struct ChildPlace {
    /// The child's process number, or 0.
    process: AtomicU64,
    /// CPU time of the children that had this place before.
    ended_ns: AtomicU64,
}

impl ChildPlace {
    pub(crate) fn enter(&self, process: u32) {
        self.process.store(u64::from(process), Ordering::Release);
    }

    /// The child was reaped and had used so much.
    pub(crate) fn leave(&self, cpu_ns: u64) {
        let sum_ns = self.ended_ns.load(Ordering::Relaxed) + cpu_ns;
        self.ended_ns.store(sum_ns, Ordering::Release);
        self.process.store(0, Ordering::Release);
    }

    /// CPU time of the child and of those before it, read from another process. A child is reaped
    /// a moment before that is noted, so a number without a clock means to look again.
    pub(crate) fn cpu_ns(&self) -> u64 {
        for _ in 0..MOST_LOOKS {
            let process = self.process.load(Ordering::Acquire);
            let ended_ns = self.ended_ns.load(Ordering::Acquire);
            let running_ns = match u32::try_from(process) {
                Ok(0) => Some(0),
                Ok(process) => cpuclock::process_ns(process),
                Err(_) => None,
            };
            let unchanged = self.process.load(Ordering::Acquire) == process
                && self.ended_ns.load(Ordering::Acquire) == ended_ns;
            if let (Some(running_ns), true) = (running_ns, unchanged) {
                return ended_ns + running_ns;
            }
            std::thread::yield_now();
        }
        self.ended_ns.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stays_when_a_child_has_left() {
        let place = ChildPlace { process: AtomicU64::new(0), ended_ns: AtomicU64::new(0) };
        assert_eq!(place.cpu_ns(), 0);
        place.enter(std::process::id());
        let running_ns = place.cpu_ns();
        assert!(running_ns > 0);
        place.leave(running_ns);
        assert_eq!(place.cpu_ns(), running_ns);
        place.enter(std::process::id());
        assert!(place.cpu_ns() > running_ns);
    }

    #[test]
    fn a_number_without_a_process_does_not_hold_up_the_reader() {
        let place = ChildPlace { process: AtomicU64::new(u64::MAX), ended_ns: AtomicU64::new(5) };
        assert_eq!(place.cpu_ns(), 5);
    }
}
