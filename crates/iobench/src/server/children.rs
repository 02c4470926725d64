//! The child processes of a server on its shared page: lets another process compute the CPU time of
//! all children, without a system call per message in the children.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::cpuclock;

/// Most children of a server thread at the same time.
pub(crate) const MOST_CHILDREN: usize = 1 << 16;

/// Most attempts to read an entry that is about to change; after them its last child is left out.
const MOST_LOOKS: usize = 1_000;

/// An entry for one child at a time. Only the server's thread writes it.
#[repr(C)]
pub(crate) struct ChildPlace {
    /// The child's process id, or 0.
    process: AtomicU64,
    /// CPU time of the children that used this entry before.
    ended_ns: AtomicU64,
}

impl ChildPlace {
    /// Begins the use of the entry for a child.
    pub(crate) fn enter(&self, process: u32) {
        self.process.store(u64::from(process), Ordering::Release);
    }

    /// Ends the use of the entry: the child was reaped and had used `cpu_ns`.
    pub(crate) fn leave(&self, cpu_ns: u64) {
        let sum_ns = self.ended_ns.load(Ordering::Relaxed) + cpu_ns;
        self.ended_ns.store(sum_ns, Ordering::Release);
        self.process.store(0, Ordering::Release);
    }

    /// CPU time of the child and of those before it, read from another process. The entry is
    /// updated a moment after the child is reaped, so an id without a CPU clock means to read
    /// again.
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
