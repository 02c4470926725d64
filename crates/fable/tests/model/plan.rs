//! The random plan of one flow: what its two ends do.

use std::time::Duration;

use fable::{Form, Kind};

use crate::random::Random;

/// The pattern of messages on a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Both ends write and read, and never wait for one direction only.
    Both,
    /// End 0 writes, end 1 reads, and both can wait for each other.
    OneWay,
    /// End 0 sends requests, end 1 answers them.
    Requests,
    /// End 0 writes and reads nothing, end 1 does both.
    Unread,
}

/// The number of variants of [`Use`].
pub(crate) const USES: usize = 4;

/// The random choices for one flow.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) usage: Use,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) messages: u64,
    /// The longest message.
    pub(crate) bytes_max: usize,
    /// Whether all messages are that long.
    pub(crate) is_uniform: bool,
    /// The most read buffers that are kept.
    pub(crate) kept_reads: usize,
    pub(crate) kept_writes: usize,
    /// Whether every read has a time-out and follows `xpoll`; else all ways of reading are mixed.
    pub(crate) is_polite: bool,
    /// Whether the reader keeps so many messages that there is room for a single one, and releases
    /// them in order.
    pub(crate) is_tight: bool,
    /// Whether the flow stays on its first transport: a move would wake a sleeper and so hide a
    /// lost wake-up.
    pub(crate) is_still: bool,
    pub(crate) move_every: Duration,
    /// Whether end 0 closes its flow and ends its process at once; else it drops the flow.
    pub(crate) closes: bool,
    pub(crate) forks: bool,
    pub(crate) batches: bool,
}

/// The bytes of each ring and heap. A reader keeps so much less that there is always room for the
/// writer's held buffers and one more message, in parts of powers of two.
const RING_BYTES: usize = 1 << 20;

/// More than a message occupies in a ring besides its bytes.
const OVERHEAD_BYTES: usize = 128;

/// The most younger messages that may be released before the oldest one that is kept.
pub(crate) const AHEAD_MAX: u64 = 3;

impl Plan {
    /// Draws a plan.
    pub(crate) fn draw(random: &mut Random) -> Plan {
        let mut below = |bound: u64| random.next() % bound;
        let usage = [Use::Both, Use::OneWay, Use::Requests, Use::Unread][below(4) as usize];
        let is_tight = below(3) == 0;
        let bytes_max = match usage {
            Use::Requests => 8 + below(2000) as usize,
            // So that a message fills its part in every kind of ring.
            _ if is_tight => (1 << (15 + below(3))) - OVERHEAD_BYTES,
            _ => [100, 3000, 20_000, 60_000, 120_000][below(5) as usize],
        };
        let kept_writes = if is_tight { 0 } else { [0, 0, 1, 3][below(4) as usize] };
        let part = (bytes_max + 8).next_power_of_two();
        let reserve = if is_tight { 1 } else { kept_writes + 4 + AHEAD_MAX as usize };
        let most = (RING_BYTES / part).saturating_sub(reserve).min(100);
        let kept_reads = if is_tight { most } else { [0, most / 2, most][below(3) as usize] };
        Plan {
            usage,
            kinds: kinds(below(5)),
            messages: 200 + below(if bytes_max > 10_000 { 800 } else { 4000 }),
            bytes_max,
            is_uniform: below(2) == 0,
            kept_reads,
            kept_writes,
            is_polite: below(3) == 0,
            is_tight,
            is_still: below(3) == 0,
            move_every: Duration::from_micros([300, 2000, 20_000][below(3) as usize]),
            closes: below(2) == 0,
            forks: below(4) == 0,
            batches: below(4) == 0,
        }
    }

    /// Returns the time after which a call counts as hanging. Linux 6.18 has been seen to stall a
    /// Multipath TCP connection for over 20 s while its receiver had read everything: the
    /// receiver's acknowledgement of the data does not reach the sender, whose window is full.
    pub(crate) fn hang(&self) -> Duration {
        Duration::from_secs(if self.kinds.contains(&Kind::Mptcp) { 55 } else { 20 })
    }

    /// Returns whether messages of end 1 may be lost, because end 0 closes before it has read them.
    pub(crate) fn leaves_input_unread(&self) -> bool {
        self.usage == Use::Unread
    }
}

/// Draws all transports, or few of one sort, which are then used for longer.
fn kinds(choice: u64) -> Vec<Kind> {
    let mut kinds = crate::flow_rig::kinds();
    kinds.retain(|kind| match choice {
        0 => matches!(kind, Kind::MempipeFutex(_)),
        1 => kind.form() == Some(Form::Unsafe),
        2 => matches!(kind, Kind::Tcp | Kind::Tls | Kind::Mptcp | Kind::MempipeFutex(_)),
        _ => true,
    });
    kinds
}
