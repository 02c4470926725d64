//! Runs the measuring process: sends pings or reads, and reads the clock.

use crate::clock::now_ns;
use crate::end::{End, Invitation};
use crate::error::{Error, Result};
use crate::load::{Load, Pattern};
use crate::message::{Checker, fill};
use crate::partner::{Partner, Watch, is_stopping, pin_to, watch_lifeline};
use crate::report::Line;
use crate::tally::Tally;

/// Approximate time between two readings of the clock while reading messages: long compared with a
/// message of the fastest transport, so that the clock's cost does not count, and short compared
/// with the shortest slices.
const CLOCK_INTERVAL_NS: u64 = 20_000;
/// Most messages between two readings of the clock.
const READS_PER_CLOCK_MAX: u64 = 4_096;

/// Measures, and prints the two lines. `make` opens this end, after the process was pinned. An
/// error is in the second line.
pub fn run_measuring_process<E: End>(load: &Load, make: impl FnOnce() -> Result<(E, Invitation)>) {
    let mut tally = Tally::new(load.slices, load.slice_ns, load.pattern == Pattern::PingPong);
    let complaint = measure(load, &mut tally, make).map_err(|error| error.to_string());
    let complaint = complaint.unwrap_or_else(Some);
    Line::Done { slices: tally.report(), complaint }.print();
}

/// Measures; returns the faults of the messages, if there were any.
fn measure<E: End>(
    load: &Load,
    tally: &mut Tally,
    make: impl FnOnce() -> Result<(E, Invitation)>,
) -> Result<Option<String>> {
    pin_to(load.cpus.0[0])?;
    watch_lifeline()?;
    let (mut end, invitation) = make()?;
    let partner = Partner::start(invitation)?;
    let second = partner.id();
    let mut watch = Watch(Some(partner));
    let mut checker = Checker::new(load.bytes());
    let ready = |tally: &mut Tally, helpers: bool| {
        let start_ns = now_ns() + load.warm_up_ns;
        tally.begin(start_ns);
        let processes = [std::process::id(), second];
        Line::Ready { processes, helpers, start_ns }.print();
    };
    let outcome = match load.pattern {
        Pattern::PingPong => ping(load, &mut end, &mut watch, &mut checker, tally, ready),
        Pattern::OneWay => read(&mut end, &mut watch, &mut checker, tally, ready),
    };
    let outcome = outcome.map_err(|error| watch.explain(error));
    // Closes the lifeline of the other end, which then stops before its path is dropped.
    drop(watch);
    match (outcome, checker.faults()) {
        (_, Some(faults)) => Ok(Some(faults)),
        (Err(error), None) => Err(error),
        (Ok(()), None) => Ok(None),
    }
}

fn ping<E: End>(
    load: &Load,
    end: &mut E,
    watch: &mut Watch,
    checker: &mut Checker,
    tally: &mut Tally,
    ready: impl FnOnce(&mut Tally, bool),
) -> Result<()> {
    let bytes = load.bytes();
    let mut sequence = 0;
    let mut round_trip = |end: &mut E| -> Result<()> {
        watch.insist(|| end.send(bytes, |message| fill(message, sequence)))?;
        watch.insist(|| end.flush())?;
        sequence += 1;
        watch.insist(|| end.receive(|message| checker.check(message)))
    };
    round_trip(end)?;
    ready(tally, end.has_helpers());
    let mut before_ns = now_ns();
    loop {
        round_trip(end)?;
        let now_ns = now_ns();
        if !tally.time(now_ns, now_ns - before_ns) {
            return Ok(());
        }
        if is_stopping() {
            return Err(Error::Stopped);
        }
        before_ns = now_ns;
    }
}

fn read<E: End>(
    end: &mut E,
    watch: &mut Watch,
    checker: &mut Checker,
    tally: &mut Tally,
    ready: impl FnOnce(&mut Tally, bool),
) -> Result<()> {
    watch.insist(|| end.receive(|message| checker.check(message)))?;
    ready(tally, end.has_helpers());
    let mut reads = 1;
    let mut before_ns = now_ns();
    loop {
        for _ in 0..reads {
            watch.insist(|| end.receive(|message| checker.check(message)))?;
        }
        let now_ns = now_ns();
        if !tally.count(now_ns, reads) {
            return Ok(());
        }
        if is_stopping() {
            return Err(Error::Stopped);
        }
        reads = next_reads(reads, now_ns - before_ns);
        before_ns = now_ns;
    }
}

/// Returns the number of messages until the next reading of the clock, if `reads` took `took_ns`.
fn next_reads(reads: u64, took_ns: u64) -> u64 {
    if took_ns < CLOCK_INTERVAL_NS / 2 {
        (2 * reads).min(READS_PER_CLOCK_MAX)
    } else if took_ns > 2 * CLOCK_INTERVAL_NS {
        (reads / 2).max(1)
    } else {
        reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stable_reads_per_clock(message_ns: u64) -> u64 {
        (0..100).fold(1, |reads, _| next_reads(reads, reads * message_ns))
    }

    #[test]
    fn the_clock_is_read_at_about_the_same_intervals_at_every_pace() {
        for message_ns in [10, 40, 700, 9_000, 30_000] {
            let interval_ns = stable_reads_per_clock(message_ns) * message_ns;
            let usual = CLOCK_INTERVAL_NS / 2..=2 * CLOCK_INTERVAL_NS;
            assert!(usual.contains(&interval_ns), "{message_ns}: {interval_ns}");
        }
        assert_eq!(
            (stable_reads_per_clock(1), stable_reads_per_clock(1_000_000)),
            (READS_PER_CLOCK_MAX, 1)
        );
    }
}
