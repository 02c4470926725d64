//! Schedules wake-ups at set times, in a hierarchical timing wheel.
//!
//! Adding and removing a timer costs the same however many there are. A timer never fires early,
//! and at most one tick (1.05 ms) late. The wheel reads no clock: time is an argument, in
//! nanoseconds since an origin of the caller's.

use slotmap::SlotMap;

/// Nanoseconds of a tick, as bits: 2²⁰ ns, 1.05 ms.
const TICK_SHIFT: u32 = 20;
/// Slots of a level, as bits of the tick.
const SLOT_SHIFT: u32 = 6;
const SLOTS: usize = 1 << SLOT_SHIFT;
/// Number of levels: together they cover all 64-bit times.
const LEVELS: usize = 8;

slotmap::new_key_type! {
    /// Identifies a timer; never identifies a later one.
    pub(crate) struct TimerKey;
}

#[derive(Debug)]
struct Timer<T> {
    tick: u64,
    slot: u16,
    /// Its place in its slot.
    position: u32,
    value: T,
}

/// A hierarchical timing wheel (Varghese and Lauck, SOSP 1987, scheme 7).
///
/// A timer is in the level of the highest group of bits in which its tick differs from the present
/// one. So the lowest level that is not empty has the earliest timers.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    timers: SlotMap<TimerKey, Timer<T>>,
    slots: Box<[Vec<TimerKey>]>,
    /// For each level, which slots have timers.
    occupied: [u64; LEVELS],
    /// The tick up to which all timers have fired.
    tick: u64,
}

impl<T> Wheel<T> {
    /// Creates an empty wheel at time 0.
    pub(crate) fn new() -> Wheel<T> {
        let slots = (0..LEVELS * SLOTS).map(|_| Vec::new()).collect();
        Wheel { timers: SlotMap::with_key(), slots, occupied: [0; LEVELS], tick: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    /// Adds a timer that fires at `at_ns`, rounded up to a tick, or at the next tick if that is
    /// over.
    pub(crate) fn insert(&mut self, at_ns: u64, value: T) -> TimerKey {
        let tick = (at_ns.div_ceil(1 << TICK_SHIFT)).max(self.tick + 1);
        let key = self.timers.insert(Timer { tick, slot: 0, position: 0, value });
        self.link(key, tick);
        key
    }

    /// Returns the value of a timer that has not fired, to change it.
    pub(crate) fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        self.timers.get_mut(key).map(|timer| &mut timer.value)
    }

    /// Removes a timer; returns its value unless it has fired.
    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<T> {
        let timer = self.timers.remove(key)?;
        let slot = &mut self.slots[usize::from(timer.slot)];
        slot.swap_remove(timer.position as usize);
        if let Some(moved) = slot.get(timer.position as usize)
            && let Some(moved) = self.timers.get_mut(*moved)
        {
            moved.position = timer.position;
        }
        if slot.is_empty() {
            let (level, index) = (usize::from(timer.slot) / SLOTS, usize::from(timer.slot) % SLOTS);
            self.occupied[level] &= !(1 << index);
        }
        Some(timer.value)
    }

    /// Returns the time at which [`Wheel::expire`] has something to do, in nanoseconds: that of the
    /// next timer, or for a distant one an earlier time.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.next_slot().map(|(_, tick)| tick.saturating_mul(1 << TICK_SHIFT))
    }

    /// Advances to `now_ns`, and appends the values of the timers that fire to `fired`, in the
    /// order of their ticks.
    pub(crate) fn expire(&mut self, now_ns: u64, fired: &mut Vec<T>) {
        let now = now_ns >> TICK_SHIFT;
        while let Some((slot, tick)) = self.next_slot().filter(|(_, tick)| *tick <= now) {
            self.tick = tick;
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
            let mut keys = std::mem::take(&mut self.slots[slot]);
            for key in keys.drain(..) {
                match self.timers.get(key).map(|timer| timer.tick) {
                    Some(due) if due > tick => self.link(key, due),
                    Some(_) => fired.extend(self.timers.remove(key).map(|timer| timer.value)),
                    None => {}
                }
            }
            // The slot keeps its memory, unless that is much.
            if keys.capacity() <= SLOTS && self.slots[slot].is_empty() {
                self.slots[slot] = keys;
            }
        }
        self.tick = self.tick.max(now);
    }

    /// Returns the next slot with timers, and its first tick.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|occupied| *occupied != 0)?;
        let index = self.occupied[level].trailing_zeros();
        let shift = SLOT_SHIFT * level as u32;
        let above = self.tick.checked_shr(shift + SLOT_SHIFT).unwrap_or(0);
        let tick = above.checked_shl(shift + SLOT_SHIFT).unwrap_or(0) | u64::from(index) << shift;
        Some((level * SLOTS + index as usize, tick))
    }

    fn link(&mut self, key: TimerKey, tick: u64) {
        let difference = (tick ^ self.tick) | 1;
        let level = ((63 - difference.leading_zeros()) / SLOT_SHIFT) as usize;
        let index = (tick >> (SLOT_SHIFT * level as u32)) as usize % SLOTS;
        let slot = level * SLOTS + index;
        let Some(timer) = self.timers.get_mut(key) else { return };
        timer.slot = slot as u16;
        timer.position = self.slots[slot].len() as u32;
        self.slots[slot].push(key);
        self.occupied[level] |= 1 << index;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const TICK_NS: u64 = 1 << TICK_SHIFT;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(usize),
        Advance(u64),
        AdvanceToNext,
    }

    /// Spans from one nanosecond to years, with equal weight for each magnitude.
    fn span() -> impl Strategy<Value = u64> {
        (0..60u32, any::<u64>()).prop_map(|(bits, random)| random >> (63 - bits))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => span().prop_map(Step::Insert),
            2 => any::<usize>().prop_map(Step::Remove),
            1 => span().prop_map(Step::Advance),
            3 => Just(Step::AdvanceToNext),
        ]
    }

    proptest! {
        #[test]
        fn timers_fire_once_never_early_and_at_most_a_tick_late(
            steps in prop::collection::vec(step(), 1..200)
        ) {
            let mut wheel = Wheel::new();
            let mut model: BTreeMap<u64, (u64, TimerKey)> = BTreeMap::new();
            let (mut now, mut number) = (0u64, 0u64);
            for step in steps {
                match step {
                    Step::Insert(after) => {
                        let at = now.saturating_add(after);
                        model.insert(number, (at, wheel.insert(at, number)));
                        number += 1;
                    }
                    Step::Remove(which) => {
                        let chosen = model.keys().nth(which % model.len().max(1)).copied();
                        if let Some(chosen) = chosen {
                            let (_, key) = model.remove(&chosen).unwrap();
                            prop_assert_eq!(wheel.remove(key), Some(chosen));
                            prop_assert_eq!(wheel.remove(key), None);
                        }
                    }
                    Step::Advance(by) => now = now.saturating_add(by),
                    Step::AdvanceToNext => now = now.max(wheel.next_ns().unwrap_or(now)),
                }
                let mut fired = Vec::new();
                wheel.expire(now, &mut fired);
                for value in fired {
                    let (at, key) = model.remove(&value).expect("a timer fires once");
                    prop_assert!(at <= now, "early: {} before {}", now, at);
                    prop_assert!(wheel.get_mut(key).is_none());
                }
                // A timer that was added late in a tick fires at the next one.
                let late = model.values().find(|(at, _)| at.saturating_add(2 * TICK_NS) <= now);
                prop_assert!(late.is_none(), "{late:?} has not fired at {now}");
                prop_assert_eq!(wheel.len(), model.len());
                prop_assert_eq!(wheel.next_ns().is_some(), !model.is_empty());
            }
        }
    }

    #[test]
    fn a_distant_timer_costs_few_wake_ups() {
        let mut wheel = Wheel::new();
        let year_ns = 365 * 24 * 3600 * 1_000_000_000;
        wheel.insert(year_ns, ());
        let mut fired = Vec::new();
        let mut wake_ups = 0;
        while let Some(next) = wheel.next_ns() {
            wheel.expire(next, &mut fired);
            wake_ups += 1;
        }
        assert_eq!(fired.len(), 1);
        assert!(wake_ups <= LEVELS, "{wake_ups} wake-ups");
    }
}
