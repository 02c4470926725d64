//! Scenario that replaces the running binary: `USR2`, `WINCH`, `QUIT`.

use super::super::Extent;
use super::super::load::{await_more, serves, under_load, until};
use super::super::outcome::Figures;
use super::no_complaints;
use crate::Daemon;
use crate::nginx::{Nginx, Setup, workers_of};

/// A new binary takes over, and the old one ends, while clients make short connections.
pub(super) fn upgrade(setup: Setup, extent: Extent) -> Figures {
    let mut nginx = Nginx::start(&setup)?;
    let workers = setup.workers as usize;
    let mut old = Daemon::start(&mut nginx)?;
    until("the daemon has too few workers", || workers_of(old.process()).len() == workers)?;
    let counts = under_load(nginx.port(), |served| {
        for _ in 0..extent.pick(1, 10) {
            await_more(served, 20)?;
            let new = old.upgrade(&nginx)?;
            until("the new master has too few workers", || {
                workers_of(new.process()).len() == workers
            })?;
            await_more(served, 20)?;
            old.signal(libc::SIGWINCH)?;
            until("the old workers stay", || workers_of(old.process()).is_empty())?;
            old.signal(libc::SIGQUIT)?;
            until("the old master stays", || !old.runs())?;
            old = new;
        }
        Ok(())
    })?;
    serves(nginx.port(), "/who", 40)?;
    no_complaints(&nginx)?;
    drop(old);
    Ok(counts.disturbed())
}
