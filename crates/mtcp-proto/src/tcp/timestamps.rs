//! Implements timestamps, and protection against wrapped sequence numbers (RFC 7323, sections 3 to
//! 5).

use crate::sequence::Sequence;
use crate::time::Instant;
use crate::wire::tcp::{TcpHeader, Timestamps};
use std::time::Duration;

/// How long a timestamp of the peer stays valid: its clock may tick once a millisecond, and 2³¹
/// ticks are 24.8 days (RFC 7323, section 5.5).
const VALID_S: u32 = 24 * 24 * 60 * 60;

/// Resolution of the echoed timestamps, coarser than that of `Instant`.
pub(super) const CLOCK_TICK: Duration = Duration::from_millis(1);

/// The timestamp state of a connection: our clock and the peer's.
#[derive(Debug)]
pub(super) struct Stamping {
    /// Whether both sides have agreed on timestamps.
    pub(super) on: bool,
    /// The offset that is added to our clock, so that it does not identify this host (RFC 7323,
    /// section 5.4).
    pub(super) offset: u32,
    /// TS.Recent: the timestamp that we echo.
    pub(super) recent: u32,
    /// When TS.Recent was received: the lower bits of seconds.
    recent_s: u32,
}

impl Stamping {
    pub(super) fn new(offset: u32) -> Stamping {
        Stamping { on: false, offset, recent: 0, recent_s: 0 }
    }

    /// Our timestamp clock, in milliseconds.
    pub(super) fn clock(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }

    /// The option of a segment that is sent now.
    pub(super) fn option(&self, now: Instant) -> Timestamps {
        Timestamps { value: self.clock(now), echo: self.recent }
    }

    /// Sets TS.Recent.
    pub(super) fn remember(&mut self, value: u32, now: Instant) {
        self.recent = value;
        self.recent_s = now.as_secs() as u32;
    }

    /// Whether a value is at least as new as the last one. After 24 days without a value, any value
    /// is.
    fn is_fresh(&self, value: u32, now: Instant) -> bool {
        value.wrapping_sub(self.recent) as i32 >= 0
            || (now.as_secs() as u32).wrapping_sub(self.recent_s) > VALID_S
    }

    /// The time since a timestamp of ours was sent; `None` for values that we cannot have sent.
    fn age(&self, echo: u32, now: Instant) -> Option<Duration> {
        let age = self.clock(now).wrapping_sub(echo) as i32;
        (age >= 0).then(|| Duration::from_millis(age as u64))
    }

    /// Whether a segment passes PAWS (RFC 7323, section 5.3, R1). One without timestamps is dropped
    /// if they were negotiated (section 3.2), except for resets, which are checked by their
    /// sequence numbers.
    pub(super) fn lets_in(&self, header: &TcpHeader, now: Instant) -> bool {
        if !self.on {
            return true;
        }
        header.options.timestamps.is_some_and(|stamps| self.is_fresh(stamps.value, now))
    }

    /// The time since the acknowledged segment was sent, in whole milliseconds, from the echo of
    /// its timestamp. It is valid also if the segment was sent more than once (RFC 7323, section
    /// 4).
    pub(super) fn round_trip(&self, header: &TcpHeader, now: Instant) -> Option<Duration> {
        let stamps = header.options.timestamps.filter(|_| self.on)?;
        self.age(stamps.echo, now)
    }

    /// Updates TS.Recent from a segment that begins no later than our last acknowledgement, so that
    /// a delayed acknowledgement echoes the oldest segment that it answers (RFC 7323, section 4.3).
    pub(super) fn follow(&mut self, header: &TcpHeader, acknowledged: Sequence, now: Instant) {
        let Some(stamps) = header.options.timestamps.filter(|_| self.on) else { return };
        if header.sequence <= acknowledged && self.is_fresh(stamps.value, now) {
            self.remember(stamps.value, now);
        }
    }
}
