//! Computes rates from a flow page's counters. The ends write the page, and may write any value.

use fable::page::{Counter, Page};
use fable::protocol::Role;

/// The period over which rates are smoothed, in seconds.
const SMOOTHING_S: f64 = 1.0;

/// The least number that is no valid CPU number.
const CPU_MAX: u64 = 1 << 16;

/// The counters of a page at one time. Each word is read once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Messages sent by leader and follower.
    pub(crate) messages: [u64; 2],
    /// Bytes sent by leader and follower.
    pub(crate) bytes: [u64; 2],
    /// The CPUs on which leader and follower last ran.
    pub(crate) cpus: [Option<u32>; 2],
    /// Latencies of messages to the leader and to the follower, in nanoseconds; 0 if unknown.
    pub(crate) latency_ns: [u64; 2],
}

impl Sample {
    /// Reads a page. If only one end writes it, the number of messages that this end has received
    /// stands for those that the other end has sent.
    pub(crate) fn of(page: &Page, only_end: Option<Role>) -> Sample {
        let both = |counter| Role::BOTH.map(|role| page.read(role, counter));
        let sent = |sent, received| {
            Role::BOTH.map(|role| match only_end {
                Some(only) if only != role => page.read(only, received),
                _ => page.read(role, sent),
            })
        };
        let cpu = |word: u64| {
            let number = word.checked_sub(1).filter(|&number| number < CPU_MAX)?;
            u32::try_from(number).ok()
        };
        Sample {
            messages: sent(Counter::MessagesSent, Counter::MessagesReceived),
            bytes: sent(Counter::BytesSent, Counter::BytesReceived),
            cpus: both(Counter::Cpu).map(cpu),
            latency_ns: both(Counter::LatencyNs),
        }
    }
}

/// The rates of a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    /// The latest sample and its time.
    latest: Option<(u64, Sample)>,
    /// Messages per second from leader to follower, and back.
    pub(crate) messages_s: [f64; 2],
    /// Bytes per second from leader to follower, and back.
    pub(crate) bytes_s: [f64; 2],
}

impl Meter {
    /// Adds a sample at a time of a monotonic clock. A counter that decreases counts as unchanged.
    pub(crate) fn add(&mut self, now_ns: u64, sample: Sample) {
        if let Some((then_ns, before)) = self.latest {
            let passed_s = now_ns.saturating_sub(then_ns) as f64 / 1e9;
            if passed_s <= 0.0 {
                return;
            }
            let weight = 1.0 - (-passed_s / SMOOTHING_S).exp();
            let smooth = |rates: &mut [f64; 2], now: [u64; 2], before: [u64; 2]| {
                for end in 0..2 {
                    let rate = now[end].saturating_sub(before[end]) as f64 / passed_s;
                    rates[end] += (rate - rates[end]) * weight;
                }
            };
            smooth(&mut self.messages_s, sample.messages, before.messages);
            smooth(&mut self.bytes_s, sample.bytes, before.bytes);
        }
        self.latest = Some((now_ns, sample));
    }

    /// Returns the latest sample.
    pub(crate) fn latest(&self) -> Sample {
        self.latest.map(|(_, sample)| sample).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_page_is_read_and_what_makes_no_sense_in_it_is_ignored() {
        let memory = fable::page::create().unwrap();
        let page = Page::open(memory.as_fd()).unwrap();
        page.write(Role::Leader, Counter::MessagesSent, 7);
        page.write(Role::Leader, Counter::Cpu, 3);
        page.write(Role::Follower, Counter::Cpu, u64::MAX);
        let sample = Sample::of(&page, None);
        assert_eq!(sample.messages, [7, 0]);
        assert_eq!(sample.cpus, [Some(2), None]);
    }

    #[test]
    fn what_an_end_elsewhere_sends_is_what_arrives() {
        let memory = fable::page::create().unwrap();
        let page = Page::open(memory.as_fd()).unwrap();
        for (counter, value) in [
            (Counter::MessagesSent, 1),
            (Counter::BytesSent, 2),
            (Counter::MessagesReceived, 3),
            (Counter::BytesReceived, 4),
        ] {
            page.write(Role::Follower, counter, value);
        }
        let sample = Sample::of(&page, Some(Role::Follower));
        assert_eq!((sample.messages, sample.bytes), ([3, 1], [4, 2]));
    }

    #[test]
    fn rates_approach_what_happens_and_never_leave_the_finite() {
        let mut meter = Meter::default();
        for second in 0..20_u64 {
            let sample = Sample { messages: [second * 1000, 0], ..Sample::default() };
            meter.add(second * 1_000_000_000, sample);
        }
        assert!((meter.messages_s[0] - 1000.0).abs() < 1.0, "{:?}", meter.messages_s);
        // A peer that writes invalid values, twice at the same time, and decreasing ones.
        for (time, count) in [(21, u64::MAX), (21, 0), (22, 0), (20, u64::MAX), (23, 5)] {
            let sample = Sample { messages: [count; 2], bytes: [count; 2], ..Sample::default() };
            meter.add(time * 1_000_000_000, sample);
            assert!(meter.messages_s.iter().chain(&meter.bytes_s).all(|rate| rate.is_finite()));
            assert!(meter.messages_s.iter().all(|&rate| rate >= 0.0));
        }
    }
}
