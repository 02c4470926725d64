//! Computes the effects of an impaired network on frames, without I/O or clock: frames and times
//! are passed in, and frames are returned at their time of arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// The impairments of one direction; the default has none. Probabilities are from 0 to 1 and per
/// frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairment {
    /// Probability that a frame is lost by itself.
    pub loss: f64,
    /// Probability that a frame begins a burst of losses (Gilbert's model).
    pub burst: f64,
    /// Average number of frames in a burst, at least 1.
    pub burst_frames: f64,
    /// Probability that a frame arrives twice.
    pub duplication: f64,
    /// Probability that a bit of a frame is inverted.
    pub corruption: f64,
    /// Probability that a frame is delayed so that others overtake it.
    pub reordering: f64,
    /// The delay of such a frame.
    pub reordering_delay: Duration,
    /// The delay of all frames.
    pub delay: Duration,
    /// The largest additional random delay, which does not change the order.
    pub jitter: Duration,
    /// Bytes per second; zero is unlimited.
    pub rate_bytes: u64,
    /// Most bytes in flight; further frames are lost.
    pub queue_bytes: usize,
}

impl Default for Impairment {
    fn default() -> Impairment {
        Impairment {
            loss: 0.0,
            burst: 0.0,
            burst_frames: 1.0,
            duplication: 0.0,
            corruption: 0.0,
            reordering: 0.0,
            reordering_delay: Duration::from_millis(1),
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate_bytes: 0,
            queue_bytes: 8 << 20,
        }
    }
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairmentCounters {
    /// Frames that entered the impaired network.
    pub frames: u64,
    /// Frames lost at random, alone or in a burst.
    pub lost: u64,
    /// Frames lost because too many bytes were in flight.
    pub overflowed: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that arrived with an inverted bit.
    pub corrupted: u64,
    /// Frames that were overtaken.
    pub reordered: u64,
}

/// Pseudo-random numbers that depend only on the seed (Steele, Lea, Flood: "Fast splittable
/// pseudorandom number generators", OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below 1.
    fn fraction(&mut self) -> f64 {
        const BITS: u32 = 53;
        (self.next() >> (u64::BITS - BITS)) as f64 / (1_u64 << BITS) as f64
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.fraction() < probability
    }
}

/// A frame in flight.
pub(super) struct DelayedFrame<M> {
    due_ns: u64,
    /// The order among frames that arrive at the same time.
    number: u64,
    pub(super) bytes: Vec<u8>,
    /// The device's information about the frame, or its instructions.
    pub(super) about: M,
}

impl<M> DelayedFrame<M> {
    fn key(&self) -> (u64, u64) {
        (self.due_ns, self.number)
    }
}

impl<M> PartialEq for DelayedFrame<M> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<M> Eq for DelayedFrame<M> {}

impl<M> PartialOrd for DelayedFrame<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for DelayedFrame<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// One direction of the network.
pub(super) struct Direction<M> {
    emulator: Impairment,
    random: Random,
    in_burst: bool,
    /// The time until which the line is busy with earlier frames.
    busy_until_ns: u64,
    /// The latest arrival so far; frames in order do not arrive before it.
    last_due_ns: u64,
    held: BinaryHeap<Reverse<DelayedFrame<M>>>,
    held_bytes: usize,
    number: u64,
    /// Memory of frames that have arrived, for reuse.
    spare: Vec<Vec<u8>>,
    pub(super) counters: ImpairmentCounters,
}

impl<M: Copy> Direction<M> {
    pub(super) fn new(emulator: Impairment, seed: u64) -> Direction<M> {
        Direction {
            emulator,
            random: Random(seed),
            in_burst: false,
            busy_until_ns: 0,
            last_due_ns: 0,
            held: BinaryHeap::new(),
            held_bytes: 0,
            number: 0,
            spare: Vec::new(),
            counters: ImpairmentCounters::default(),
        }
    }

    /// Puts a frame in flight; calls `spoil` if a bit of it was inverted.
    pub(super) fn admit(&mut self, now_ns: u64, frame: &[u8], about: M, spoil: fn(&mut M)) {
        self.counters.frames += 1;
        if self.is_lost() {
            self.counters.lost += 1;
            return;
        }
        let copies = 1 + u64::from(self.random.happens(self.emulator.duplication));
        self.counters.duplicated += copies - 1;
        for _ in 0..copies {
            self.hold(now_ns, frame, about, spoil);
        }
    }

    fn is_lost(&mut self) -> bool {
        if self.in_burst {
            self.in_burst = !self.random.happens(1.0 / self.emulator.burst_frames.max(1.0));
        }
        // The frame with which a burst begins is lost, and so are the others until it ends.
        self.in_burst = self.in_burst || self.random.happens(self.emulator.burst);
        self.in_burst || self.random.happens(self.emulator.loss)
    }

    fn hold(&mut self, now_ns: u64, frame: &[u8], mut about: M, spoil: fn(&mut M)) {
        if self.held_bytes + frame.len() > self.emulator.queue_bytes {
            self.counters.overflowed += 1;
            return;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        if !bytes.is_empty() && self.random.happens(self.emulator.corruption) {
            let bit = self.random.next() as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            spoil(&mut about);
            self.counters.corrupted += 1;
        }
        let due_ns = self.due(now_ns, frame.len());
        self.held_bytes += bytes.len();
        self.number += 1;
        self.held.push(Reverse(DelayedFrame { due_ns, number: self.number, bytes, about }));
    }

    /// The time at which a frame that is sent now arrives.
    fn due(&mut self, now_ns: u64, bytes: usize) -> u64 {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut sent_ns = now_ns;
        if let Some(line_ns) = (bytes as u64 * 1_000_000_000).checked_div(self.emulator.rate_bytes)
        {
            sent_ns = now_ns.max(self.busy_until_ns).saturating_add(line_ns);
            self.busy_until_ns = sent_ns;
        }
        let jitter_ns = (nanoseconds(self.emulator.jitter) as f64 * self.random.fraction()) as u64;
        let due_ns =
            sent_ns.saturating_add(nanoseconds(self.emulator.delay)).saturating_add(jitter_ns);
        let due_ns = due_ns.max(self.last_due_ns);
        self.last_due_ns = due_ns;
        if self.random.happens(self.emulator.reordering) {
            self.counters.reordered += 1;
            return due_ns.saturating_add(nanoseconds(self.emulator.reordering_delay));
        }
        due_ns
    }

    /// The time at which the next frame arrives.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.held.peek().map(|Reverse(held)| held.due_ns)
    }

    /// Passes the next frame that has arrived to `take`. If `take` returns false, the frame stays
    /// and the call returns false.
    pub(super) fn release(&mut self, now_ns: u64, take: &mut dyn FnMut(&[u8], M) -> bool) -> bool {
        if self.deadline_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return false;
        }
        let Some(Reverse(next)) = self.held.peek() else { return false };
        if !take(&next.bytes, next.about) {
            return false;
        }
        if let Some(Reverse(next)) = self.held.pop() {
            const SPARE_MAX: usize = 256;
            self.held_bytes -= next.bytes.len();
            if self.spare.len() < SPARE_MAX {
                self.spare.push(next.bytes);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends frames, one each microsecond; returns the number and the time of each that arrives.
    fn run(emulator: Impairment, seed: u64, frames: u32) -> (Vec<(u64, u32)>, ImpairmentCounters) {
        let mut direction: Direction<()> = Direction::new(emulator, seed);
        let mut arrived = Vec::new();
        let mut collect = |direction: &mut Direction<()>, now_ns| {
            while direction.release(now_ns, &mut |bytes, ()| {
                arrived.push((now_ns, u32::from_be_bytes(bytes[..4].try_into().unwrap())));
                true
            }) {}
        };
        for number in 0..frames {
            let now_ns = u64::from(number) * 1000;
            let mut frame = [0; 100];
            frame[..4].copy_from_slice(&number.to_be_bytes());
            direction.admit(now_ns, &frame, (), |()| ());
            collect(&mut direction, now_ns);
        }
        while let Some(due_ns) = direction.deadline_ns() {
            collect(&mut direction, due_ns);
        }
        assert_eq!(direction.held_bytes, 0);
        (arrived, direction.counters)
    }

    const FRAMES: u32 = 100_000;

    fn near(value: u64, expected: f64) -> bool {
        (value as f64 - expected).abs() < expected * 0.1
    }

    #[test]
    fn nothing_happens_by_default_and_a_seed_repeats_all() {
        let (arrived, counters) = run(Impairment::default(), 1, 1000);
        let expected: Vec<(u64, u32)> = (0..1000).map(|n| (u64::from(n) * 1000, n)).collect();
        assert_eq!(arrived, expected);
        assert_eq!(counters, ImpairmentCounters { frames: 1000, ..Default::default() });
        let emulator = Impairment {
            loss: 0.1,
            duplication: 0.1,
            reordering: 0.1,
            jitter: Duration::from_micros(30),
            ..Impairment::default()
        };
        assert_eq!(run(emulator, 7, 1000), run(emulator, 7, 1000));
        assert_ne!(run(emulator, 7, 1000), run(emulator, 8, 1000));
    }

    #[test]
    fn losses_come_alone_or_in_bursts() {
        let (arrived, counters) = run(Impairment { loss: 0.02, ..Default::default() }, 1, FRAMES);
        assert!(near(counters.lost, 2000.0), "{counters:?}");
        assert_eq!(arrived.len() as u64 + counters.lost, u64::from(FRAMES));
        let emulator = Impairment { burst: 0.002, burst_frames: 10.0, ..Default::default() };
        let (arrived, counters) = run(emulator, 1, FRAMES);
        let gaps = arrived.windows(2).filter(|pair| pair[1].1 > pair[0].1 + 1).count() as u64;
        assert!(near(counters.lost, 10.0 * gaps as f64), "{} in {gaps} bursts", counters.lost);
    }

    #[test]
    fn frames_are_doubled_and_overtaken() {
        let emulator = Impairment {
            duplication: 0.05,
            reordering: 0.05,
            reordering_delay: Duration::from_micros(5),
            jitter: Duration::from_micros(50),
            ..Default::default()
        };
        let (arrived, counters) = run(emulator, 1, FRAMES);
        assert!(near(counters.duplicated, 5000.0) && near(counters.reordered, 5250.0));
        assert_eq!(arrived.len() as u64, u64::from(FRAMES) + counters.duplicated);
        assert!(!arrived.is_sorted_by_key(|&(_, number)| number));
        let emulator = Impairment { reordering: 0.0, duplication: 0.0, ..emulator };
        assert!(
            run(emulator, 1, FRAMES).0.is_sorted_by_key(|&(_, number)| number),
            "by jitter alone"
        );
    }

    #[test]
    fn delay_rate_and_queue_hold_frames_back() {
        let delay = Duration::from_millis(3);
        let (arrived, _) = run(Impairment { delay, ..Default::default() }, 1, 10);
        assert!(arrived.iter().all(|&(at, number)| at == u64::from(number) * 1000 + 3_000_000));
        // 100 bytes take 10 µs, but one frame is sent each microsecond.
        let emulator =
            Impairment { rate_bytes: 10_000_000, queue_bytes: 10_000, ..Default::default() };
        let (arrived, counters) = run(emulator, 1, 10_000);
        assert!(arrived.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 10_000));
        assert!(near(counters.overflowed, 9_000.0 - 100.0), "{counters:?}");
    }

    #[test]
    fn a_corrupted_frame_differs_in_one_bit_and_is_told() {
        let emulator = Impairment { corruption: 1.0, ..Default::default() };
        let mut direction: Direction<bool> = Direction::new(emulator, 3);
        direction.admit(0, &[0; 50], true, |verified| *verified = false);
        assert!(!direction.release(0, &mut |_, _| false), "it is not taken, and stays");
        let mut seen = None;
        direction.release(0, &mut |bytes, verified| {
            seen = Some((bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), verified));
            true
        });
        assert_eq!(seen, Some((1, false)));
    }
}
