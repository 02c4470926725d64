//! Manages the clients of one round of a cell and the slots of their servers.

use crate::client::{ClientGroup, Workload};
use crate::compare::plan::Cell;
use crate::compare::slots::{Load, SlotRunner, SlotShape};
use crate::engine::outcome::SlotOutcome;
use crate::engine::rounds::Turn;
use crate::error::{Error, Result};
use crate::server::running::Running;
use crate::stack::Site;
use crate::sys::signals::Signals;
use crate::sys::socket::CongestionControl;

/// The clients of one round.
pub(crate) struct Clients<'a> {
    runners: Vec<SlotRunner<'a>>,
    /// For each subject the index of the client group that loads it.
    of_subject: Vec<usize>,
}

impl<'a> Clients<'a> {
    /// Starts the clients. `stacks` has a site for each subject whose clients use user-level TCP.
    /// All other subjects share one group of clients over the kernel's sockets; each site gets a
    /// group of its own, because a stack's device leads to one server only. The subjects must run
    /// with the service for the cell's exchange on the cell's CPUs.
    pub(crate) fn start(
        cell: &'a Cell,
        shape: &SlotShape<'a>,
        stacks: &[Option<Site>],
        signals: &'a Signals,
    ) -> Result<Clients<'a>> {
        let workload = Workload {
            transactions: cell.transactions,
            exchange: cell.exchange,
            congestion: CongestionControl::pick(),
            slicing: shape.slicing,
        };
        let (cpus, connections) = (&cell.placement.client_cpus, shape.connections);
        Clients::for_sites(stacks, |stack| {
            let group = match stack {
                Some(site) => {
                    ClientGroup::start_on_stacks(stack_cpus(cell)?, connections, &workload, site)?
                }
                None => ClientGroup::start(cpus, connections, &workload)?,
            };
            SlotRunner::new(group, signals, cell, shape)
        })
    }

    /// Starts a group of clients by `start` for each site, and one for all subjects without a site.
    pub(crate) fn for_sites(
        stacks: &[Option<Site>],
        start: impl Fn(Option<&Site>) -> Result<SlotRunner<'a>>,
    ) -> Result<Clients<'a>> {
        let (mut runners, mut of_subject, mut kernel) = (Vec::new(), Vec::new(), None);
        for stack in stacks {
            let shared = kernel.filter(|_| stack.is_none());
            of_subject.push(shared.unwrap_or(runners.len()));
            if shared.is_some() {
                continue;
            }
            if stack.is_none() {
                kernel = Some(runners.len());
            }
            runners.push(start(stack.as_ref())?);
        }
        Ok(Clients { runners, of_subject })
    }

    /// Uses clients that check every answer by their protocol, so that sizes of requests and
    /// answers may vary.
    pub(crate) fn of_group(
        group: impl Load + 'a,
        cell: &'a Cell,
        shape: &SlotShape<'a>,
        subjects: usize,
        signals: &'a Signals,
    ) -> Result<Clients<'a>> {
        let runner = SlotRunner::new(group, signals, cell, shape)?.without_byte_counts();
        Ok(Clients { runners: vec![runner], of_subject: vec![0; subjects] })
    }

    /// Measures one slot.
    pub(crate) fn measure(&mut self, turn: Turn, server: &mut Running) -> Result<SlotOutcome> {
        self.runners[self.of_subject[turn.subject]].run(server)
    }
}

/// Returns the CPUs of clients on user-level TCP: a veth pair has the same number of queues at both
/// ends, and every thread needs one.
pub(crate) fn stack_cpus(cell: &Cell) -> Result<&[usize]> {
    let cpus = &cell.placement.client_cpus;
    cpus.get(..cell.cores).ok_or_else(|| {
        Error::setup(
            format!("clients with a stack need as many CPUs as the server, {}", cell.cores),
            "ask for fewer --cores, or name more --client-cpus",
        )
    })
}
