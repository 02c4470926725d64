use proptest::prelude::*;

use super::conditions::Conditions;
use super::link::{Link, LinkOutcome};

fn conditions(text: &str) -> Conditions {
    text.parse().unwrap()
}

/// Everything that has arrived by `now_ns`, as (arrival time, number).
fn arrivals(link: &mut Link<usize>, now_ns: u64) -> Vec<(u64, usize)> {
    std::iter::from_fn(|| link.take(now_ns)).collect()
}

#[test]
fn a_delay_is_exact() {
    let mut link = Link::new(&conditions("delay=10ms"), 1);
    for number in 0..3 {
        assert_eq!(link.offer(number as u64 * 7, number, 100, false), LinkOutcome::Delivered);
    }
    assert_eq!(link.next_due_ns(), Some(10_000_000));
    assert!(arrivals(&mut link, 9_999_999).is_empty());
    assert_eq!(arrivals(&mut link, 10_000_007), [(10_000_000, 0), (10_000_007, 1)]);
    assert_eq!(link.flying(), 1);
}

#[test]
fn a_rate_spaces_packets_out() {
    // 100 bytes at 1 Mbit/s take 800 µs.
    let mut link = Link::new(&conditions("rate=1Mbit"), 1);
    for number in 0..3 {
        assert_eq!(link.offer(5_000, number, 100, false), LinkOutcome::Delivered);
    }
    let due: Vec<u64> = arrivals(&mut link, u64::MAX).iter().map(|(due_ns, _)| *due_ns).collect();
    assert_eq!(due, [805_000, 1_605_000, 2_405_000]);
    assert_eq!(link.offer(1_000_000_000, 9, 100, false), LinkOutcome::Delivered);
    assert_eq!(link.next_due_ns(), Some(1_000_800_000), "an idle queue saves nothing up");
}

#[test]
fn a_full_queue_drops_the_last_and_empties_at_the_rate() {
    let mut link = Link::new(&conditions("rate=8Mbit,queue=1500,mtu=1000"), 1);
    let outcomes = |link: &mut Link<usize>, now_ns, spared| {
        [0, 1, 2].map(|number| link.offer(now_ns, number, 700, spared))
    };
    assert_eq!(
        outcomes(&mut link, 0, false),
        [LinkOutcome::Delivered, LinkOutcome::Delivered, LinkOutcome::QueueFull]
    );
    // A byte per microsecond: 700 of the 1400 have left.
    assert_eq!(
        outcomes(&mut link, 700_000, false),
        [LinkOutcome::Delivered, LinkOutcome::QueueFull, LinkOutcome::QueueFull]
    );
    assert_eq!(outcomes(&mut link, 700_000, true), [LinkOutcome::Delivered; 3]);
}

#[test]
fn an_empty_queue_takes_any_packet() {
    let mut link = Link::new(&conditions("rate=8Mbit,queue=600,mtu=600"), 1);
    assert_eq!(link.offer(0, 0, 9_000, false), LinkOutcome::Delivered);
}

#[test]
fn losses_follow_the_probability_and_the_seed() {
    let run = |loss: &str, seed| -> Vec<LinkOutcome> {
        let mut link = Link::new(&conditions(&format!("loss={loss}")), seed);
        (0..10_000).map(|number| link.offer(number as u64, number, 10, false)).collect()
    };
    let lost = |outcomes: &[LinkOutcome]| {
        outcomes.iter().filter(|outcome| **outcome == LinkOutcome::Lost).count()
    };
    assert_eq!(lost(&run("0", 1)), 0);
    assert_eq!(lost(&run("1", 1)), 10_000);
    // Ten standard deviations of a binomial distribution.
    assert!((700..1_300).contains(&lost(&run("0.1", 1))));
    assert_eq!(run("0.1", 7), run("0.1", 7));
    assert_ne!(run("0.1", 7), run("0.1", 8));
    let mut link = Link::new(&conditions("loss=1"), 1);
    assert_eq!(link.offer(0, 0, 10, true), LinkOutcome::Delivered, "spared packets are not lost");
}

#[test]
fn what_flies_is_bounded() {
    let mut link = Link::new(&conditions("delay=1s"), 1);
    let outcomes: Vec<LinkOutcome> = (0..4_000).map(|n| link.offer(0, n, 65_535, false)).collect();
    let flying = outcomes.iter().filter(|outcome| **outcome == LinkOutcome::Delivered).count();
    assert!((1_000..3_000).contains(&flying) && flying == link.flying());
    assert!(outcomes[flying..].iter().all(|outcome| *outcome == LinkOutcome::FlightFull));
    assert_eq!(arrivals(&mut link, 1_000_000_000).len(), flying);
    assert_eq!(link.offer(1_000_000_000, 0, 65_535, false), LinkOutcome::Delivered);
}

#[test]
fn only_reordering_lets_packets_overtake() {
    for (text, ordered) in [("delay=5ms,jitter=5ms", true), ("delay=5ms,jitter=5ms,reorder", false)]
    {
        let mut link = Link::new(&conditions(text), 3);
        for number in 0..1_000 {
            link.offer(number as u64 * 1_000, number, 10, false);
        }
        let numbers: Vec<_> =
            arrivals(&mut link, u64::MAX).into_iter().map(|(_, number)| number).collect();
        assert_eq!(numbers.is_sorted(), ordered, "{text}");
        assert_eq!(numbers.len(), 1_000);
    }
}

/// A simple model of a link's queue: a list of its packets.
#[derive(Default)]
struct QueueModel {
    /// When each accepted packet leaves the queue, in ns as a fraction, and its size.
    leaving: Vec<(f64, usize)>,
}

impl QueueModel {
    /// Returns the time at which the packet leaves; `None` if it was dropped.
    fn offer(&mut self, now_ns: u64, bytes: usize, rate: u64, queue_bytes: usize) -> Option<f64> {
        let now = now_ns as f64;
        let ns_per_byte = 8e9 / rate as f64;
        let waiting: f64 = self
            .leaving
            .iter()
            .map(|(leaves, size)| ((leaves - now) / ns_per_byte).clamp(0.0, *size as f64))
            .sum();
        if waiting > 0.0 && (waiting - 1e-6).ceil() + bytes as f64 > queue_bytes as f64 {
            return None;
        }
        let free = self.leaving.last().map_or(now, |(leaves, _)| leaves.max(now));
        let leaves = free + bytes as f64 * ns_per_byte;
        self.leaving.push((leaves, bytes));
        Some(leaves)
    }
}

proptest! {
    #[test]
    fn a_link_does_what_its_model_does(
        packets in prop::collection::vec((0..2_000_000_u64, 20..1_500_usize), 1..120),
        rate in 1_000_000..1_000_000_000_u64,
        queue_bytes in 1_500..20_000_usize,
        delay_us in 0..20_000_u64,
    ) {
        let text = format!("delay={delay_us}us,rate={rate}bit,queue={queue_bytes}");
        let mut link = Link::new(&conditions(&text), 5);
        let mut model = QueueModel::default();
        let (mut now_ns, mut expected) = (0, Vec::new());
        for (number, &(gap_ns, bytes)) in packets.iter().enumerate() {
            now_ns += gap_ns;
            let leaves = model.offer(now_ns, bytes, rate, queue_bytes);
            let outcome = link.offer(now_ns, number, bytes, false);
            let delivered = [LinkOutcome::QueueFull, LinkOutcome::Delivered];
            prop_assert_eq!(outcome, delivered[usize::from(leaves.is_some())]);
            if let Some(leaves) = leaves {
                expected.push((leaves + delay_us as f64 * 1e3, number));
            }
        }
        let arrived = arrivals(&mut link, u64::MAX);
        prop_assert_eq!(arrived.len(), expected.len());
        for ((due_ns, number), (model_due, model_number)) in arrived.into_iter().zip(expected) {
            prop_assert_eq!(number, model_number);
            prop_assert!((due_ns as f64 - model_due).abs() < 2.0, "{} {}", due_ns, model_due);
        }
    }

    #[test]
    fn jitter_stays_within_its_bounds(
        gaps_ns in prop::collection::vec(0..5_000_000_u64, 1..100),
        reorder: bool,
        loss in 0.0..0.5_f64,
        seed: u64,
    ) {
        let (least_ns, most_ns) = (1_000_000, 5_000_000);
        let text = format!("delay=3ms,jitter=2ms,loss={loss},reorder={reorder}");
        let mut link = Link::new(&conditions(&text), seed);
        let (mut now_ns, mut sent, mut arrived) = (0, Vec::new(), Vec::new());
        for gap_ns in gaps_ns {
            now_ns += gap_ns;
            arrived.extend(arrivals(&mut link, now_ns));
            let number = sent.len();
            let outcome = link.offer(now_ns, number, 100, false);
            sent.push((now_ns, outcome));
        }
        arrived.extend(arrivals(&mut link, u64::MAX));
        prop_assert!(arrived.is_sorted_by_key(|(due_ns, _)| *due_ns));
        prop_assert!(reorder || arrived.is_sorted_by_key(|(_, number)| *number));
        let mut numbers: Vec<_> = arrived.iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        let flown: Vec<_> =
            (0..sent.len()).filter(|&number| sent[number].1 == LinkOutcome::Delivered).collect();
        prop_assert_eq!(numbers, flown);
        // A packet that waited for its predecessor arrives no later than the predecessor could
        // have.
        for (due_ns, number) in arrived {
            let flight_ns = due_ns - sent[number].0;
            prop_assert!((least_ns..=most_ns).contains(&flight_ns), "{}", flight_ns);
        }
    }
}
