//! Tracks connections in TIME_WAIT as records of 64 bytes, in the order in which they end.

use super::lists::{Links, List};
use crate::flow::Flow;
use crate::memory::Slab;
use crate::sequence::Sequence;
use crate::tcp::Remains;
use crate::time::Instant;
use crate::wire::tcp::{Flags, TcpHeader, Timestamps};
use std::net::SocketAddr;
use std::time::Duration;

/// Distance of a new connection's initial number from the last number of the connection that it
/// replaces.
const REUSE_DISTANCE: u32 = 1 << 16;
/// The time after which an active open may replace an old connection that used timestamps, because
/// their clock has certainly advanced (RFC 6191, section 2; RFC 7323, appendix B.2).
const REUSE_AFTER: Duration = Duration::from_secs(1);

/// The state of a connection in TIME_WAIT.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) flow: Flow,
    next: Sequence,
    expected: Sequence,
    /// The last timestamp of the peer, and the offset of our clock.
    heard: u32,
    offset: u32,
    window: u16,
    timestamps: bool,
    /// Whether a SYN was answered with the last acknowledgement.
    asked: bool,
    deadline: Instant,
}

/// The reaction to a segment for a connection in TIME_WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Do nothing.
    Ignore,
    /// Answer it with the last acknowledgement, if the budget allows: two ends that disagree must
    /// not answer each other forever.
    Acknowledge,
    /// The acknowledgement of the peer's FIN was lost: send it again, and restart the period.
    Restart,
    /// A new connection may replace the old one, if its initial number is this one or later.
    Replace(Sequence),
    /// The peer has no state of the old connection.
    Forget,
}

impl Record {
    /// Decides how to react to a segment (RFC 9293, section 3.10.7.4, TIME-WAIT; RFC 1122, section
    /// 4.2.2.13; RFC 6191, section 2). Resets are ignored (RFC 1337, section 3, fix F1), except for
    /// one that answers our answer to a SYN. In that case the peer has restarted, with numbers and
    /// a clock that may be behind, and could not connect until TIME_WAIT ends (RFC 9293, section
    /// 3.5.1).
    pub(super) fn judge(&self, header: &TcpHeader, data_bytes: u32) -> Verdict {
        if header.flags.contains(Flags::RST) {
            let exact = header.sequence == self.expected;
            return if self.asked && exact { Verdict::Forget } else { Verdict::Ignore };
        }
        let heard = self.timestamps.then_some(self.heard);
        let value = header.options.timestamps.map(|timestamps| timestamps.value);
        let age = heard.zip(value).map(|(heard, value)| value.wrapping_sub(heard) as i32);
        if header.flags.contains(Flags::SYN) && !header.flags.contains(Flags::ACK) {
            let newer = age.is_some_and(|age| age > 0);
            let same = age.is_none_or(|age| age == 0);
            return if newer || same && header.sequence > self.expected {
                Verdict::Replace(self.next + REUSE_DISTANCE)
            } else {
                Verdict::Acknowledge
            };
        }
        if !header.flags.contains(Flags::ACK) {
            return Verdict::Ignore;
        }
        if age.is_some_and(|age| age < 0) {
            return Verdict::Acknowledge;
        }
        let fin = header.flags.contains(Flags::FIN);
        if fin && header.sequence + data_bytes + 1 == self.expected {
            return Verdict::Restart;
        }
        if data_bytes > 0 || header.sequence != self.expected {
            return Verdict::Acknowledge;
        }
        Verdict::Ignore
    }

    /// Builds the acknowledgement that answers segments of the old connection.
    pub(super) fn acknowledgement(&self, now: Instant) -> TcpHeader {
        let clock = (now.as_millis() as u32).wrapping_add(self.offset);
        TcpHeader {
            source_port: self.flow.local_port(),
            destination_port: self.flow.remote_port(),
            sequence: self.next,
            acknowledgement: self.expected,
            flags: Flags::ACK,
            window: self.window,
            options: crate::wire::tcp::Options {
                timestamps: self
                    .timestamps
                    .then_some(Timestamps { value: clock, echo: self.heard }),
                ..Default::default()
            },
            ..TcpHeader::default()
        }
    }
}

/// The TIME_WAIT records, whose number is bounded.
#[derive(Debug)]
pub(super) struct TimeWait {
    records: Slab<Record>,
    links: Links,
    order: List,
    limit: u32,
    duration: Duration,
}

impl TimeWait {
    /// Creates an empty store for at most `limit` records, each of which stays for twice the
    /// segment lifetime.
    pub(super) fn new(limit: u32, maximum_segment_lifetime: Duration) -> TimeWait {
        TimeWait {
            records: Slab::new(limit),
            links: Links::default(),
            order: List::default(),
            limit,
            duration: maximum_segment_lifetime.saturating_mul(2),
        }
    }

    /// The oldest record, if it has to be removed to add another one.
    pub(super) fn surplus(&self) -> Option<u32> {
        if self.records.len() < self.limit { None } else { self.order.first() }
    }

    /// Adds a record and returns its index; `None` if there is no room.
    pub(super) fn insert(&mut self, flow: Flow, remains: &Remains, now: Instant) -> Option<u32> {
        let (heard, offset) = remains.timestamps.unwrap_or_default();
        let (index, _) = self.records.insert(Record {
            flow,
            next: remains.next,
            expected: remains.expected,
            heard,
            offset,
            window: remains.window,
            timestamps: remains.timestamps.is_some(),
            asked: false,
            deadline: now + self.duration,
        })?;
        self.links.push_back(&mut self.order, index);
        Some(index)
    }

    pub(super) fn get(&self, index: u32) -> Option<&Record> {
        self.records.at(index)
    }

    /// Removes a record, and returns its four-tuple.
    pub(super) fn remove(&mut self, index: u32) -> Option<Flow> {
        let flow = self.records.at(index)?.flow;
        self.records.remove(index);
        self.links.remove(&mut self.order, index);
        Some(flow)
    }

    /// Records that a SYN was answered with the last acknowledgement.
    pub(super) fn ask(&mut self, index: u32) {
        if let Some(record) = self.records.at_mut(index) {
            record.asked = true;
        }
    }

    /// Restarts the period of the record.
    pub(super) fn restart(&mut self, index: u32, now: Instant) {
        if let Some(record) = self.records.at_mut(index) {
            record.deadline = now + self.duration;
            self.links.remove(&mut self.order, index);
            self.links.push_back(&mut self.order, index);
        }
    }

    /// The smallest initial number with which an active open may replace the record now; `None` if
    /// it may not.
    pub(super) fn replaceable(&self, index: u32, now: Instant) -> Option<Sequence> {
        let record = self.records.at(index)?;
        let over = record.deadline + REUSE_AFTER <= now + self.duration;
        (over && record.timestamps).then_some(record.next + REUSE_DISTANCE)
    }

    /// The oldest record, if its period is over.
    pub(super) fn expired(&self, now: Instant) -> Option<u32> {
        let first = self.order.first()?;
        (self.records.at(first)?.deadline <= now).then_some(first)
    }

    /// The records whose local address and port do not satisfy `stays`.
    pub(super) fn of_others(&self, stays: impl Fn(SocketAddr) -> bool) -> Vec<u32> {
        let all = self.records.iter();
        all.filter(|(_, _, record)| !stays(record.flow.local())).map(|(index, ..)| index).collect()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        Some(self.records.at(self.order.first()?)?.deadline)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> u32 {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(1_000_000_000_000);

    fn flow(port: u16) -> Flow {
        Flow::new(([10, 0, 0, 1].into(), port), ([10, 0, 0, 2].into(), 80))
    }

    fn remains(timestamps: bool) -> Remains {
        Remains {
            next: Sequence(u32::MAX),
            expected: Sequence(5),
            window: 77,
            timestamps: timestamps.then_some((u32::MAX, 3)),
        }
    }

    fn record(timestamps: bool) -> (TimeWait, u32) {
        let mut time_wait = TimeWait::new(4, Duration::from_secs(30));
        let index = time_wait.insert(flow(1), &remains(timestamps), START).unwrap();
        (time_wait, index)
    }

    fn segment(flags: Flags, sequence: u32, value: Option<u32>) -> TcpHeader {
        let timestamps = value.map(|value| Timestamps { value, echo: 0 });
        let options = crate::wire::tcp::Options { timestamps, ..Default::default() };
        TcpHeader { sequence: Sequence(sequence), flags, options, ..TcpHeader::default() }
    }

    #[test]
    fn a_syn_must_be_newer_than_the_old_connection() {
        let replace = Verdict::Replace(Sequence(u32::MAX) + REUSE_DISTANCE);
        for (timestamps, sequence, value, expected) in [
            (false, 6, None, replace),
            (false, 5, None, Verdict::Acknowledge),
            (false, u32::MAX, None, Verdict::Acknowledge),
            (false, 6, Some(1), replace),
            (true, 0, Some(0), replace),
            (true, 6, Some(u32::MAX), replace),
            (true, 5, Some(u32::MAX), Verdict::Acknowledge),
            (true, 6, Some(u32::MAX - 1), Verdict::Acknowledge),
            (true, 6, None, replace),
        ] {
            let (time_wait, index) = record(timestamps);
            let verdict =
                time_wait.get(index).unwrap().judge(&segment(Flags::SYN, sequence, value), 0);
            assert_eq!(verdict, expected, "{timestamps} {sequence} {value:?}");
        }
    }

    #[test]
    fn a_peer_that_begins_anew_may_end_it() {
        let (mut time_wait, index) = record(true);
        let judge = |time_wait: &TimeWait, sequence| {
            time_wait.get(index).unwrap().judge(&segment(Flags::RST, sequence, None), 0)
        };
        assert_eq!(judge(&time_wait, 5), Verdict::Ignore, "nobody has asked");
        time_wait.ask(index);
        assert_eq!(judge(&time_wait, 4), Verdict::Ignore, "only the exact number proves anything");
        assert_eq!(judge(&time_wait, 5), Verdict::Forget);
    }

    #[test]
    fn resets_do_not_end_it_and_a_lost_acknowledgement_is_repeated() {
        let (time_wait, index) = record(true);
        let record = time_wait.get(index).unwrap();
        let fin = Flags::FIN.with(Flags::ACK);
        for (header, data_bytes, expected) in [
            (segment(Flags::RST, 5, None), 0, Verdict::Ignore),
            (segment(Flags::ACK, 5, Some(0)), 0, Verdict::Ignore),
            (segment(Flags::ACK, 4, Some(0)), 0, Verdict::Acknowledge),
            (segment(Flags::ACK, 5, Some(0)), 1, Verdict::Acknowledge),
            (segment(Flags::ACK, 5, Some(u32::MAX - 1)), 0, Verdict::Acknowledge),
            (segment(fin, 4, Some(u32::MAX)), 0, Verdict::Restart),
            (segment(fin, 1, Some(u32::MAX)), 3, Verdict::Restart),
            (segment(fin, 5, Some(u32::MAX)), 0, Verdict::Ignore),
            (segment(Flags::FIN, 4, None), 0, Verdict::Ignore),
            (segment(Flags::SYN.with(Flags::ACK), 4, None), 0, Verdict::Acknowledge),
        ] {
            assert_eq!(record.judge(&header, data_bytes), expected, "{header:?}");
        }
        let reply = record.acknowledgement(START);
        assert_eq!((reply.sequence, reply.acknowledgement), (Sequence(u32::MAX), Sequence(5)));
        let timestamps = reply.options.timestamps.unwrap();
        assert_eq!((timestamps.value, timestamps.echo), (1_000_003, u32::MAX));
        assert_eq!(reply.window, 77);
    }

    #[test]
    fn records_end_in_order_and_the_oldest_makes_way() {
        let mut time_wait = TimeWait::new(3, Duration::from_secs(30));
        let second = Duration::from_secs(1);
        let indices: Vec<u32> = (0..3u16)
            .map(|at| {
                assert_eq!(time_wait.surplus(), None);
                let when = START + second * u32::from(at);
                time_wait.insert(flow(at), &remains(false), when).unwrap()
            })
            .collect();
        assert_eq!(time_wait.surplus(), Some(indices[0]));
        assert!(time_wait.insert(flow(9), &remains(false), START).is_none());
        time_wait.restart(indices[0], START + second * 4);
        assert_eq!(time_wait.deadline(), Some(START + second * 61));
        assert_eq!(time_wait.expired(START + second * 60), None);
        assert_eq!(time_wait.expired(START + second * 61), Some(indices[1]));
        assert_eq!(time_wait.remove(indices[1]), Some(flow(1)));
        assert_eq!(time_wait.expired(START + second * 64), Some(indices[2]));
        time_wait.remove(indices[2]);
        assert_eq!(time_wait.expired(START + second * 64), Some(indices[0]));
        assert_eq!(time_wait.len(), 1);
        assert!(size_of::<Record>() <= 64);
    }

    #[test]
    fn only_timestamps_let_our_own_connections_replace_it_and_after_a_second() {
        for (timestamps, milliseconds, expected) in
            [(true, 999, false), (true, 1000, true), (false, 59_000, false)]
        {
            let (time_wait, index) = record(timestamps);
            let later = START + Duration::from_millis(milliseconds);
            assert_eq!(time_wait.replaceable(index, later).is_some(), expected);
        }
    }
}
