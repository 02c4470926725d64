//! The scoreboard against a model that knows every byte, and each rule by itself.

use super::*;
use proptest::prelude::*;

fn at(microseconds: u64) -> Instant {
    Instant::from_nanos(microseconds * 1000)
}

fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

fn block(start: u32, end: u32) -> SackBlock {
    SackBlock { start: Sequence(start), end: Sequence(end) }
}

const PARAMETERS: RackParameters = RackParameters {
    minimum: Some(Duration::ZERO),
    smoothed: None,
    in_recovery: false,
    maximum_segment: 1000,
};

#[derive(Clone, Copy, Debug)]
struct Byte {
    sent_at: Instant,
    sacked: bool,
    lost: bool,
    resent: bool,
}

/// Every byte outstanding, from `start` on.
#[derive(Debug)]
struct Model {
    start: Sequence,
    bytes: Vec<Byte>,
    newest: Option<(Instant, Sequence)>,
    round_trip: Duration,
    reneged: bool,
}

impl Model {
    fn count(&self, which: impl Fn(&Byte) -> bool) -> u32 {
        self.bytes.iter().filter(|byte| which(byte)).count() as u32
    }

    /// Places of the bytes of a range that are outstanding.
    fn places(&self, start: Sequence, end: Sequence) -> std::ops::Range<usize> {
        let place = |sequence: Sequence| {
            sequence.distance(self.start).clamp(0, self.bytes.len() as i32) as usize
        };
        place(start)..place(end)
    }

    fn deliver(&mut self, place: usize, now: Instant) {
        let byte = self.bytes[place];
        let end = self.start + (place as u32 + 1);
        let is_newer = self.newest.is_none_or(|(sent_at, newest)| {
            byte.sent_at > sent_at || (byte.sent_at == sent_at && end > newest)
        });
        if is_newer {
            self.newest = Some((byte.sent_at, end));
            self.round_trip = now.since(byte.sent_at);
        }
    }

    fn acknowledge(&mut self, acknowledged: Sequence, now: Instant) -> Acknowledged {
        let mut told = Acknowledged::default();
        let count = acknowledged.distance(self.start);
        if count <= 0 || count as usize > self.bytes.len() {
            return told;
        }
        told.bytes = count as u32;
        for place in 0..count as usize {
            let byte = self.bytes[place];
            if !byte.sacked {
                self.deliver(place, now);
                told.delivered += 1;
                told.resent |= byte.resent;
                told.original |= !byte.resent;
                told.round_trip = Some(now.since(byte.sent_at));
            }
        }
        told.round_trip = told.round_trip.filter(|_| !told.resent);
        self.bytes.drain(..count as usize);
        self.start = acknowledged;
        told
    }

    fn sack(&mut self, blocks: &[SackBlock], now: Instant) -> Sacked {
        let mut told = Sacked::default();
        let mut blocks = blocks;
        if is_duplicate_report(blocks, self.start) {
            told.duplicate = Some(blocks[0]);
            blocks = &blocks[1..];
        }
        let mut newest = None;
        for block in blocks {
            if block.end > self.start + self.bytes.len() as u32 {
                continue;
            }
            for place in self.places(block.start, block.end) {
                if self.bytes[place].sacked {
                    continue;
                }
                self.deliver(place, now);
                let byte = &mut self.bytes[place];
                (byte.sacked, byte.lost) = (true, false);
                told.bytes += 1;
                if !byte.resent {
                    told.original = true;
                    newest = newest.max(Some(byte.sent_at));
                }
            }
        }
        told.round_trip = newest.map(|sent_at| now.since(sent_at));
        told
    }

    /// Neighbours that had arrived became one record, as late as the latest of them, so of what the
    /// peer has taken back no more is known than that.
    fn forget_details(&mut self, board: &Scoreboard) {
        self.reneged = true;
        for (byte, place) in self.bytes.iter_mut().zip(0..) {
            let index = board.flight.find(self.start + place);
            let record = board.flight.get(index).expect("it is outstanding");
            assert!(record.sent_at >= byte.sent_at && record.resent >= byte.resent);
            (byte.sent_at, byte.resent) = (record.sent_at, record.resent);
        }
    }

    /// A record is lost or not as a whole, by its end. Until the peer has taken its word back that
    /// comes to the same as looking at each byte.
    fn detect(&mut self, now: Instant, board: &Scoreboard) -> Losses {
        let mut losses = Losses::default();
        let Some((newest, end)) = self.newest else { return losses };
        for (byte, place) in self.bytes.iter_mut().zip(1..) {
            let mut behind = self.start + place;
            if self.reneged {
                let index = board.flight.find(behind - 1);
                behind = board.flight.get(index).expect("it is outstanding").end;
            }
            let older = newest > byte.sent_at || (newest == byte.sent_at && end > behind);
            if byte.sacked || byte.lost || !older {
                continue;
            }
            let due = byte.sent_at + self.round_trip;
            if due <= now {
                byte.lost = true;
                losses.bytes += 1;
            } else {
                losses.deadline = losses.deadline.max(Some(due));
            }
        }
        losses
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Acknowledge(u32),
    Sack(Vec<(i32, u32)>),
    /// Sends again what is lost, at most so many bytes of it.
    Resend(u32),
    /// Sends again whatever lies there.
    ResendAt(u32, u32),
    Detect,
    Timeout,
    Needless,
    MarkFirst(u32),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let blocks = prop::collection::vec((-50i32..2500, 1u32..400), 1..5);
    prop_oneof![
        6 => (1u32..400).prop_map(Step::Send),
        3 => (0u32..600).prop_map(Step::Acknowledge),
        4 => blocks.prop_map(Step::Sack),
        4 => (1u32..300).prop_map(Step::Resend),
        1 => (0u32..2000, 1u32..300).prop_map(|(offset, bytes)| Step::ResendAt(offset, bytes)),
        4 => Just(Step::Detect),
        1 => Just(Step::Timeout),
        1 => Just(Step::Needless),
        1 => (1u32..300).prop_map(Step::MarkFirst),
        4 => (1u64..200).prop_map(Step::Wait),
    ]
}

fn mark(bytes: &mut [Byte], now: Instant) {
    for byte in bytes.iter_mut().filter(|byte| !byte.sacked) {
        (byte.sent_at, byte.lost, byte.resent) = (now, false, true);
    }
}

/// Takes the step on both, and compares what they tell.
fn take(
    step: Step,
    board: &mut Scoreboard,
    model: &mut Model,
    now: &mut Instant,
) -> Result<(), TestCaseError> {
    let next = model.start + model.bytes.len() as u32;
    match step {
        Step::Send(bytes) => {
            board.sent(next, next + bytes, *now);
            let byte = Byte { sent_at: *now, sacked: false, lost: false, resent: false };
            model.bytes.resize(model.bytes.len() + bytes as usize, byte);
        }
        Step::Acknowledge(bytes) => {
            let acknowledged = model.start + bytes;
            let told = board.acknowledge(acknowledged, *now, None);
            prop_assert_eq!(told, model.acknowledge(acknowledged, *now));
        }
        Step::Sack(blocks) => {
            let blocks: Vec<SackBlock> = blocks
                .into_iter()
                .map(|(offset, bytes)| {
                    let start = Sequence(model.start.0.wrapping_add_signed(offset));
                    SackBlock { start, end: start + bytes }
                })
                .collect();
            let told = board.sack(&blocks, model.start, *now, None);
            prop_assert_eq!(told, model.sack(&blocks, *now));
        }
        Step::Resend(most) => {
            let place = model.bytes.iter().position(|byte| byte.lost);
            let lost = board.next_lost();
            prop_assert_eq!(lost.map(|lost| lost.0), place.map(|place| model.start + place as u32));
            if let Some((start, bytes)) = lost {
                let end = start + bytes.min(most);
                board.resent(start, end, *now);
                let places = model.places(start, end);
                prop_assert!(model.bytes[places.clone()].iter().all(|byte| byte.lost));
                mark(&mut model.bytes[places], *now);
            }
        }
        Step::ResendAt(offset, bytes) => {
            let (start, end) = (model.start + offset, model.start + offset + bytes);
            board.resent(start, end, *now);
            let places = model.places(start, end);
            mark(&mut model.bytes[places], *now);
        }
        Step::Detect => {
            let expected = model.detect(*now, board);
            prop_assert_eq!(board.detect_losses(*now, &PARAMETERS), expected);
        }
        Step::Timeout => {
            let before = model.count(|byte| byte.lost);
            let reneged = model.bytes.first().is_some_and(|byte| byte.sacked);
            for byte in &mut model.bytes {
                byte.sacked &= !reneged;
                byte.lost = !byte.sacked;
            }
            prop_assert_eq!(board.mark_all_lost(), model.count(|byte| byte.lost) - before);
            if reneged {
                model.forget_details(board);
            }
        }
        Step::Needless => {
            board.mark_none_lost();
            model.bytes.iter_mut().for_each(|byte| byte.lost = false);
        }
        Step::MarkFirst(most) => {
            let bytes = board.mark_first_lost(most) as usize;
            prop_assert!(bytes <= most as usize && bytes <= model.bytes.len());
            prop_assert!(
                bytes > 0 || model.bytes.first().is_none_or(|byte| byte.sacked || byte.lost)
            );
            for byte in &mut model.bytes[..bytes] {
                prop_assert!(!byte.sacked && !byte.lost);
                byte.lost = true;
            }
        }
        Step::Wait(time) => *now = *now + us(time),
    }
    Ok(())
}

/// What every scoreboard must be, whatever came before.
fn check(board: &Scoreboard, model: &Model) -> Result<(), TestCaseError> {
    let (sacked, lost) = (model.count(|byte| byte.sacked), model.count(|byte| byte.lost));
    prop_assert_eq!(board.outstanding() as usize, model.bytes.len());
    prop_assert_eq!((board.sacked_bytes(), board.lost_bytes()), (sacked, lost));
    prop_assert_eq!(board.in_flight(), board.outstanding() - sacked - lost);
    let mut place = board.unacknowledged;
    for index in 0..board.flight.len() {
        let record = board.flight.get(index).expect("within the length");
        prop_assert!(record.start == place && record.bytes() > 0);
        prop_assert!(!(record.sacked && record.lost));
        place = record.end;
    }
    prop_assert_eq!(place, board.next);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_scoreboard_says_what_its_model_says(
        steps in prop::collection::vec(step(), 1..120),
        initial in prop_oneof![any::<u32>(), (u32::MAX - 3000)..=u32::MAX],
    ) {
        let mut now = at(1_000_000);
        let mut board = Scoreboard::new();
        let start = Sequence(initial);
        (board.unacknowledged, board.next, board.first_lost) = (start, start, start);
        let mut model = Model {
            start,
            bytes: Vec::new(),
            newest: None,
            round_trip: Duration::ZERO,
            reneged: false,
        };
        for step in steps {
            take(step, &mut board, &mut model, &mut now)?;
            check(&board, &model)?;
        }
    }
}
