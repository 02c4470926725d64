//! Looking again and again, with regard for who else needs the CPU.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Looks at the clock and at the placement are this many looks at the memory apart.
const LOOKS_PER_CLOCK: u32 = 128;

/// How a spin ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spun {
    Ready,
    /// Both ends run on this CPU: looking keeps the peer from working.
    Shared,
    TimedOut,
}

/// Two words in shared memory in which each end says on which CPU it last waited, plus one, so that
/// zero is nowhere. The peer's word is a hint: a lie costs the liar's peer a bounded spin.
#[derive(Debug)]
pub(super) struct Placement {
    own: NonNull<AtomicU32>,
    peer: NonNull<AtomicU32>,
    last: u32,
    /// How many waits not to offer the CPU, because others took it for long.
    abstain: u32,
}

// SAFETY: the words are atomics in a mapping that the transport holds beside this.
unsafe impl Send for Placement {}

impl Placement {
    /// # Safety
    /// Both words must stay mapped for as long as the placement is used.
    pub(super) unsafe fn new(own: NonNull<AtomicU32>, peer: NonNull<AtomicU32>) -> Placement {
        Placement { own, peer, last: 0, abstain: 0 }
    }

    /// Whether both ends run on one CPU, as far as is known; tells the peer where this one is.
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

    /// Looks until `ready` says so, `budget` is used up, or both ends turn out to share a CPU.
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

    /// Lets the peer, which shares this CPU, work for a moment: in an exchange of messages it needs
    /// no more, and both are spared falling asleep and waking each other. Where others want the
    /// CPU, too, that would be a place at the end of their queue, and sleeping is better.
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

    /// Looks until `ready` or the end of `timeout`, never sleeping; on a shared CPU, and after a
    /// long while, the CPU is offered to others between looks.
    pub(super) fn spin_on(&mut self, timeout: Option<Duration>, ready: impl Fn() -> bool) -> bool {
        const POLITE: Duration = Duration::from_micros(200);
        if ready() {
            return true;
        }
        let begin = Instant::now();
        loop {
            let left = timeout.map_or(POLITE, |all| all.saturating_sub(begin.elapsed()));
            if self.spin(left.min(POLITE), &ready) == Spun::Ready {
                return true;
            }
            std::thread::yield_now();
            if ready() {
                return true;
            }
            if timeout.is_some_and(|all| begin.elapsed() >= all) {
                return false;
            }
        }
    }
}

/// The CPU that runs this thread, plus one; 0 if the kernel does not say.
#[inline]
pub(crate) fn this_cpu() -> u32 {
    // SAFETY: no arguments; the call fails only where there is no such call, with -1.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu + 1).unwrap_or(0)
}
