//! Relates the hosts' clocks by messages, and agrees on a moment at which all begin.
//!
//! A host's clock is its CLOCK_MONOTONIC. A process asks the root for its time; the answer was read
//! somewhere between the question and its return, so the middle is wrong by at most half the round
//! trip (Cristian, "Probabilistic clock synchronization", 1989). Of many exchanges the one with the
//! shortest round trip is used. Clocks drift apart by some microseconds a second: measure again
//! before every point.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::control::{Control, ROOT, broadcast_value, gather_values};
use crate::error::{Error, Result};
use crate::figures::Times;
use crate::sys::clock::now_ns;

/// Exchanges per host. Some of them are nearly undisturbed, even between busy hosts.
const EXCHANGES: usize = 64;

/// How far ahead a start is set, so that the message reaches every host before it. After each
/// failure the next start is set twice as far ahead.
const LEAD_NS: u64 = 500_000_000;

/// How many starts are proposed; the last one is 8 s ahead.
const PROPOSALS: u32 = 5;

/// One question for the root's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Exchange {
    /// When the question was sent, by the local clock.
    asked_ns: u64,
    /// The answer, by the root's clock.
    root_ns: u64,
    /// When the answer arrived, by the local clock.
    answered_ns: u64,
}

/// The relation between this process's clock and the root's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockOffset {
    /// The root's time is the local time plus this.
    pub(crate) offset_ns: i64,
    /// Bound of the error of the offset: half the round trip.
    pub(crate) bound_ns: u64,
    /// The shortest round trip.
    pub(crate) round_trip_ns: u64,
}

impl ClockOffset {
    /// The offset of the root itself.
    pub(crate) const ROOT: ClockOffset =
        ClockOffset { offset_ns: 0, bound_ns: 0, round_trip_ns: 0 };

    fn of(exchange: Exchange) -> ClockOffset {
        let round_trip_ns = exchange.answered_ns.saturating_sub(exchange.asked_ns);
        let middle_ns = exchange.asked_ns + round_trip_ns / 2;
        ClockOffset {
            // Wrapping gives the right difference for all clocks less than 292 years apart.
            offset_ns: exchange.root_ns.wrapping_sub(middle_ns) as i64,
            bound_ns: round_trip_ns.div_ceil(2),
            round_trip_ns,
        }
    }

    /// Returns the exchange with the shortest round trip; `None` without exchanges.
    fn best(exchanges: &[Exchange]) -> Option<ClockOffset> {
        exchanges.iter().copied().map(ClockOffset::of).min_by_key(|offset| offset.round_trip_ns)
    }

    /// Converts a time of the local clock into the root's.
    pub(crate) fn to_root(self, local_ns: u64) -> u64 {
        local_ns.saturating_add_signed(self.offset_ns)
    }

    /// Converts a time of the root's clock into the local one.
    pub(crate) fn to_local(self, root_ns: u64) -> u64 {
        root_ns.saturating_add_signed(self.offset_ns.saturating_neg())
    }
}

/// Relates this process's clock to the root's, one process after the other, so that their exchanges
/// do not disturb each other. All processes call it together. The round trips are recorded in
/// `round_trips`.
pub(crate) fn measure(control: &dyn Control, round_trips: &mut Times) -> Result<ClockOffset> {
    if control.rank() == ROOT {
        for rank in 1..control.size() {
            control.send(rank, &[])?;
            for _ in 0..EXCHANGES {
                control.receive(rank)?;
                control.send(rank, &now_ns().to_le_bytes())?;
            }
        }
        return Ok(ClockOffset::ROOT);
    }
    control.receive(ROOT)?;
    let mut exchanges = Vec::with_capacity(EXCHANGES);
    for _ in 0..EXCHANGES {
        let asked_ns = now_ns();
        control.send(ROOT, &[])?;
        let answer = control.receive(ROOT)?;
        let answered_ns = now_ns();
        round_trips.saturating_record(answered_ns - asked_ns);
        exchanges.push(Exchange { asked_ns, root_ns: time_of(&answer)?, answered_ns });
    }
    ClockOffset::best(&exchanges).ok_or_else(|| confused(0))
}

fn time_of(answer: &[u8]) -> Result<u64> {
    let bytes = answer.try_into().map_err(|_| confused(answer.len()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn confused(bytes: usize) -> Error {
    Error::setup(
        format!("rank {ROOT} sent a time of {bytes} bytes, which has another format"),
        "install the same iobench on every host",
    )
}

/// The result of agreeing on a start, the same for all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// All begin at this time of the local clock.
    At(u64),
    /// None begins: even the last proposal reached this rank too late.
    TooLateFor(usize),
}

impl Start {
    /// Returns the start time, or an error with a remedy.
    pub(crate) fn agreed(self) -> Result<u64> {
        match self {
            Start::At(start_ns) => Ok(start_ns),
            Start::TooLateFor(rank) => Err(Error::setup(
                format!(
                    "rank {rank} received the start time after it had passed, although it was sent \
                     {} ms before",
                    (LEAD_NS << (PROPOSALS - 1)) / 1_000_000
                ),
                "end other work on this host and its network, then run again",
            )),
        }
    }
}

/// Agrees on a time in the near future at which all begin. All processes call it together and get
/// the same result, and then wait for the start without further messages. A process that the
/// scheduler stops after the agreement begins late, as it could be late at any later time.
pub(crate) fn agree_on_start(control: &dyn Control, offset: ClockOffset) -> Result<Start> {
    let bounds_ns = gather_values(control, &offset.bound_ns)?;
    // Only the root has the bounds of all.
    let bound_ns = bounds_ns.into_iter().max();
    let mut late_rank = ROOT;
    for proposal in 0..PROPOSALS {
        let lead_ns = LEAD_NS << proposal;
        let start_ns = bound_ns.map(|bound_ns| now_ns() + lead_ns + bound_ns);
        let start_ns = offset.to_local(broadcast_value(control, start_ns.as_ref())?);
        // Distributing the result takes as long as distributing the start did: half of the lead is
        // reserved for it.
        let is_in_time = now_ns().saturating_add(offset.bound_ns + lead_ns / 2) < start_ns;
        let in_time = gather_values(control, &is_in_time)?;
        let first_late = in_time.iter().position(|is_in_time| !is_in_time);
        match broadcast_value(control, Some(&first_late))? {
            None => return Ok(Start::At(start_ns)),
            Some(rank) => late_rank = rank,
        }
    }
    Ok(Start::TooLateFor(late_rank))
}

/// Sleeps until a time of the local clock; returns the time of waking up.
pub(crate) fn sleep_until(moment_ns: u64) -> u64 {
    loop {
        let woke_ns = now_ns();
        if woke_ns >= moment_ns {
            return woke_ns;
        }
        std::thread::sleep(Duration::from_nanos(moment_ns - woke_ns));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::threads::on_threads;
    use super::*;
    use crate::figures::new_times;

    /// Returns an exchange of two clocks: the root's is ahead by `offset_ns`, and the two ways take
    /// `there_ns` and `back_ns`.
    fn exchange(asked_ns: u64, offset_ns: i64, there_ns: u64, back_ns: u64) -> Exchange {
        Exchange {
            asked_ns,
            root_ns: (asked_ns + there_ns).wrapping_add_signed(offset_ns),
            answered_ns: asked_ns + there_ns + back_ns,
        }
    }

    proptest! {
        #[test]
        fn the_true_offset_lies_within_the_bound(
            started_ns in 1_u64 << 50..1 << 51,
            offset_ns in -(1_i64 << 49)..1 << 49,
            ways in prop::collection::vec((0_u64..5_000_000, 0_u64..5_000_000), 1..20),
        ) {
            let exchanges: Vec<Exchange> = ways
                .iter()
                .zip((started_ns..).step_by(20_000_000))
                .map(|(&(there, back), asked)| exchange(asked, offset_ns, there, back))
                .collect();
            let found = ClockOffset::best(&exchanges).unwrap();
            let shortest = ways.iter().map(|(there, back)| there + back).min().unwrap();
            prop_assert_eq!(found.round_trip_ns, shortest);
            prop_assert_eq!(found.bound_ns, shortest.div_ceil(2));
            prop_assert!(found.offset_ns.abs_diff(offset_ns) <= found.bound_ns);
        }

        #[test]
        fn there_and_back_is_the_same_moment(
            local_ns in 1_u64 << 50..1 << 51,
            offset_ns in -(1_i64 << 49)..1 << 49,
        ) {
            let offset = ClockOffset { offset_ns, ..ClockOffset::ROOT };
            prop_assert_eq!(offset.to_local(offset.to_root(local_ns)), local_ns);
        }
    }

    #[test]
    fn equal_ways_give_the_exact_offset() {
        let found = ClockOffset::of(exchange(1_000_000, 12_345, 700, 700));
        assert_eq!(found, ClockOffset { offset_ns: 12_345, bound_ns: 700, round_trip_ns: 1_400 });
        assert_eq!(ClockOffset::best(&[]), None);
    }

    #[test]
    fn threads_have_one_clock_and_one_start() {
        let found = on_threads(4, |control| {
            let mut round_trips = new_times();
            let offset = measure(control, &mut round_trips)?;
            assert!(offset.offset_ns.unsigned_abs() <= offset.bound_ns, "{offset:?}");
            let expected = if control.rank() == ROOT { 0 } else { EXCHANGES as u64 };
            assert_eq!(round_trips.len(), expected);
            let start_ns = agree_on_start(control, offset)?.agreed()?;
            Ok::<_, Error>((offset, start_ns))
        });
        let found: Vec<(ClockOffset, u64)> = found.into_iter().map(Result::unwrap).collect();
        let at_root_ns = found[ROOT].1;
        for (offset, start_ns) in found {
            assert!(start_ns.abs_diff(at_root_ns) <= offset.bound_ns);
        }
    }

    /// Returns what three ranks agree on if messages to rank 1 take `delay_ns`: its clock is behind
    /// by as much.
    fn starts_with_delay(delay_ns: i64) -> Vec<Start> {
        let far = ClockOffset { offset_ns: delay_ns, ..ClockOffset::ROOT };
        let starts = on_threads(3, |control| {
            agree_on_start(control, if control.rank() == 1 { far } else { ClockOffset::ROOT })
        });
        starts.into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn whoever_is_late_is_given_more_time() {
        let delay_ns = 600_000_000;
        let begun_ns = now_ns();
        let starts: Vec<u64> =
            starts_with_delay(delay_ns).into_iter().map(|start| start.agreed().unwrap()).collect();
        assert_eq!(starts[ROOT], starts[2]);
        assert_eq!(starts[1], starts[ROOT] - delay_ns as u64);
        // The first proposal always comes too late, and the second does not leave half of its lead.
        assert!(starts[ROOT] >= begun_ns + 4 * LEAD_NS);
    }

    #[test]
    fn a_start_that_somebody_cannot_meet_is_refused_by_all() {
        let starts = starts_with_delay(10_000_000_000);
        assert_eq!(starts, [Start::TooLateFor(1); 3]);
        let error = starts[ROOT].agreed().unwrap_err().to_string();
        assert!(error.contains("rank 1 received the start time after it had passed"), "{error}");
        assert!(error.contains("8000 ms before"), "{error}");
    }

    #[test]
    fn nobody_wakes_too_early() {
        let moment_ns = now_ns() + 2_000_000;
        let woke_ns = sleep_until(moment_ns);
        assert!((moment_ns..=now_ns()).contains(&woke_ns));
        assert!(sleep_until(moment_ns) >= woke_ns, "a moment that has passed is no wait");
    }

    #[test]
    fn an_answer_of_the_wrong_length_is_refused() {
        assert_eq!(time_of(&7_u64.to_le_bytes()).unwrap(), 7);
        assert!(time_of(&[1, 2]).unwrap_err().to_string().contains("2 bytes"));
    }
}
