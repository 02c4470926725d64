//! Rounds of one cell: the servers under test, each loaded in its turn.

use crate::client::slices::Slicing;
use crate::client::{ClientGroup, Workload};
use crate::compare::plan::Cell;
use crate::compare::slots::SlotRunner;
use crate::engine::order::slot_order;
use crate::engine::outcome::SlotOutcome;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Service};
use crate::network::Network;
use crate::server::running::Running;
use crate::stack::Site;
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
    /// By subject, where its clients bring a stack; the kernel's clients where there is nothing.
    pub(crate) stacks: &'a [Option<Site>],
    /// By subject, why it cannot be measured in this round; those without a reason are.
    pub(crate) unable: &'a [Option<String>],
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
    let (groups, of_subject) = start_clients(cell, shape, &workload, subjects.len())?;
    let runners = groups.iter().map(|clients| SlotRunner::new(clients, signals, cell, shape));
    interleave(runners.collect::<Result<_>>()?, &of_subject, shape, round, subjects, before_slot)
}

/// The groups of clients, and which of them loads each subject: all share the kernel's, and those
/// that bring a stack have one each, because a stack's device leads to one server only.
fn start_clients(
    cell: &Cell,
    shape: &RoundShape<'_>,
    workload: &Workload,
    subjects: usize,
) -> Result<(Vec<ClientGroup>, Vec<usize>)> {
    let cpus = &cell.placement.client_cpus;
    let (mut groups, mut of_subject, mut kernel) = (Vec::new(), Vec::new(), None);
    for subject in 0..subjects {
        let group = match shape.stacks.get(subject).and_then(Option::as_ref) {
            Some(site) => {
                let cpus = stack_cpus(cell)?;
                groups.push(ClientGroup::start_on_stacks(cpus, shape.connections, workload, site)?);
                groups.len() - 1
            }
            None => match kernel {
                Some(group) => group,
                None => {
                    groups.push(ClientGroup::start(cpus, shape.connections, workload)?);
                    *kernel.insert(groups.len() - 1)
                }
            },
        };
        of_subject.push(group);
    }
    Ok((groups, of_subject))
}

/// The CPUs of clients that bring a stack: the queues of a veth pair are as many at both ends, and
/// every thread has one.
fn stack_cpus(cell: &Cell) -> Result<&[usize]> {
    let cpus = &cell.placement.client_cpus;
    cpus.get(..cell.cores).ok_or_else(|| {
        Error::setup(
            format!("clients with a stack need as many CPUs as the server, {}", cell.cores),
            "ask for fewer --cores, or name more --client-cpus",
        )
    })
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
    interleave(vec![runner], &vec![0; subjects.len()], shape, round, subjects, before_slot)
}

fn interleave(
    mut runners: Vec<SlotRunner<'_>>,
    of_subject: &[usize],
    shape: &RoundShape<'_>,
    round: usize,
    subjects: &mut [&mut Running],
    mut before_slot: impl FnMut(usize),
) -> Result<Vec<Vec<SlotOutcome>>> {
    if shape.baseline >= subjects.len() {
        return Err(Error::setup("the baseline is not measured", "report this as a bug"));
    }
    let mut outcomes: Vec<Vec<SlotOutcome>> =
        vec![Vec::with_capacity(shape.passes); subjects.len()];
    for pass in 0..shape.passes {
        for subject in slot_order(subjects.len(), shape.baseline, round, pass) {
            before_slot(subject);
            // Once for every server and cell; again only if there was nothing to be seen.
            let looks =
                round == 0 && outcomes[subject].iter().all(|slot| slot.congestion.is_none());
            outcomes[subject].push(match shape.unable.get(subject).and_then(Option::as_ref) {
                Some(reason) => SlotOutcome::failed(reason.clone()),
                None => runners[of_subject[subject]].run(subjects[subject], looks)?,
            });
        }
    }
    Ok(outcomes)
}
