//! The first process: pings or reads, with the clock.

use crate::clock::now_ns;
use crate::end::{End, Invitation};
use crate::error::{Error, Result};
use crate::load::{Load, Pattern};
use crate::message::{Checker, fill};
use crate::partner::{Partner, Watch, is_stopping, settle_on, watch_lifeline};
use crate::report::Line;
use crate::tally::Tally;

/// A reader looks at the clock about so often: seldom against the messages of the fastest
/// transport, so that it does not measure the clock, and often against the shortest slices.
const CLOCK_INTERVAL_NS: u64 = 20_000;
/// The most messages between two looks.
const READS_PER_CLOCK_MAX: u64 = 4_096;

/// Measures, and prints the two lines. `make` opens this end, once the process is pinned. What
/// goes wrong is in the second line.
pub fn run_first<E: End>(load: &Load, make: impl FnOnce() -> Result<(E, Invitation)>) {
    let mut tally = Tally::new(load.slices, load.slice_ns, load.pattern == Pattern::PingPong);
    let complaint = measure(load, &mut tally, make).map_err(|error| error.to_string());
    let complaint = complaint.unwrap_or_else(Some);
    Line::Done { slices: tally.report(), complaint }.print();
}

/// What was wrong with the messages, if anything was.
fn measure<E: End>(
    load: &Load,
    tally: &mut Tally,
    make: impl FnOnce() -> Result<(E, Invitation)>,
) -> Result<Option<String>> {
    settle_on(load.cpus.0[0])?;
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
    // The other end is told to stop before its path goes away.
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

/// How many messages to read before the next look at the clock, when that many took so long.
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

    fn settled(message_ns: u64) -> u64 {
        (0..100).fold(1, |reads, _| next_reads(reads, reads * message_ns))
    }

    #[test]
    fn the_clock_is_read_at_about_the_same_intervals_at_every_pace() {
        for message_ns in [10, 40, 700, 9_000, 30_000] {
            let interval_ns = settled(message_ns) * message_ns;
            let usual = CLOCK_INTERVAL_NS / 2..=2 * CLOCK_INTERVAL_NS;
            assert!(usual.contains(&interval_ns), "{message_ns}: {interval_ns}");
        }
        assert_eq!((settled(1), settled(1_000_000)), (READS_PER_CLOCK_MAX, 1));
    }
}
