//! One deadline for each of many connections.

use crate::time::Instant;

/// A tick is 2¹⁷ ns, 131 µs: short beside the reordering windows of RACK.
const TICK_SHIFT: u32 = 17;
/// Slots of a level, as bits of the tick.
const SLOT_SHIFT: u32 = 6;
const SLOTS: u64 = 1 << SLOT_SHIFT;
/// Levels; together they reach 104 days ahead. What lies farther is looked at again then.
const LEVELS: u32 = 6;

/// Entries that one call of [`TimerWheel::expire`] looks at, about.
const EXPIRE_LIMIT: usize = 4096;

const NOWHERE: u32 = u32::MAX;
const UNARMED: u64 = u64::MAX;

/// A hierarchical timing wheel (Varghese and Lauck, SOSP 1987, scheme 7).
///
/// A timer that moves to a later time, or is disarmed, stays in its slot and is only written down;
/// the slot puts it right when its turn comes. Since nearly every packet moves a timer later, that is
/// what arming costs: a comparison and a store.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    entries: Vec<Entry>,
    heads: Box<[u32]>,
    /// For each level, which slots have entries.
    occupied: [u64; LEVELS as usize],
    /// For each slot of level 0, a time before which nothing in it is due.
    earliest: [u64; SLOTS as usize],
    /// The tick up to which all slots are done; that of this tick may hold entries due within it.
    tick: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// In nanoseconds, or `UNARMED`.
    deadline: u64,
    /// The tick at which the slot has its turn.
    turn: u64,
    next: u32,
    /// The entry before, or `NOWHERE` for the first of a slot.
    previous: u32,
    /// The slot over all levels, or `NOWHERE`.
    slot: u32,
}

const UNLINKED: Entry =
    Entry { deadline: UNARMED, turn: 0, next: NOWHERE, previous: NOWHERE, slot: NOWHERE };

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

    /// Sets the timer of this index, instead of any that it had. The wheel's memory is as large as
    /// the largest index needs.
    pub(crate) fn arm(&mut self, index: u32, at: Instant) {
        let deadline = at.as_nanos().min(UNARMED - 1);
        if index as usize >= self.entries.len() {
            self.entries.resize(index as usize + 1, UNLINKED);
        }
        let entry = &mut self.entries[index as usize];
        entry.deadline = deadline;
        let tick = deadline >> TICK_SHIFT;
        if entry.slot == NOWHERE {
            self.link(index);
        } else if tick < entry.turn {
            self.unlink(index);
            self.link(index);
        } else if tick == entry.turn && u64::from(entry.slot) < SLOTS {
            let earliest = &mut self.earliest[entry.slot as usize];
            *earliest = deadline.min(*earliest);
        }
    }

    /// Takes the timer of this index back, if it has one.
    pub(crate) fn disarm(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.deadline = UNARMED;
        }
    }

    /// When the timer of this index is due.
    pub(crate) fn deadline(&self, index: u32) -> Option<Instant> {
        let deadline = self.entries.get(index as usize)?.deadline;
        (deadline != UNARMED).then_some(Instant::from_nanos(deadline))
    }

    /// Gives each timer that is due to `fire`, unarmed. The work of a call is bounded: if there is
    /// more, [`TimerWheel::next`] lies in the past afterwards.
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

    /// A time before which no timer is due: early at times, never late. `None` if no timer is armed.
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

    /// The level and tick of the next slot that has its turn; of several the highest level, whose
    /// entries may belong into the others.
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

    /// Fires what is due in the slot of the present tick; the rest stays for later in this tick.
    fn fire_due(&mut self, slot: u32, now: u64, fire: &mut impl FnMut(u32)) {
        let mut earliest = UNARMED;
        let mut index = self.heads[slot as usize];
        while index != NOWHERE {
            let Entry { deadline, turn, next, .. } = self.entries[index as usize];
            if deadline == UNARMED {
                self.unlink(index);
            } else if deadline <= now {
                self.unlink(index);
                self.entries[index as usize].deadline = UNARMED;
                fire(index);
            } else if deadline >> TICK_SHIFT > turn {
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
        let turn = turn << (SLOT_SHIFT * level);
        self.entries[index as usize] = Entry { deadline, turn, next, previous: NOWHERE, slot };
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
