//! Detects that the members of a partitioned listener accept very unequal numbers of connections.
//!
//! Steering by CPU gives all connections to one member if all handshakes run on one CPU. Each
//! member therefore counts its accepts on the group's [`Board`], in a cache line that only it
//! writes. It compares itself with the others once per window of its own accepts ([`Tally`]). A
//! member that accepts nothing does nothing, and in a balanced group a window costs a few loads.
//! [`Pacing`] limits how often the steering changes. The group changes it, under its lock.
//!
//! Counts and states are statistics: all accesses are relaxed, and a finding is checked against the
//! epoch before it has an effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Accepts of one member between two comparisons: few after each change, so that a dozen
/// connections that stay open are enough to detect inequality, then more.
const FIRST_WINDOW: u64 = 16;
const LONGEST_WINDOW: u64 = 64;

/// The members are unequal if the squared coefficient of variation of their accepts is above this:
/// if fewer than about half of the members get all connections. The estimate counts pairs of
/// accepts of the same member, so that chance alone gives zero on average for any number of
/// members.
const UNEQUAL: f64 = 0.9;

/// The same for two members, whose coefficient is at most 1: one has nine times the accepts of the
/// other. By chance, random CPUs reach it in the first windows of one of 3,000 pairs, and almost
/// never in later windows or in larger groups.
const UNEQUAL_PAIR: f64 = 0.6;

/// While connections are distributed at random, a member is stuck if another one has more than this
/// many times its accepts, and many connections wait in its queue.
const STUCK: u64 = 8;

/// Shortest time of rebalancing before steering by CPU is tried again.
const SHORTEST_HOLD: Duration = Duration::from_secs(1);
const LONGEST_HOLD: Duration = Duration::from_secs(64);

/// How the accept queue of a connection is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// The queue of the member that claims the CPU.
    ByCpu,
    /// The queue of any member, at random (rebalancing).
    Spread,
}

impl Steering {
    /// The steering in an epoch of the [`Board`].
    fn of(epoch: u64) -> Steering {
        if epoch & 1 == 0 { Steering::ByCpu } else { Steering::Spread }
    }
}

const FREE: u8 = 0;
const PAUSED: u8 = 1;
const ACCEPTING: u8 = 2;

/// One member's part of the board, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    accepts: AtomicU64,
    state: AtomicU8,
    /// Whether it gets connections while they are distributed at random.
    is_target: AtomicBool,
}

/// The counts and states that the members of a group publish.
#[derive(Debug)]
pub(super) struct Board {
    slots: Box<[Slot]>,
    /// Slots from this index on were never used.
    used: AtomicUsize,
    /// Changes with the members and the steering; odd while connections are distributed at random.
    epoch: AtomicU64,
    /// The steering is not changed before this time, in milliseconds since `began`.
    hold_ms: AtomicU64,
    began: Instant,
}

impl Board {
    /// Creates a board for at most this number of members.
    pub(super) fn new(members: usize) -> Arc<Board> {
        Arc::new(Board {
            slots: (0..members).map(|_| Slot::default()).collect(),
            used: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            hold_ms: AtomicU64::new(0),
            began: Instant::now(),
        })
    }

    /// Returns the time on the clock of this board.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn steering(&self) -> Steering {
        Steering::of(self.epoch())
    }

    /// Records the new steering, and invalidates earlier counts. This method and the following ones
    /// are called under the group's lock.
    pub(super) fn begin(&self, steering: Steering) {
        let next = (self.epoch() & !1).wrapping_add(2) | u64::from(steering == Steering::Spread);
        self.epoch.store(next, Ordering::Relaxed);
    }

    /// Keeps the steering until `until`.
    pub(super) fn hold(&self, until: Duration) {
        self.hold_ms.store(until.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns whether the steering must not be changed yet.
    pub(super) fn holds(&self, now: Duration) -> bool {
        (now.as_millis() as u64) < self.hold_ms.load(Ordering::Relaxed)
    }

    /// Takes a slot for a new member; `None` if all are in use.
    pub(super) fn take_slot(&self) -> Option<usize> {
        let slot = self.slots.iter().position(|slot| slot.is(FREE))?;
        self.slots[slot].state.store(PAUSED, Ordering::Relaxed);
        self.used.store(self.used.load(Ordering::Relaxed).max(slot + 1), Ordering::Relaxed);
        Some(slot)
    }

    pub(super) fn free_slot(&self, slot: usize) {
        self.slots[slot].state.store(FREE, Ordering::Relaxed);
        self.slots[slot].is_target.store(false, Ordering::Relaxed);
    }

    /// Chooses the members that accept now as targets of the random distribution.
    pub(super) fn choose_targets(&self) {
        for slot in &self.slots[..self.used.load(Ordering::Relaxed)] {
            slot.is_target.store(slot.is(ACCEPTING), Ordering::Relaxed);
        }
    }

    /// Whether the member of a slot is a target.
    pub(super) fn is_target(&self, slot: usize) -> bool {
        self.slots[slot].is_target.load(Ordering::Relaxed)
    }

    fn taken(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let used = &self.slots[..self.used.load(Ordering::Relaxed)];
        used.iter().enumerate().filter(|(_, slot)| !slot.is(FREE))
    }

    fn counts(&self) -> impl Iterator<Item = u64> {
        let used = &self.slots[..self.used.load(Ordering::Relaxed)];
        used.iter().map(|slot| slot.accepts.load(Ordering::Relaxed))
    }

    /// Compares the numbers of accepts of the accepting members since `since`.
    fn compare(&self, since: &[u64], epoch: u64) -> Finding {
        let accepting = self.taken().filter(|(_, slot)| slot.is(ACCEPTING));
        let accepted = accepting.map(|(number, slot)| {
            let count = slot.accepts.load(Ordering::Relaxed);
            (count.wrapping_sub(since.get(number).copied().unwrap_or(count)), number)
        });
        let (mut most, mut fewest) = (0, None::<(u64, usize)>);
        let (mut members, mut total, mut pairs) = (0.0, 0.0, 0.0);
        for member in accepted {
            most = most.max(member.0);
            fewest = Some(fewest.map_or(member, |fewest| fewest.min(member)));
            let count = member.0 as f64;
            members += 1.0;
            total += count;
            pairs += count * (count - 1.0);
        }
        let is_unequal = |fewest: u64| match Steering::of(epoch) {
            // Counts differ by chance, the more so the more members there are.
            Steering::ByCpu => {
                let bound = if members > 2.0 { UNEQUAL } else { UNEQUAL_PAIR };
                members * pairs > (1.0 + bound) * total * (total - 1.0)
            }
            Steering::Spread => fewest.saturating_mul(STUCK) < most,
        };
        let last = fewest.filter(|(fewest, _)| most >= FIRST_WINDOW && is_unequal(*fewest));
        let has_paused = |(number, slot): (usize, &Slot)| self.is_target(number) && slot.is(PAUSED);
        let is_target_paused = self.taken().any(has_paused);
        Finding { epoch, last: last.map(|(_, slot)| slot), is_target_paused }
    }
}

impl Slot {
    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Relaxed) == state
    }
}

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// The board's epoch at the start of the window; the finding is outdated if it has changed.
    pub(super) epoch: u64,
    /// If the members are unequal, the slot of the one with the fewest accepts.
    pub(super) last: Option<usize>,
    /// Whether a target accepts no connections now.
    pub(super) is_target_paused: bool,
}

impl Finding {
    /// Returns whether the finding is a reason to change the steering now.
    fn calls_for_change(&self, board: &Board, now: impl FnOnce(&Board) -> Duration) -> bool {
        let is_unequal = self.last.is_some();
        if board.steering() == Steering::Spread && (is_unequal || self.is_target_paused) {
            return true;
        }
        (is_unequal || board.steering() == Steering::Spread) && !board.holds(now(board))
    }
}

/// A member's count of its accepts, and its window for comparing. Belongs to one thread.
#[derive(Debug)]
pub(super) struct Tally {
    board: Arc<Board>,
    slot: usize,
    accepts: u64,
    is_accepting: bool,
    epoch: u64,
    window: u64,
    /// Number of accepts until the window is full.
    left: u64,
    /// All members' counts when the window was opened.
    since: Vec<u64>,
}

impl Tally {
    /// Creates the tally of the member with this slot.
    pub(super) fn new(board: Arc<Board>, slot: usize) -> Tally {
        // Counts continue from those of earlier members in the slot, because others may have noted
        // them.
        let accepts = board.slots[slot].accepts.load(Ordering::Relaxed);
        let (epoch, since) = (board.epoch(), board.counts().collect());
        let (window, left) = (FIRST_WINDOW, FIRST_WINDOW);
        Tally { board, slot, accepts, is_accepting: false, epoch, window, left, since }
    }

    /// Publishes whether the member accepts connections.
    pub(super) fn set_accepting(&mut self, is_accepting: bool) {
        if self.is_accepting != is_accepting {
            self.is_accepting = is_accepting;
            let state = if is_accepting { ACCEPTING } else { PAUSED };
            self.board.slots[self.slot].state.store(state, Ordering::Relaxed);
        }
    }

    /// Counts an accept; returns a finding if the window is now full and the finding requires a
    /// change.
    pub(super) fn accepted(&mut self) -> Option<Finding> {
        self.accepted_at(Board::now)
    }

    fn accepted_at(&mut self, now: impl FnOnce(&Board) -> Duration) -> Option<Finding> {
        let epoch = self.board.epoch();
        if epoch != self.epoch {
            self.epoch = epoch;
            self.open(FIRST_WINDOW);
        }
        self.accepts = self.accepts.wrapping_add(1);
        self.board.slots[self.slot].accepts.store(self.accepts, Ordering::Relaxed);
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        let finding = self.board.compare(&self.since, epoch);
        self.open((self.window * 2).min(LONGEST_WINDOW));
        finding.calls_for_change(&self.board, now).then_some(finding)
    }

    fn open(&mut self, window: u64) {
        self.window = window;
        self.left = window;
        self.since.clear();
        self.since.extend(self.board.counts());
    }
}

/// The durations of the two kinds of steering. Rebalancing lasts longer each time that steering by
/// CPU is soon unequal again.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    hold: Duration,
    by_cpu_since: Duration,
}

impl Pacing {
    /// Starts rebalancing; returns its end.
    pub(super) fn spread(&mut self, now: Duration) -> Duration {
        let is_soon = now.saturating_sub(self.by_cpu_since) <= self.hold * 2;
        let is_again = !self.hold.is_zero() && is_soon;
        self.hold = if is_again { (self.hold * 2).min(LONGEST_HOLD) } else { SHORTEST_HOLD };
        now + self.hold
    }

    /// Restores steering by CPU.
    pub(super) fn restore(&mut self, now: Duration) {
        self.by_cpu_since = now;
    }

    /// Handles a member that is too busy for its share; returns the time until which steering by
    /// CPU is kept.
    pub(super) fn keep_by_cpu(&mut self, now: Duration) -> Duration {
        self.by_cpu_since = now;
        self.hold = (self.hold * 2).clamp(SHORTEST_HOLD, LONGEST_HOLD);
        now + self.hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::ZERO;

    /// A board with members that all accept.
    fn members(count: usize) -> (Arc<Board>, Vec<Tally>) {
        let board = Board::new(count);
        let mut tallies: Vec<Tally> = (0..count)
            .map(|_| Tally::new(Arc::clone(&board), board.take_slot().unwrap()))
            .collect();
        tallies.iter_mut().for_each(|tally| tally.set_accepting(true));
        board.begin(Steering::ByCpu);
        (board, tallies)
    }

    /// Returns the number of accepts after which there is a finding, if there is one.
    fn accept(tally: &mut Tally, count: u64, now: Duration) -> Option<(u64, Finding)> {
        (1..=count).find_map(|number| Some((number, tally.accepted_at(|_| now)?)))
    }

    #[test]
    fn a_member_that_gets_everything_finds_it_out_in_the_first_window() {
        let (board, mut tallies) = members(3);
        let (count, finding) = accept(&mut tallies[1], 100, START).unwrap();
        assert_eq!((count, finding.last, finding.epoch), (16, Some(0), board.epoch()));
        assert!(!finding.is_target_paused);
    }

    #[test]
    fn equal_members_find_nothing_and_never_read_the_clock() {
        let (_, mut tallies) = members(2);
        for _ in 0..10_000 {
            for tally in &mut tallies {
                assert_eq!(tally.accepted_at(|_| panic!("the clock is read")), None);
            }
        }
        // Seven times as many accepts are below the limit.
        for number in 0..7_000 {
            assert_eq!(tallies[0].accepted_at(|_| panic!("the clock is read")), None);
            if number % 7 == 0 {
                tallies[1..]
                    .iter_mut()
                    .for_each(|tally| assert_eq!(tally.accepted_at(|_| START), None));
            }
        }
    }

    /// Lets members accept `each` connections on average, each of a random CPU of the first
    /// `active` members; returns whether there is a finding.
    fn accept_at_random(count: usize, active: usize, each: usize, seed: &mut u64) -> bool {
        let (_, mut tallies) = members(count);
        (0..each * count).any(|_| {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            tallies[(*seed >> 11) as usize % active].accepted_at(|_| START).is_some()
        })
    }

    #[test]
    fn chance_is_no_inequality_for_any_number_of_members() {
        let mut seed = 0x9E37_79B9_7F4A_7C15;
        for (count, runs) in
            [(2, 1000), (3, 1000), (4, 500), (8, 100), (16, 30), (64, 4), (256, 1), (1024, 1)]
        {
            let found =
                (0..runs).filter(|_| accept_at_random(count, count, 200, &mut seed)).count();
            assert!(found * 500 <= runs, "{count} members: {found} of {runs} runs");
        }
    }

    #[test]
    fn members_that_get_nothing_are_found_among_any_number() {
        let mut seed = 0x9E37_79B9_7F4A_7C15;
        for (count, active) in
            [(2, 1), (3, 1), (4, 1), (8, 3), (16, 6), (64, 24), (256, 1), (256, 96), (1024, 384)]
        {
            let is_found = accept_at_random(count, active, 40, &mut seed);
            assert!(is_found, "{active} of {count} members accept");
        }
    }

    #[test]
    fn inequality_that_begins_late_is_found_within_two_windows() {
        let (_, mut tallies) = members(2);
        for _ in 0..1000 {
            assert!(tallies.iter_mut().all(|tally| tally.accepted_at(|_| START).is_none()));
        }
        let (count, finding) = accept(&mut tallies[1], 1000, START).unwrap();
        assert!(count <= 2 * LONGEST_WINDOW && finding.last == Some(0), "{count}: {finding:?}");
    }

    #[test]
    fn members_that_do_not_accept_are_no_measure() {
        let (board, mut tallies) = members(2);
        tallies[0].set_accepting(false);
        assert_eq!(accept(&mut tallies[1], 1000, START), None);
        board.hold(Duration::from_secs(9));
        board.choose_targets();
        board.begin(Steering::Spread);
        assert_eq!(accept(&mut tallies[1], 1000, START), None);
        // Connections to a chosen member that does not accept would wait in its queue.
        tallies[0].set_accepting(true);
        board.choose_targets();
        board.begin(Steering::Spread);
        tallies[0].set_accepting(false);
        let (count, finding) = accept(&mut tallies[1], 1000, START).unwrap();
        assert!(count == 16 && finding.is_target_paused && finding.last.is_none());
    }

    #[test]
    fn nothing_changes_before_its_time() {
        let (board, mut tallies) = members(2);
        board.hold(Duration::from_secs(2));
        assert_eq!(accept(&mut tallies[0], 1000, Duration::from_secs(1)), None);
        assert!(accept(&mut tallies[0], 1000, Duration::from_secs(2)).is_some());
        board.begin(Steering::Spread);
        let mut until_found = |now| {
            (0..100).find_map(|_| {
                let found = tallies[0].accepted_at(|_| now);
                found.or_else(|| tallies[1].accepted_at(|_| now))
            })
        };
        assert_eq!(until_found(Duration::from_secs(1)), None);
        assert_eq!(until_found(Duration::from_secs(2)).unwrap().last, None);
    }

    #[test]
    fn a_slot_that_is_used_again_goes_on_counting() {
        let (board, mut tallies) = members(2);
        accept(&mut tallies[1], 15, START);
        board.free_slot(1);
        assert_eq!(board.take_slot(), Some(1));
        assert_eq!(board.take_slot(), None);
        board.begin(Steering::ByCpu);
        tallies[1] = Tally::new(Arc::clone(&board), 1);
        tallies[1].set_accepting(true);
        let (count, finding) = accept(&mut tallies[1], 100, START).unwrap();
        assert_eq!((count, finding.last), (16, Some(0)));
    }

    #[test]
    fn trials_become_rare_while_they_fail() {
        let mut pacing = Pacing::default();
        let mut now = Duration::from_secs(100);
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            let until = pacing.spread(now);
            assert_eq!(until, now + Duration::from_secs(seconds));
            pacing.restore(until);
            now = until + Duration::from_millis(1);
        }
        // Steering by CPU was balanced for a long time.
        now += Duration::from_secs(200);
        assert_eq!(pacing.spread(now), now + SHORTEST_HOLD);
        let until = pacing.keep_by_cpu(now);
        assert_eq!(until, now + 2 * SHORTEST_HOLD);
        assert_eq!(pacing.spread(until), until + 4 * SHORTEST_HOLD);
    }
}
