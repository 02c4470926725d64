//! The first process: pings or reads, with the clock.

use crate::clock::now_ns;
use crate::end::{End, Invitation};
use crate::error::{Error, Result};
use crate::load::{Load, Pattern};
use crate::message::{Checker, fill};
use crate::partner::{Partner, Watch, is_stopping, pin_to, watch_lifeline};
use crate::report::Line;
use crate::tally::Tally;

/// A reader looks at the clock after about so many bytes, but not less often than after
/// `READS_PER_CLOCK` messages.
const BYTES_PER_CLOCK: usize = 32 << 10;
const READS_PER_CLOCK: usize = 32;

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
        Pattern::OneWay => read(load, &mut end, &mut watch, &mut checker, tally, ready),
    };
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
        before_ns = now_ns;
    }
}

fn read<E: End>(
    load: &Load,
    end: &mut E,
    watch: &mut Watch,
    checker: &mut Checker,
    tally: &mut Tally,
    ready: impl FnOnce(&mut Tally, bool),
) -> Result<()> {
    let per_clock = (BYTES_PER_CLOCK / load.bytes()).clamp(1, READS_PER_CLOCK);
    watch.insist(|| end.receive(|message| checker.check(message)))?;
    ready(tally, end.has_helpers());
    loop {
        for _ in 0..per_clock {
            watch.insist(|| end.receive(|message| checker.check(message)))?;
        }
        if !tally.count(now_ns(), per_clock as u64) {
            return Ok(());
        }
        if is_stopping() {
            return Err(Error::Stopped);
        }
    }
}
