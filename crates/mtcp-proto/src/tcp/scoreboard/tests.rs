//! Compares the scoreboard with a model that stores every byte, and tests each rule by itself.

use super::detail::{RECORDS, RECORDS_MAX, is_duplicate_report};
use super::flight::Record;
use super::*;
use proptest::prelude::*;

impl Scoreboard {
    /// The details, or those that the plain range would have.
    fn detailed(&self) -> Detail {
        match &self.detail {
            Some(detail) => Detail::clone(detail),
            None => Detail::new(self.unacknowledged, self.next, self.sent_at),
        }
    }
}

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

/// The state of every outstanding byte, from `start` on.
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

    /// Indices of the outstanding bytes of a range.
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
                told.original |= !byte.resent;
                told.round_trip = Some(now.since(byte.sent_at));
                if byte.resent {
                    told.resent_for = told.resent_for.max(told.round_trip);
                }
            }
        }
        told.round_trip = told.round_trip.filter(|_| told.resent_for.is_none());
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

    /// Merges neighbouring bytes that have arrived into one record with the latest of their times.
    /// After the peer has revoked its SACK, the scoreboard knows no more than that.
    fn forget_details(&mut self, board: &Scoreboard) {
        self.reneged = true;
        let detail = board.detailed();
        for (byte, place) in self.bytes.iter_mut().zip(0..) {
            let index = detail.flight.find(self.start + place);
            let record = detail.flight.get(index).expect("it is outstanding");
            assert!(record.sent_at >= byte.sent_at && record.resent >= byte.resent);
            (byte.sent_at, byte.resent) = (record.sent_at, record.resent);
        }
    }

    /// Declares a record lost as a whole, by its end. Until the peer revokes a SACK, this equals
    /// the decision for each byte.
    fn detect(&mut self, now: Instant, board: &Scoreboard) -> Losses {
        let mut losses = Losses::default();
        let Some((newest, end)) = self.newest else { return losses };
        let detail = board.detailed();
        for (byte, place) in self.bytes.iter_mut().zip(1..) {
            let mut behind = self.start + place;
            if self.reneged {
                let index = detail.flight.find(behind - 1);
                behind = detail.flight.get(index).expect("it is outstanding").end;
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
    /// Sends lost data again, at most this number of bytes.
    Resend(u32),
    /// Sends the data at this place again, in any state.
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

/// Performs the step on both, and compares the results.
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
        Step::Acknowledge(_) | Step::Sack(_) => hear(step, board, model, *now)?,
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

/// Applies an answer of the peer to both.
fn hear(
    step: Step,
    board: &mut Scoreboard,
    model: &mut Model,
    now: Instant,
) -> Result<(), TestCaseError> {
    match step {
        Step::Acknowledge(bytes) => {
            let acknowledged = model.start + bytes;
            let told = board.acknowledge(acknowledged, now, None);
            prop_assert_eq!(told, model.acknowledge(acknowledged, now));
        }
        Step::Sack(blocks) => {
            let blocks: Vec<SackBlock> = blocks
                .into_iter()
                .map(|(offset, bytes)| {
                    let start = Sequence(model.start.0.wrapping_add_signed(offset));
                    SackBlock { start, end: start + bytes }
                })
                .collect();
            let told = board.sack(&blocks, model.start, now, None);
            prop_assert_eq!(told, model.sack(&blocks, now));
        }
        _ => unreachable!("the peer answers with acknowledgements and blocks"),
    }
    Ok(())
}

/// Checks the invariants of every scoreboard.
fn check(board: &Scoreboard, model: &Model) -> Result<(), TestCaseError> {
    let (sacked, lost) = (model.count(|byte| byte.sacked), model.count(|byte| byte.lost));
    prop_assert_eq!(board.outstanding() as usize, model.bytes.len());
    prop_assert_eq!((board.sacked_bytes(), board.lost_bytes()), (sacked, lost));
    prop_assert_eq!(board.in_flight(), board.outstanding() - sacked - lost);
    let detail = board.detailed();
    let mut place = detail.unacknowledged;
    for index in 0..detail.flight.len() {
        let record = detail.flight.get(index).expect("within the length");
        prop_assert!(record.start == place && record.bytes() > 0);
        prop_assert!(!(record.sacked && record.lost));
        place = record.end;
    }
    prop_assert_eq!(place, detail.next);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
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
        (board.unacknowledged, board.next) = (start, start);
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

fn board(segments: u32, now: Instant) -> Scoreboard {
    let mut board = Scoreboard::new();
    for segment in 0..segments {
        let start = Sequence(segment * 1000);
        board.sent(start, start + 1000, now + us(u64::from(segment)));
    }
    board
}

#[test]
fn a_lone_flight_needs_no_memory_on_the_heap() {
    let mut board = Scoreboard::new();
    for round in 0..100 {
        let start = Sequence(u32::MAX - 50_000) + round * 1000;
        // Many segments that are sent at one time.
        board.sent(start, start + 400, at(u64::from(round)));
        board.sent(start + 400, start + 1000, at(u64::from(round)));
        assert!(board.detail.is_none());
        assert_eq!(board.in_flight(), 1000);
        assert_eq!(board.last_segment(100), Some((start + 900, 100)));
        let told = board.acknowledge(start + 1000, at(u64::from(round) + 70), None);
        assert_eq!((told.bytes, told.delivered, told.round_trip), (1000, 1000, Some(us(70))));
    }
    assert_eq!((board.outstanding(), board.last_segment(100)), (0, None));
    assert!(board.detail.is_none());
    assert!(size_of::<Scoreboard>() <= 24, "{}", size_of::<Scoreboard>());
}

#[test]
fn acknowledgements_of_what_is_not_outstanding_change_nothing() {
    let mut board = board(3, at(0));
    for wrong in [Sequence(0), Sequence(3001), Sequence(0) - 1, Sequence(1 << 31)] {
        assert_eq!(board.acknowledge(wrong, at(9), None), Acknowledged::default());
    }
    for wrong in [block(2000, 3001), block(2000, 2000), block(2500, 2000), block(5000, 9000)] {
        assert_eq!(board.sack(&[wrong], Sequence(0), at(9), None), Sacked::default());
    }
    assert_eq!((board.in_flight(), board.sacked_bytes()), (3000, 0));
}

#[test]
fn a_gap_is_lost_once_three_segments_have_passed_it() {
    let mut board = board(5, at(0));
    let parameters = RackParameters { minimum: Some(us(100)), ..PARAMETERS };
    // Two segments behind the gap: the wait is a quarter of the least round trip (RFC 8985).
    board.sack(&[block(1000, 3000)], Sequence(0), at(102), None);
    let losses = board.detect_losses(at(102), &parameters);
    assert_eq!(losses, Losses { bytes: 0, deadline: Some(at(125)) });
    assert_eq!(board.detect_losses(at(124), &parameters).bytes, 0);
    // A third segment ends the wait, because no reordering was ever seen.
    board.sack(&[block(1000, 4000)], Sequence(0), at(124), None);
    assert_eq!(board.detect_losses(at(124), &parameters).bytes, 1000);
    assert_eq!((board.next_lost(), board.in_flight()), (Some((Sequence(0), 1000)), 1000));
    board.resent(Sequence(0), Sequence(1000), at(125));
    assert_eq!((board.next_lost(), board.in_flight()), (None, 2000));
    // The retransmission is lost too: data that was sent after it has arrived.
    board.sent(Sequence(5000), Sequence(6000), at(126));
    board.sack(&[block(5000, 6000)], Sequence(0), at(226), None);
    let in_recovery = RackParameters { in_recovery: true, ..parameters };
    assert_eq!(board.detect_losses(at(226), &in_recovery).bytes, 2000);
    assert_eq!(board.next_lost(), Some((Sequence(0), 1000)));
}

#[test]
fn the_reorder_deadline_finds_the_loss() {
    let mut board = board(2, at(0));
    let parameters = RackParameters { minimum: Some(us(100)), ..PARAMETERS };
    board.sack(&[block(1000, 2000)], Sequence(0), at(101), None);
    let deadline = board.detect_losses(at(101), &parameters).deadline.expect("one gap");
    assert_eq!(deadline, at(125));
    let losses = board.detect_losses(deadline, &parameters);
    assert_eq!(losses, Losses { bytes: 1000, deadline: None });
}

#[test]
fn reordering_and_duplicates_widen_the_window_and_recoveries_narrow_it() {
    let mut board = board(6, at(0));
    let parameters = RackParameters {
        minimum: Some(us(100)),
        smoothed: Some(us(160)),
        in_recovery: true,
        ..PARAMETERS
    };
    let window = |board: &Scoreboard| board.detailed().rack.reordering_window(&parameters, 9000);
    assert_eq!(window(&board), Duration::ZERO);
    board.sack(&[block(2000, 3000)], Sequence(0), at(100), None);
    board.sack(&[block(1000, 3000)], Sequence(0), at(101), None);
    assert!(board.detailed().rack.reordering_seen());
    assert_eq!(window(&board), us(25));
    // A duplicate was reported: the window doubles, once per round trip.
    let told = board.sack(&[block(0, 1000)], Sequence(1000), at(102), None);
    assert_eq!((told.duplicate, told.bytes), (Some(block(0, 1000)), 0));
    board.sack(&[block(0, 1000)], Sequence(1000), at(102), None);
    assert_eq!(window(&board), us(50));
    board.acknowledge(Sequence(6000), at(103), None);
    for sent in 6..30 {
        board.sent(Sequence(sent * 1000), Sequence(sent * 1000 + 1000), at(200));
        board.sack(&[block(500, 1000)], Sequence(sent * 1000), at(201), None);
        board.acknowledge(Sequence(sent * 1000 + 1000), at(201), None);
    }
    assert_eq!(window(&board), us(160), "never beyond the smoothed round trip");
    for _ in 0..16 {
        board.on_recovery_end();
    }
    assert_eq!(window(&board), us(25));
}

#[test]
fn a_duplicate_within_the_second_block_is_reported_as_one() {
    let mut board = board(4, at(0));
    let told = board.sack(&[block(2000, 2500), block(2000, 4000)], Sequence(0), at(9), None);
    assert_eq!((told.duplicate, told.bytes), (Some(block(2000, 2500)), 2000));
    assert_eq!(board.sacked_bytes(), 2000);
}

#[test]
fn an_answer_too_soon_is_to_the_first_copy() {
    let mut board = board(2, at(0));
    board.mark_all_lost();
    board.resent(Sequence(0), Sequence(1000), at(1000));
    // 5 µs after the retransmission, on a path of 100 µs: this shows nothing about the second
    // segment.
    board.acknowledge(Sequence(1000), at(1005), Some(us(100)));
    board.mark_none_lost();
    assert_eq!(board.detect_losses(at(1006), &PARAMETERS), Losses::default());
    // If it had arrived after 100 µs, the data sent long before would be lost.
    board.sent(Sequence(2000), Sequence(3000), at(1010));
    board.acknowledge(Sequence(1000), at(1100), Some(us(100)));
    board.sack(&[block(2000, 3000)], Sequence(1000), at(1110), Some(us(100)));
    assert_eq!(board.detect_losses(at(1110), &PARAMETERS).bytes, 1000);
}

#[test]
fn without_sack_duplicates_stand_for_segments() {
    let mut board = board(6, at(0));
    assert_eq!((board.duplicate_ack(1000), board.in_flight()), (1, 5000));
    assert_eq!((board.duplicate_ack(1000), board.duplicate_ack(1000)), (2, 3));
    assert_eq!(board.mark_first_lost(1000), 1000);
    assert_eq!(board.mark_first_lost(1000), 0, "it is lost already");
    assert_eq!((board.in_flight(), board.next_lost()), (2000, Some((Sequence(0), 1000))));
    board.resent(Sequence(0), Sequence(1000), at(50));
    assert_eq!(board.in_flight(), 3000);
    // A partial acknowledgement: the first segment and two behind it; the next gap is at 3000.
    let told = board.acknowledge(Sequence(3000), at(100), None);
    assert_eq!((told.bytes, told.delivered, told.round_trip), (3000, 1000, None));
    assert_eq!(board.in_flight(), 2000);
    assert_eq!((board.mark_first_lost(1000), board.in_flight()), (1000, 1000));
    board.resent(Sequence(3000), Sequence(4000), at(150));
    for _ in 0..100 {
        board.duplicate_ack(1000);
    }
    assert_eq!(board.in_flight(), 1000, "more than is there cannot have arrived");
    board.acknowledge(Sequence(6000), at(200), None);
    board.on_recovery_end();
    assert_eq!((board.in_flight(), board.outstanding()), (0, 0));
}

#[test]
fn a_peer_that_takes_its_word_back_is_sent_everything() {
    let mut board = board(4, at(0));
    board.sack(&[block(1000, 3000)], Sequence(0), at(9), None);
    assert_eq!(board.mark_all_lost(), 2000);
    assert_eq!((board.sacked_bytes(), board.next_lost()), (2000, Some((Sequence(0), 1000))));
    board.acknowledge(Sequence(1000), at(10), None);
    // The peer has reported 1000 to 3000, and does not acknowledge it.
    assert_eq!(board.mark_all_lost(), 2000);
    assert_eq!((board.sacked_bytes(), board.lost_bytes()), (0, 3000));
}

#[test]
fn records_are_bounded_whatever_is_sent_and_sacked() {
    let mut board = Scoreboard::new();
    for byte in 0..3 * RECORDS_MAX as u32 {
        board.sent(Sequence(byte * 10), Sequence(byte * 10 + 10), at(u64::from(byte)));
    }
    assert_eq!(board.detailed().flight.len(), RECORDS);
    let outstanding = board.outstanding();
    for place in 0..3 * RECORDS_MAX as u32 {
        board.sack(&[block(place * 10 + 3, place * 10 + 4)], Sequence(0), at(99_999), None);
        assert!(board.detailed().flight.len() <= RECORDS_MAX + 1);
    }
    let flight = board.detailed().flight;
    let sacked: u32 = (0..flight.len())
        .filter_map(|index| flight.get(index))
        .filter(|record| record.sacked)
        .map(Record::bytes)
        .sum();
    assert_eq!((board.sacked_bytes(), board.in_flight()), (sacked, outstanding - sacked));
    for more in 0..10 {
        let start = Sequence(outstanding + more * 10);
        board.sent(start, start + 10, at(100_000 + u64::from(more)));
        let end = start.0 + 10;
        board.sack(&[block(end - 1, end)], Sequence(0), at(100_001), None);
        assert!(board.detailed().flight.len() <= RECORDS_MAX + 1);
    }
    // All data can still be sent again, and acknowledged.
    board.mark_all_lost();
    let mut steps = 0;
    while let Some((start, bytes)) = board.next_lost() {
        board.resent(start, start + bytes.min(7), at(100_002));
        steps += 1;
        assert!(steps < 100_000, "it would never end");
    }
    let told = board.acknowledge(Sequence(outstanding + 100), at(100_003), None);
    assert_eq!((told.bytes, board.outstanding(), board.in_flight()), (outstanding + 100, 0, 0));
}
