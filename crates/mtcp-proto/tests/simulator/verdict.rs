//! Whether a run that is over was right.

use super::application::Outcome;
use super::scenario::{Opening, SECOND};
use super::world::World;
use mtcp_proto::{Error, SynCookies};

/// So many losses in a row may end a connection: a SYN and its answer are repeated six times.
const EXCUSING_LOSSES: u32 = 5;

/// As long as the time-out that is the application's own may be one that a queue has made long.
const EXCUSING_LOSSES_OF_THE_IMPATIENT: u32 = 2;

/// A cookie is good for so long at least, and for twice as long at most.
const COOKIE_NS: u64 = 64 * SECOND;

/// Nobody sends without end: what is sent is bounded by what applications do, by the bytes, by
/// time (probes) and by what attackers provoke.
pub(crate) fn within_bounds(world: &World<'_>) -> Result<(), String> {
    let applications = world.runs.iter().flat_map(|run| run.applications.iter().flatten());
    let work: u64 = applications.map(|one| 200 + 20 * one.calls + one.sent / 4).sum();
    let seconds = world.now_ns / SECOND;
    let connections = world.runs.len() as u64;
    let bound = 20_000 + work + 10 * connections * seconds + 1_000 * connections;
    if world.packets > bound {
        return Err(format!("{} packets were sent, for {work} of work", world.packets));
    }
    Ok(())
}

/// Judges every connection, and what is left of them.
pub(crate) fn judge(world: &mut World<'_>) -> Result<(), String> {
    for connection in 0..world.runs.len() {
        judge_connection(world, connection).map_err(|what| {
            let outcomes = [0, 1].map(|side| world.outcome(connection, side));
            let flow = world.watch.flows().iter().find(|flow| flow.connection == connection);
            let ends = flow.map(|flow| flow.addresses);
            format!("connection {connection}, {ends:?}: {what}; outcomes {outcomes:?}")
        })?;
    }
    for number in 0..2 {
        let now_ns = world.now_ns;
        world.hosts[number].check_end(now_ns).map_err(|what| format!("host {number}: {what}"))?;
    }
    Ok(())
}

fn judge_connection(world: &World<'_>, connection: usize) -> Result<(), String> {
    let run = &world.runs[connection];
    let plan = &world.scenario.connections[connection];
    if let Some(error) = run.refused {
        return Err(format!("connect: {error}"));
    }
    if !run.started {
        return Err("it never began".into());
    }
    if is_excused(world, connection) {
        return Ok(());
    }
    if plan.opening == Opening::Refused {
        return match world.outcome(connection, 0) {
            Some(Outcome::Failed(Error::Refused)) | None => Ok(()),
            Some(_) if !world.is_patient(connection, 0) => Ok(()),
            Some(outcome) => Err(format!("nobody listens, and it is {outcome:?}")),
        };
    }
    if !plan.is_graceful() {
        return Ok(());
    }
    for side in 0..2 {
        let Some(application) = &run.applications[side] else {
            return Err(format!("side {side} never came into being"));
        };
        if application.outcome != Some(Outcome::Closed) {
            return Err(format!("side {side} did not end in order: {application:?}"));
        }
        let expected = plan.plans[1 - side].bytes();
        if application.received != expected {
            let received = application.received;
            return Err(format!("side {side} has {received} of {expected} bytes"));
        }
    }
    Ok(())
}

/// Whether the network, or the crowd before the listener, is to blame. An end that has waited in
/// vain says so, unless its application has closed before; then the other end is reset, or never
/// hears of it.
fn is_excused(world: &World<'_>, connection: usize) -> bool {
    let flow = world.watch.flows().iter().rfind(|flow| flow.connection == connection);
    let losses = flow.map_or(0, |flow| flow.fruitless_max);
    let is_half_open = flow.is_some_and(|flow| flow.ends.iter().any(|end| end.heard < 1));
    let in_vain = (0..2).any(|side| {
        matches!(
            world.outcome(connection, side),
            Some(Outcome::Failed(Error::TimedOut | Error::Unreachable))
        )
    });
    let plans = &world.scenario.connections[connection].plans;
    let is_impatient = |side: usize| plans[side].options.user_timeout.is_some();
    let is_reset = |side| world.outcome(connection, side) == Some(Outcome::Failed(Error::Reset));
    let is_cut_off = (0..2).any(|side| {
        is_impatient(side)
            && world.outcome(connection, side) == Some(Outcome::Closed)
            && is_reset(1 - side)
    });
    let has_lost_patience = is_cut_off || (in_vain && (0..2).any(is_impatient));
    // A connection that waits in a full queue for too long is reset.
    let was_not_taken = world.runs[connection].applications[1].is_none();
    // A cookie that does not come through in time is forgotten: who brings it later is reset.
    let run = &world.runs[connection];
    let server = &world.hosts[world.host_of(connection, 1)];
    let is_forgotten = was_not_taken
        && losses > 0
        && server.plan.config.syn_cookies != SynCookies::Never
        && is_reset(0)
        && run.lived_ns[0] >= COOKIE_NS;
    world.watch.overlaps(connection)
        || losses >= EXCUSING_LOSSES
        || is_forgotten
        || (has_lost_patience && losses >= EXCUSING_LOSSES_OF_THE_IMPATIENT)
        || (in_vain && is_half_open)
        || (world.scenario.is_crowded() && (in_vain || was_not_taken))
}
