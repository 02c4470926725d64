//! Decides after a run whether it was correct.

use super::application::Outcome;
use super::scenario::{Opening, SECOND};
use super::world::World;
use mtcp_proto::{Error, SynCookies};

/// Number of consecutive losses that may end a connection: a SYN and its answer are sent again six
/// times.
const EXCUSING_LOSSES: u32 = 5;

/// The same with a user time-out of the application, which may be as short as one retransmission
/// time-out that a queue has lengthened.
const EXCUSING_LOSSES_WITH_USER_TIMEOUT: u32 = 2;

/// The least time for which a cookie is valid; the longest is twice as long.
const COOKIE_NS: u64 = 64 * SECOND;

/// Checks that packets are bounded by the applications' actions, by the bytes, by time (probes) and
/// by the attackers' packets.
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

/// Checks every connection, and that nothing of them is left.
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
            Some(_) if !world.waits_without_limit(connection, 0) => Ok(()),
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

/// Whether the network, or a full accept queue, explains a failure. An end whose wait times out
/// reports it, unless its application has closed before. Then the other end is reset, or receives
/// no packet at all.
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
    let has_user_timeout = |side: usize| plans[side].options.user_timeout.is_some();
    let is_reset = |side| world.outcome(connection, side) == Some(Outcome::Failed(Error::Reset));
    let is_cut_off = (0..2).any(|side| {
        has_user_timeout(side)
            && world.outcome(connection, side) == Some(Outcome::Closed)
            && is_reset(1 - side)
    });
    let has_timed_out = is_cut_off || (in_vain && (0..2).any(has_user_timeout));
    // A connection that waits in a full accept queue for too long is reset.
    let was_not_taken = world.runs[connection].applications[1].is_none();
    // A cookie that does not arrive in time is invalid: an end that returns it later is reset.
    let run = &world.runs[connection];
    let server = &world.hosts[world.host_of(connection, 1)];
    let is_forgotten = was_not_taken
        && losses > 0
        && server.plan.config.syn_cookies != SynCookies::Never
        && is_reset(0)
        && run.lived_ns[0] >= COOKIE_NS;
    // Whose buffers did not move while others lacked memory is reset; the reset may be lost.
    let lacks_memory = world.hosts.iter().any(|host| host.stack.counters().reset_for_memory > 0);
    let is_cut = |outcome| {
        matches!(outcome, Some(Outcome::Failed(Error::Aborted | Error::Reset) | Outcome::TimedOut))
    };
    let has_lost_memory =
        lacks_memory && (0..2).any(|side| is_cut(world.outcome(connection, side)));
    world.watch.overlaps(connection)
        || has_lost_memory
        || losses >= EXCUSING_LOSSES
        || is_forgotten
        || (has_timed_out && losses >= EXCUSING_LOSSES_WITH_USER_TIMEOUT)
        || (in_vain && is_half_open)
        || (world.scenario.is_crowded() && (in_vain || was_not_taken))
}
