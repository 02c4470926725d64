//! Scenarios that reload the configuration, and that kill workers.

use super::super::Extent;
use super::super::load::{CLIENTS, await_more, serves, under_load, until};
use super::super::outcome::Figures;
use super::no_complaints;
use crate::nginx::{Nginx, Setup};
use crate::send_signal;

/// Sends `HUP` repeatedly while clients make short connections.
pub(super) fn reload(setup: Setup, extent: Extent) -> Figures {
    let nginx = Nginx::start(&setup)?;
    let counts = under_load(nginx.port(), |served| {
        for _ in 0..extent.pick(3, 40) {
            nginx.reload()?;
            await_more(served, 20)?;
        }
        Ok(())
    })?;
    serves(nginx.port(), "/who", 40)?;
    no_complaints(&nginx)?;
    Ok(counts.disturbed())
}

/// The number of kills that may each cost one request more than with the stock server.
const FREE_KILLS: usize = 10;

/// Kills one worker after the other. The number of lost connections, which a killed worker had
/// accepted, is random: some more than with the stock server are allowed, and one for each client.
pub(super) fn kill(setup: Setup, extent: Extent) -> Figures {
    let nginx = Nginx::start(&setup)?;
    let kills = extent.pick(3, 40);
    let counts = under_load(nginx.port(), |served| {
        for round in 0..kills {
            await_more(served, 50)?;
            let before = nginx.workers();
            let victim = before[round % before.len()];
            send_signal(victim, libc::SIGKILL)?;
            until("a killed worker is not replaced", || {
                let now = nginx.workers();
                now.len() == before.len() && !now.contains(&victim)
            })?;
        }
        Ok(())
    })?;
    serves(nginx.port(), "/who", 40)?;
    let slack = (kills.min(FREE_KILLS) + CLIENTS) as u64;
    Ok(counts.disturbed().into_iter().map(|figure| figure.with_slack(slack)).collect())
}
