//! Runs the compared servers and their clients on this machine.

use crate::compare::contenders::Contenders;
use crate::compare::idle::{Held, IdleLoad};
use crate::compare::plan::{Cell, Plan};
use crate::compare::provisional;
use crate::compare::rounds::Clients;
use crate::compare::slots::SlotShape;
use crate::engine::outcome::SlotOutcome;
use crate::engine::progress::Progress;
use crate::engine::rounds::{Bench, Turn};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Service};
use crate::path::Path;
use crate::server::process::Launch;
use crate::server::running::Running;
use crate::stack::Site;
use crate::sys::signals::Signals;

/// Identifies a group of servers: number of cores and service.
type GroupKey = (usize, Option<Exchange>);

fn group_key(cell: &Cell) -> GroupKey {
    (cell.cores, Service::for_exchange(cell.exchange).exchange)
}

/// All servers for some cells, in their order, each with the site of its clients' stack if they use
/// one.
pub(crate) struct Group {
    key: GroupKey,
    servers: Vec<Running>,
    stacks: Vec<Option<Site>>,
}

/// Starts all servers.
pub(crate) fn start(
    plan: &Plan,
    contenders: &Contenders,
    connections: usize,
    signals: &Signals,
    path: &mut Path,
) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    contenders.check_connections(connections)?;
    for cell in &plan.cells {
        let key = group_key(cell);
        if groups.iter().any(|group| group.key == key) {
            continue;
        }
        let mut group = Group { key, servers: Vec::new(), stacks: Vec::new() };
        for (subject, &client) in contenders.subjects.iter().zip(&contenders.clients) {
            let echo = Launch::echo(subject.name(), &cell.placement.server_cpus);
            let launch = Launch { service: Service::for_exchange(cell.exchange), ..echo };
            let (server, stack) = path.start(subject, client, launch, signals)?;
            group.servers.push(server);
            group.stacks.push(stack);
        }
        groups.push(group);
    }
    Ok(groups)
}

/// Measures the memory of idle connections of servers that have just started.
pub(crate) fn measure_idle_memory(
    plan: &Plan,
    groups: &mut [Group],
    idle: &mut IdleLoad<'_>,
) -> Result<()> {
    for group in groups {
        let cells = || plan.cells.iter().filter(|cell| group_key(cell) == group.key);
        let Some(exchange) = cells().map(|cell| cell.exchange).next() else { continue };
        idle.measure_memory(exchange, cells().map(|cell| cell.idle), &mut group.servers)?;
    }
    Ok(())
}

/// The servers and clients of this machine.
pub(crate) struct Machine<'a> {
    plan: &'a Plan,
    contenders: &'a Contenders,
    shape: SlotShape<'a>,
    signals: &'a Signals,
    groups: &'a mut [Group],
    idle: IdleLoad<'a>,
    /// The clients of the current round.
    clients: Option<Clients<'a>>,
    held: Held,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        contenders: &'a Contenders,
        shape: SlotShape<'a>,
        signals: &'a Signals,
        groups: &'a mut [Group],
        idle: IdleLoad<'a>,
    ) -> Machine<'a> {
        let (clients, held) = (None, Held::new());
        Machine { plan, contenders, shape, signals, groups, idle, clients, held }
    }
}

/// Returns the servers of a cell.
fn group_of<'a>(groups: &'a mut [Group], cell: &Cell) -> Result<&'a mut Group> {
    let key = group_key(cell);
    let group = groups.iter_mut().find(|group| group.key == key);
    group.ok_or_else(|| Error::setup("a cell without servers", "report this as a bug"))
}

impl Bench for Machine<'_> {
    type Slot = SlotOutcome;

    fn describe(&self, cell: usize, subject: usize) -> String {
        format!("{}, {}", self.contenders.labels[subject], describe(&self.plan.cells[cell]))
    }

    fn open(&mut self, first: Turn, progress: &Progress) -> Result<()> {
        let plan = self.plan;
        let cell = &plan.cells[first.cell];
        let group = group_of(self.groups, cell)?;
        let is_first = first.round == 0 && !first.again;
        self.held = self.idle.open(cell, &mut group.servers, is_first.then_some(progress))?;
        self.clients = Some(Clients::start(cell, &self.shape, &group.stacks, self.signals)?);
        Ok(())
    }

    fn measure(&mut self, turn: Turn) -> Result<SlotOutcome> {
        let cell = &self.plan.cells[turn.cell];
        let server = &mut group_of(self.groups, cell)?.servers[turn.subject];
        if let Some(reason) = self.idle.refusal(cell, server) {
            return Ok(SlotOutcome::failed(reason));
        }
        let clients = self.clients.as_mut();
        let clients = clients
            .ok_or_else(|| Error::setup("a slot without clients", "report this as a bug"))?;
        clients.measure(turn, server)
    }

    fn close(
        &mut self,
        first: Turn,
        slots: &mut [Vec<SlotOutcome>],
        progress: &Progress,
    ) -> Result<()> {
        self.clients = None;
        let cell = &self.plan.cells[first.cell];
        let group = group_of(self.groups, cell)?;
        self.idle.close(cell, std::mem::take(&mut self.held), &mut group.servers, slots)?;
        if first.round == 0 && !first.again {
            let lines = provisional::lines(&describe(cell), &self.contenders.labels, slots);
            progress.print(&lines);
        }
        Ok(())
    }
}

fn describe(cell: &Cell) -> String {
    let transactions = match cell.transactions {
        0 => "persistent".to_owned(),
        count => format!("{count} per connection"),
    };
    let sizes = match cell.exchange {
        exchange if exchange.is_echo() => exchange.request_bytes.to_string(),
        Exchange { request_bytes, response_bytes } => format!("{request_bytes}/{response_bytes}"),
    };
    let idle = if cell.idle > 0 { format!(", {} idle", cell.idle) } else { String::new() };
    let plural = if cell.cores == 1 { "" } else { "s" };
    format!("{transactions}, {sizes} B, {} core{plural}{idle}", cell.cores)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::placement::Placement;

    #[test]
    fn echoes_of_all_sizes_share_a_server_and_other_exchanges_do_not() {
        let key = |request_bytes, response_bytes| {
            let placement = Placement { server_cpus: vec![0], client_cpus: vec![1] };
            let exchange = Exchange { request_bytes, response_bytes };
            group_key(&Cell { cores: 1, placement, exchange, transactions: 1, idle: 0 })
        };
        assert_eq!(key(64, 64), key(1, 1));
        assert_ne!(key(64, 64), key(64, 65));
        assert_ne!(key(64, 66), key(64, 65));
    }
}
