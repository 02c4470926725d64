//! Timestamps, and protection against wrapped sequence numbers (RFC 7323, sections 3 to 5).

use crate::sequence::Sequence;
use crate::time::Instant;
use crate::wire::tcp::{TcpHeader, Timestamps};
use std::time::Duration;

/// How long a timestamp of the peer stays valid: its clock may tick once a millisecond, and 2³¹
/// ticks are 24.8 days (RFC 7323, section 5.5).
const VALID_S: u32 = 24 * 24 * 60 * 60;

/// By so much the echo of a timestamp is coarser than our time.
pub(super) const CLOCK_TICK: Duration = Duration::from_millis(1);

/// Both clocks of a connection.
#[derive(Debug)]
pub(super) struct Stamping {
    /// Both sides have agreed on timestamps.
    pub(super) on: bool,
    /// What is added to our clock, so that it tells nothing about us (RFC 7323, section 5.4).
    pub(super) offset: u32,
    /// TS.Recent: what we echo.
    pub(super) recent: u32,
    /// When it came: the lower bits of seconds.
    recent_s: u32,
}

impl Stamping {
    pub(super) fn new(offset: u32) -> Stamping {
        Stamping { on: false, offset, recent: 0, recent_s: 0 }
    }

    /// Our clock: milliseconds.
    pub(super) fn clock(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }

    pub(super) fn option(&self, now: Instant) -> Timestamps {
        Timestamps { value: self.clock(now), echo: self.recent }
    }

    pub(super) fn remember(&mut self, value: u32, now: Instant) {
        self.recent = value;
        self.recent_s = now.as_secs() as u32;
    }

    /// Whether a value is at least as new as the last one; after 24 days without any, all are.
    fn is_fresh(&self, value: u32, now: Instant) -> bool {
        value.wrapping_sub(self.recent) as i32 >= 0
            || (now.as_secs() as u32).wrapping_sub(self.recent_s) > VALID_S
    }

    /// Milliseconds since a value of ours was sent; `None` for values that we cannot have sent.
    fn age(&self, echo: u32, now: Instant) -> Option<Duration> {
        let age = self.clock(now).wrapping_sub(echo) as i32;
        (age >= 0).then(|| Duration::from_millis(age as u64))
    }

    /// Whether PAWS lets a segment in (RFC 7323, section 5.3, R1). One without timestamps is
    /// dropped where they were agreed on (section 3.2), except for resets, which prove themselves.
    pub(super) fn lets_in(&self, header: &TcpHeader, now: Instant) -> bool {
        if !self.on {
            return true;
        }
        header.options.timestamps.is_some_and(|stamps| self.is_fresh(stamps.value, now))
    }

    /// How long ago the segment was sent that this one answers, in whole milliseconds, by the echo
    /// of its timestamp: also if it was sent more than once (RFC 7323, section 4).
    pub(super) fn round_trip(&self, header: &TcpHeader, now: Instant) -> Option<Duration> {
        let stamps = header.options.timestamps.filter(|_| self.on)?;
        self.age(stamps.echo, now)
    }

    /// TS.Recent follows segments that begin no later than our last acknowledgement, so that a
    /// delayed acknowledgement echoes the oldest of what it answers (RFC 7323, section 4.3).
    pub(super) fn follow(&mut self, header: &TcpHeader, acknowledged: Sequence, now: Instant) {
        let Some(stamps) = header.options.timestamps.filter(|_| self.on) else { return };
        if header.sequence <= acknowledged && self.is_fresh(stamps.value, now) {
            self.remember(stamps.value, now);
        }
    }
}
