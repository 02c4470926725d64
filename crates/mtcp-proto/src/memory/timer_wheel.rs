//! Schedules one deadline for each of many connections, in a hierarchical timing wheel.

use crate::time::Instant;

/// Nanoseconds of a tick, as bits: 2¹⁷ ns, 131 µs, is short compared with the reordering windows of
/// RACK.
const TICK_SHIFT: u32 = 17;
/// Slots of a level, as bits of the tick.
const SLOT_SHIFT: u32 = 6;
const SLOTS: u64 = 1 << SLOT_SHIFT;
/// Number of levels; together they cover 104 days. The wheel reschedules a later deadline when its
/// slot expires.
const LEVELS: u32 = 6;

/// Approximate number of entries that one call of [`TimerWheel::expire`] examines.
const EXPIRE_LIMIT: usize = 4096;

const NOWHERE: u32 = u32::MAX;
const UNARMED: u64 = u64::MAX;

/// A hierarchical timing wheel (Varghese and Lauck, SOSP 1987, scheme 7).
///
/// A timer that moves to a later time, or is disarmed, stays in its slot and only its deadline
/// changes; it is moved when the slot expires. Since nearly every packet moves a timer later,
/// arming usually costs a comparison and a store.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    entries: Vec<Entry>,
    heads: Box<[u32]>,
    /// For each level, which slots have entries.
    occupied: [u64; LEVELS as usize],
    /// For each slot of level 0, a time before which no timer in it expires.
    earliest: [u64; SLOTS as usize],
    /// The tick up to which all slots are processed. The slot of this tick may still hold timers
    /// that expire within it.
    tick: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// In nanoseconds, or `UNARMED`.
    deadline: u64,
    next: u32,
    /// The entry before, or `NOWHERE` for the first of a slot.
    previous: u32,
    /// The slot over all levels, or `NOWHERE`.
    slot: u32,
}

const UNLINKED: Entry =
    Entry { deadline: UNARMED, next: NOWHERE, previous: NOWHERE, slot: NOWHERE };

impl TimerWheel {
    /// A wheel without timers.
    pub(crate) fn new(now: Instant) -> TimerWheel {
        TimerWheel {
            entries: Vec::new(),
            heads: vec![NOWHERE; (u64::from(LEVELS) * SLOTS) as usize].into_boxed_slice(),
            occupied: [0; LEVELS as usize],
            earliest: [UNARMED; SLOTS as usize],
            tick: now.as_nanos() >> TICK_SHIFT,
        }
    }

    /// Arms the timer of this index and replaces the one that it had. The wheel has memory up to
    /// the largest index used.
    pub(crate) fn arm(&mut self, index: u32, at: Instant) {
        let deadline = at.as_nanos().min(UNARMED - 1);
        if index as usize >= self.entries.len() {
            self.entries.resize(index as usize + 1, UNLINKED);
        }
        let entry = &mut self.entries[index as usize];
        if entry.deadline == deadline {
            return;
        }
        entry.deadline = deadline;
        let (tick, slot) = (deadline >> TICK_SHIFT, entry.slot);
        if slot == NOWHERE {
            return self.link(index);
        }
        let turn = self.turn_of_slot(slot);
        if tick < turn {
            self.unlink(index);
            self.link(index);
        } else if tick == turn && u64::from(slot) < SLOTS {
            let earliest = &mut self.earliest[slot as usize];
            *earliest = deadline.min(*earliest);
        }
    }

    /// Disarms the timer of this index, if it has one.
    pub(crate) fn disarm(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.deadline = UNARMED;
        }
    }

    /// The deadline of the timer of this index.
    #[cfg(test)]
    pub(crate) fn deadline(&self, index: u32) -> Option<Instant> {
        let deadline = self.entries.get(index as usize)?.deadline;
        (deadline != UNARMED).then_some(Instant::from_nanos(deadline))
    }

    /// Disarms each expired timer and passes it to `fire`. The work of one call is bounded; if more
    /// timers have expired, [`TimerWheel::next`] is in the past afterwards.
    pub(crate) fn expire(&mut self, now: Instant, fire: &mut impl FnMut(u32)) {
        let now = now.as_nanos();
        let target = now >> TICK_SHIFT;
        let mut work = 0;
        while let Some((level, turn)) = self.next_turn() {
            if turn > target {
                break;
            }
            self.tick = self.tick.max(turn);
            let slot = level * SLOTS as u32 + (turn >> (SLOT_SHIFT * level)) as u32 % SLOTS as u32;
            if level == 0 && turn == target {
                if self.earliest[slot as usize] <= now {
                    self.fire_due(slot, now, fire);
                }
                return;
            }
            while self.heads[slot as usize] != NOWHERE {
                let index = self.heads[slot as usize];
                self.unlink(index);
                match self.entries[index as usize].deadline {
                    UNARMED => {}
                    deadline if deadline <= now => {
                        self.entries[index as usize].deadline = UNARMED;
                        fire(index);
                    }
                    _ => self.link(index),
                }
                work += 1;
                if work >= EXPIRE_LIMIT {
                    return;
                }
            }
        }
        self.tick = self.tick.max(target);
    }

    /// A time before which no timer expires: sometimes early, never late. `None` if no timer is
    /// armed.
    pub(crate) fn next(&self) -> Option<Instant> {
        let mut next = UNARMED;
        for level in 0..LEVELS {
            if let Some(turn) = self.turn_of_level(level) {
                let at = match level {
                    0 => self.earliest[(turn % SLOTS) as usize],
                    _ => turn << TICK_SHIFT,
                };
                next = next.min(at);
            }
        }
        (next != UNARMED).then_some(Instant::from_nanos(next))
    }

    /// The level and tick of the next slot to process. If several have the same tick, it is the
    /// highest level, because its entries may belong into the lower slots.
    fn next_turn(&self) -> Option<(u32, u64)> {
        let turns = (0..LEVELS).rev().filter_map(|level| Some((level, self.turn_of_level(level)?)));
        turns.min_by_key(|&(_, turn)| turn)
    }

    fn turn_of_level(&self, level: u32) -> Option<u64> {
        let occupied = self.occupied[level as usize];
        if occupied == 0 {
            return None;
        }
        let here = self.tick >> (SLOT_SHIFT * level);
        let ahead = occupied.rotate_right((here % SLOTS) as u32).trailing_zeros();
        Some((here + u64::from(ahead)) << (SLOT_SHIFT * level))
    }

    /// The next tick at which a slot with entries is processed.
    fn turn_of_slot(&self, slot: u32) -> u64 {
        let (level, place) = (slot / SLOTS as u32, u64::from(slot) % SLOTS);
        let here = self.tick >> (SLOT_SHIFT * level);
        (here + (place.wrapping_sub(here) % SLOTS)) << (SLOT_SHIFT * level)
    }

    /// Fires the expired timers in the slot of the present tick; the others stay for a later call
    /// in this tick.
    fn fire_due(&mut self, slot: u32, now: u64, fire: &mut impl FnMut(u32)) {
        let mut earliest = UNARMED;
        let mut index = self.heads[slot as usize];
        while index != NOWHERE {
            let Entry { deadline, next, .. } = self.entries[index as usize];
            if deadline == UNARMED {
                self.unlink(index);
            } else if deadline <= now {
                self.unlink(index);
                self.entries[index as usize].deadline = UNARMED;
                fire(index);
            } else if deadline >> TICK_SHIFT > self.tick {
                self.unlink(index);
                self.link(index);
            } else {
                earliest = earliest.min(deadline);
            }
            index = next;
        }
        self.earliest[slot as usize] = earliest;
    }

    /// Puts an armed entry into the slot of its deadline.
    fn link(&mut self, index: u32) {
        let deadline = self.entries[index as usize].deadline;
        let farthest = self.tick + ((SLOTS - 1) << (SLOT_SHIFT * (LEVELS - 1)));
        let tick = (deadline >> TICK_SHIFT).clamp(self.tick, farthest);
        let mut level = 0;
        while (tick >> (SLOT_SHIFT * level)) - (self.tick >> (SLOT_SHIFT * level)) >= SLOTS {
            level += 1;
        }
        let turn = tick >> (SLOT_SHIFT * level);
        let place = (turn % SLOTS) as u32;
        if level == 0 {
            let earliest = &mut self.earliest[place as usize];
            *earliest = deadline.min(*earliest);
        }
        let slot = level * SLOTS as u32 + place;
        let next = self.heads[slot as usize];
        if next != NOWHERE {
            self.entries[next as usize].previous = index;
        }
        self.heads[slot as usize] = index;
        self.occupied[level as usize] |= 1 << place;
        self.entries[index as usize] = Entry { deadline, next, previous: NOWHERE, slot };
    }

    /// Takes an entry out of its slot; its deadline stays.
    fn unlink(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let Entry { next, previous, slot, .. } = *entry;
        entry.slot = NOWHERE;
        if next != NOWHERE {
            self.entries[next as usize].previous = previous;
        }
        if previous != NOWHERE {
            self.entries[previous as usize].next = next;
            return;
        }
        self.heads[slot as usize] = next;
        if next == NOWHERE {
            let (level, place) = (slot / SLOTS as u32, slot % SLOTS as u32);
            self.occupied[level as usize] &= !(1 << place);
            if level == 0 {
                self.earliest[place as usize] = UNARMED;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        /// Arms the timer, this number of nanoseconds from now.
        Arm(u32, u64),
        /// Arms the timer at a time in the past.
        ArmPast(u32, u64),
        Disarm(u32),
        /// Lets this number of nanoseconds pass.
        Pass(u64),
        /// Lets time pass until the next timer may expire.
        Next,
    }

    fn span() -> impl Strategy<Value = u64> {
        // All magnitudes from a nanosecond to a year.
        (0u32..55, any::<u64>()).prop_map(|(magnitude, random)| random % (1 << magnitude))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0u32..40, span()).prop_map(|(index, span)| Step::Arm(index, span)),
            1 => (0u32..40, span()).prop_map(|(index, span)| Step::ArmPast(index, span)),
            2 => (0u32..40).prop_map(Step::Disarm),
            3 => span().prop_map(Step::Pass),
            3 => Just(Step::Next),
        ]
    }

    fn check(wheel: &TimerWheel, model: &BTreeMap<u32, u64>) -> Result<(), TestCaseError> {
        for index in 0..40 {
            let expected = model.get(&index).map(|at| Instant::from_nanos(*at));
            prop_assert_eq!(wheel.deadline(index), expected);
        }
        if let Some(earliest) = model.values().min() {
            let next = wheel.next().expect("a timer is armed");
            prop_assert!(next.as_nanos() <= *earliest, "{next:?} is later than {earliest}");
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(300)
        })]

        #[test]
        fn timers_fire_when_their_model_does(
            steps in prop::collection::vec(step(), 1..200),
            origin in span(),
        ) {
            let mut now = origin;
            let mut wheel = TimerWheel::new(Instant::from_nanos(now));
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Arm(index, span) => {
                        wheel.arm(index, Instant::from_nanos(now + span));
                        model.insert(index, now + span);
                    }
                    Step::ArmPast(index, span) => {
                        wheel.arm(index, Instant::from_nanos(now.saturating_sub(span)));
                        model.insert(index, now.saturating_sub(span));
                    }
                    Step::Disarm(index) => {
                        wheel.disarm(index);
                        model.remove(&index);
                    }
                    Step::Pass(_) | Step::Next => {
                        now = match step {
                            Step::Pass(span) => now + span,
                            _ => wheel.next().map_or(now, |next| next.as_nanos().max(now)),
                        };
                        let mut fired = Vec::new();
                        wheel.expire(Instant::from_nanos(now), &mut |index| fired.push(index));
                        fired.sort_unstable();
                        let due: Vec<u32> =
                            model.iter().filter(|due| *due.1 <= now).map(|due| *due.0).collect();
                        prop_assert_eq!(fired, due);
                        model.retain(|_, at| *at > now);
                        if let Some(next) = wheel.next() {
                            prop_assert!(next.as_nanos() > now, "it would wake for ever");
                        }
                    }
                }
                check(&wheel, &model)?;
            }
        }
    }

    #[test]
    fn a_lone_timer_costs_few_wakings_however_far_it_is() {
        let mut wheel = TimerWheel::new(Instant::ZERO);
        let day = Instant::from_nanos(86_400_000_000_000);
        wheel.arm(3, day);
        let (mut wakings, mut fired) = (0, false);
        while !fired {
            let next = wheel.next().expect("it is armed");
            wheel.expire(next, &mut |index| fired = index == 3);
            wakings += 1;
            assert!(fired == (next == day) && wakings <= LEVELS, "{wakings} wakings");
        }
        assert_eq!((wheel.next(), wheel.deadline(3)), (None, None));
    }

    #[test]
    fn moving_a_timer_later_leaves_it_in_its_slot() {
        let mut wheel = TimerWheel::new(Instant::ZERO);
        let at = |milliseconds: u64| Instant::from_nanos(milliseconds * 1_000_000);
        wheel.arm(0, at(200));
        let slot = wheel.entries[0].slot;
        for later in 201..1000 {
            wheel.arm(0, at(later));
            assert_eq!(wheel.entries[0].slot, slot);
        }
        wheel.expire(at(998), &mut |_| panic!("not before its time"));
        let mut fired = 0;
        wheel.expire(at(999), &mut |_| fired += 1);
        assert_eq!(fired, 1);
    }

    #[test]
    fn a_call_has_bounded_work_and_the_rest_is_not_lost() {
        let mut wheel = TimerWheel::new(Instant::ZERO);
        let timers = 10 * EXPIRE_LIMIT as u32;
        for index in 0..timers {
            wheel.arm(index, Instant::from_nanos(3_600_000_000_000 + u64::from(index % 7)));
        }
        let now = Instant::from_nanos(4_000_000_000_000);
        let (mut fired, mut calls) = (0, 0);
        while wheel.next().is_some_and(|next| next <= now) {
            let before = fired;
            wheel.expire(now, &mut |_| fired += 1);
            assert!(fired - before <= EXPIRE_LIMIT as u32);
            calls += 1;
            assert!(calls < 100);
        }
        assert_eq!(fired, timers);
    }
}
