//! Runs the partner process: answers or writes until it is asked to end.

use crate::end::End;
use crate::error::{Error, Result};
use crate::load::{Load, Pattern};
use crate::message::{Checker, fill};
use crate::partner::{Watch, is_stopping, pin_to, watch_lifeline};

/// Opens its end from the first process's invitation, and works until the first process closes the
/// lifeline.
///
/// # Errors
/// The first error, which the first process reads.
pub fn run_partner_process<E: End>(load: &Load, join: impl FnOnce() -> Result<E>) -> Result<()> {
    pin_to(load.cpus.0[1])?;
    watch_lifeline()?;
    let mut watch = Watch(None);
    let mut end = join()?;
    let outcome = match load.pattern {
        Pattern::PingPong => pong(load, &mut end, &mut watch),
        Pattern::OneWay => write(load, &mut end, &mut watch),
    };
    match outcome {
        Err(Error::Stopped) => Ok(()),
        // A stopping process may find the path closed just before it is stopped.
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
            return Err(Error::Transport(checker.faults().unwrap_or_default()));
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
