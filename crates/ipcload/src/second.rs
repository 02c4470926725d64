//! The second process: answers or writes until it is told to stop.

use crate::end::End;
use crate::error::{Error, Result};
use crate::load::{Load, Pattern};
use crate::message::{Checker, fill};
use crate::partner::{Watch, is_stopping, settle_on, watch_lifeline};

/// Opens its end with what the first process said, and works until that closes the lifeline.
///
/// # Errors
/// Whatever broke before, for the first process to read.
pub fn run_second<E: End>(load: &Load, join: impl FnOnce() -> Result<E>) -> Result<()> {
    settle_on(load.cpus.0[1])?;
    watch_lifeline()?;
    let mut watch = Watch(None);
    let mut end = join()?;
    let outcome = match load.pattern {
        Pattern::PingPong => pong(load, &mut end, &mut watch),
        Pattern::OneWay => write(load, &mut end, &mut watch),
    };
    match outcome {
        Err(Error::Stopped) => Ok(()),
        // Who is stopped may find the path closed just before.
        Err(_) if is_stopping() => Ok(()),
        outcome => outcome,
    }
}

fn pong<E: End>(load: &Load, end: &mut E, watch: &mut Watch) -> Result<()> {
    let mut checker = Checker::new(load.bytes());
    let mut sequence = 0;
    loop {
        watch.insist(|| end.receive(|message| checker.check(message)))?;
        watch.insist(|| end.send(load.bytes(), |message| fill(message, sequence)))?;
        watch.insist(|| end.flush())?;
        sequence += 1;
        if !checker.is_satisfied() {
            return Err(Error::Road(checker.faults().unwrap_or_default()));
        }
    }
}

fn write<E: End>(load: &Load, end: &mut E, watch: &mut Watch) -> Result<()> {
    let mut sequence = 0;
    while !is_stopping() {
        watch.insist(|| end.send(load.bytes(), |message| fill(message, sequence)))?;
        sequence += 1;
    }
    Ok(())
}
