//! Rounds of one cell: the servers under test, each loaded in its turn.

use crate::client::ClientGroup;
use crate::client::connection::Workload;
use crate::client::slices::Slicing;
use crate::compare::outcome::SlotOutcome;
use crate::compare::plan::Cell;
use crate::compare::slots::SlotRunner;
use crate::compare::stats::slot_order;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Service};
use crate::network::Network;
use crate::server::running::Running;
use crate::sys::signals::Signals;
use crate::sys::socket::CongestionControl;

/// What all rounds of a cell have in common.
#[derive(Clone, Copy)]
pub(crate) struct RoundShape<'a> {
    pub(crate) connections: usize,
    /// Slots per subject; even, so that A B is always answered by B A.
    pub(crate) passes: usize,
    pub(crate) slicing: Slicing,
    /// The subject that ratios are against; it runs first or last in every pass.
    pub(crate) baseline: usize,
    /// The path between clients and servers, unless it is the loopback device.
    pub(crate) network: Option<&'a Network>,
}

/// How a server has to be started for an exchange: echoes are of any size, so one server does for
/// all of them.
pub(crate) fn service_for(exchange: Exchange) -> Service {
    Service { exchange: (!exchange.is_echo()).then_some(exchange), ..Service::default() }
}

/// Measures one round (numbered from 0, which decides the order) of one cell and returns the
/// outcomes by subject, then by pass. The subjects must run with `service_for(cell.exchange)` on
/// the cell's CPUs. `before_slot` hears of each slot's subject before it begins.
pub(crate) fn measure_round(
    cell: &Cell,
    shape: &RoundShape<'_>,
    round: usize,
    subjects: &mut [&mut Running],
    signals: &Signals,
    before_slot: impl FnMut(usize),
) -> Result<Vec<Vec<SlotOutcome>>> {
    let workload = Workload {
        transactions: cell.transactions,
        exchange: cell.exchange,
        congestion: CongestionControl::pick(),
        slicing: shape.slicing,
    };
    let clients = ClientGroup::start(&cell.placement.client_cpus, shape.connections, &workload)?;
    let runner = SlotRunner::new(&clients, signals, cell, shape)?;
    interleave(runner, shape, round, subjects, before_slot)
}

/// The same with clients that check every answer for themselves, so that the sizes of requests and
/// answers need not be the same for all.
pub(crate) fn measure_round_with(
    clients: &ClientGroup,
    cell: &Cell,
    shape: &RoundShape<'_>,
    round: usize,
    subjects: &mut [&mut Running],
    signals: &Signals,
    before_slot: impl FnMut(usize),
) -> Result<Vec<Vec<SlotOutcome>>> {
    let runner = SlotRunner::new(clients, signals, cell, shape)?.without_books();
    interleave(runner, shape, round, subjects, before_slot)
}

fn interleave(
    mut runner: SlotRunner<'_>,
    shape: &RoundShape<'_>,
    round: usize,
    subjects: &mut [&mut Running],
    mut before_slot: impl FnMut(usize),
) -> Result<Vec<Vec<SlotOutcome>>> {
    if shape.baseline >= subjects.len() {
        return Err(Error::setup("the baseline is not measured", "report this as a bug"));
    }
    let mut outcomes = vec![Vec::with_capacity(shape.passes); subjects.len()];
    for pass in 0..shape.passes {
        for subject in slot_order(subjects.len(), shape.baseline, round, pass) {
            before_slot(subject);
            outcomes[subject].push(runner.run(subjects[subject])?);
        }
    }
    Ok(outcomes)
}
