//! Spins on shared memory, and yields the CPU to a peer or to other threads that need it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The number of checks of the memory between two checks of the clock and the placement.
const LOOKS_PER_CLOCK: u32 = 128;

/// The result of a spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spun {
    Ready,
    /// Both ends run on this CPU: spinning keeps the peer from working.
    Shared,
    TimedOut,
}

/// Two words in shared memory. In each, one end writes on which CPU it last waited, plus one, so
/// that zero means unknown. The peer's word is only a hint: a false value costs this end a bounded
/// spin.
#[derive(Debug)]
pub(super) struct Placement {
    own: NonNull<AtomicU32>,
    peer: NonNull<AtomicU32>,
    last: u32,
    /// The number of waits that will not yield the CPU, because the last yield took long.
    abstain: u32,
}

// SAFETY: the words are atomics in a mapping that the transport keeps with the placement.
unsafe impl Send for Placement {}

impl Placement {
    /// # Safety
    /// Both words must stay mapped for as long as the placement is used.
    pub(super) unsafe fn new(own: NonNull<AtomicU32>, peer: NonNull<AtomicU32>) -> Placement {
        Placement { own, peer, last: 0, abstain: 0 }
    }

    /// Publishes this end's CPU. Returns whether both ends run on one CPU, as far as this end
    /// knows.
    pub(super) fn is_shared(&mut self) -> bool {
        let own = this_cpu();
        if own != self.last {
            self.last = own;
            // SAFETY: `new` demands that the word is mapped.
            unsafe { self.own.as_ref() }.store(own, Ordering::Relaxed);
        }
        // SAFETY: `new` demands that the word is mapped.
        own != 0 && own == unsafe { self.peer.as_ref() }.load(Ordering::Relaxed)
    }

    /// Spins until `ready` returns true, `budget` is used up, or both ends turn out to share a CPU.
    pub(super) fn spin(&mut self, budget: Duration, ready: impl Fn() -> bool) -> Spun {
        let mut start = None;
        loop {
            if self.is_shared() {
                return Spun::Shared;
            }
            for _ in 0..LOOKS_PER_CLOCK {
                if ready() {
                    return Spun::Ready;
                }
                std::hint::spin_loop();
            }
            let start = *start.get_or_insert_with(Instant::now);
            if start.elapsed() >= budget {
                return Spun::TimedOut;
            }
        }
    }

    /// Yields the CPU, which the peer shares, up to twice. In an exchange of messages the peer
    /// needs no more, and both ends avoid a sleep and a wake-up. If other threads want the CPU too,
    /// a yield would take long; then sleeping is better, and the next waits do not yield.
    pub(super) fn offer_cpu(&mut self, ready: impl Fn() -> bool) -> bool {
        const TURNS: usize = 2;
        const ABSTAIN_WAITS: u32 = 256;
        const TOO_LONG: Duration = Duration::from_micros(100);
        if self.abstain > 0 {
            self.abstain -= 1;
            return false;
        }
        for _ in 0..TURNS {
            let begin = Instant::now();
            std::thread::yield_now();
            if begin.elapsed() > TOO_LONG {
                self.abstain = ABSTAIN_WAITS;
            }
            if ready() {
                return true;
            }
        }
        false
    }
}

/// Returns the CPU that runs this thread, plus one; 0 if the kernel does not report it.
#[inline]
pub(crate) fn this_cpu() -> u32 {
    // SAFETY: no arguments; without such a system call it fails with -1.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu + 1).unwrap_or(0)
}
