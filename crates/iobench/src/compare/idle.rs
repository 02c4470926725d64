//! Opens idle connections to every server of a cell before its slots and closes them after the
//! slots, so that the slots show the cost of a transaction beside them.
//!
//! Each idle connection has made one transaction, so that the server has accepted it and waits for
//! its next request. Idle connections use addresses that the measured clients do not use, so that
//! the clients' ports stay free. Opening, checking and closing are not part of any slot. If a
//! server cannot hold the connections, or ends some, its outcomes contain the reason. A server that
//! could not hold them is not tried again in that cell. Clients on user-level TCP have no idle
//! connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use crate::compare::contenders::Contenders;
use crate::compare::holder::{ASKED, Holder};
use crate::compare::plan::Cell;
use crate::engine::outcome::SlotOutcome;
use crate::error::{Error, Result};
use crate::open::connect::Route;
use crate::path::Path;
use crate::server::running::Running;
use crate::sys::limits::{Limits, local_ports};
use crate::sys::signals::Signals;

/// Most addresses on the clients' side beside the measured clients' own.
const MOST_ADDRESSES: usize = 248;

/// Returns the number of addresses that `idle` connections to a server need, with these local
/// ports.
pub(crate) fn addresses_for(idle: usize, [low, high]: [u16; 2]) -> Result<usize> {
    let ports = usize::from(high.saturating_sub(low)) + 1;
    // connect() first tries every other port, and slows down after that.
    let addresses = idle.div_ceil((ports / 2).max(1));
    if addresses > MOST_ADDRESSES {
        return Err(Error::setup(
            format!(
                "{idle} idle connections take half of the {ports} local ports of {addresses} \
                 addresses, more than {MOST_ADDRESSES}"
            ),
            "widen net.ipv4.ip_local_port_range or ask for fewer --idle connections",
        ));
    }
    Ok(addresses)
}

/// Raises the limit of open files for measured and idle connections; fails if they exceed the hard
/// limit. `idle` is the number of connections to one server, which has as many open files as the
/// thread that holds them.
pub(crate) fn raise_limits(connections: usize, idle: usize) -> Result<Limits> {
    if idle == 0 {
        return Limits::raise();
    }
    let all = connections + idle + ASKED;
    let limits = Limits::raise_for(all)?;
    limits.check_open_files(all).map_err(|_| {
        Error::setup(
            format!(
                "{connections} connections and {idle} idle ones exceed the hard limit of {} open \
                 files",
                limits.open_files
            ),
            "raise it (`ulimit -Hn`, LimitNOFILE=, CAP_SYS_RESOURCE up to fs.nr_open) or ask for \
             fewer --idle connections",
        )
    })?;
    Ok(limits)
}

/// Opens and closes the idle connections of a run's cells.
pub(crate) struct IdleLoad<'a> {
    path: &'a Path,
    contenders: &'a Contenders,
    /// The number of measured connections.
    connections: usize,
    signals: &'a Signals,
    /// By cell and server, why the server cannot be measured in that cell.
    refused: HashMap<(usize, usize), String>,
}

/// The open idle connections of a cell, by server; `None` for servers that cannot hold them.
pub(crate) type Held = Vec<Option<Holder>>;

impl<'a> IdleLoad<'a> {
    /// Prepares for cells with `connections` measured connections, over a path with addresses for
    /// idle ones.
    pub(crate) fn new(
        path: &'a Path,
        contenders: &'a Contenders,
        connections: usize,
        signals: &'a Signals,
    ) -> IdleLoad<'a> {
        IdleLoad { path, contenders, connections, signals, refused: HashMap::new() }
    }

    /// Opens the idle connections of the cell with this number, to servers that wait for requests.
    /// Calls `before` with the number of each server before its connections are opened.
    pub(crate) fn open(
        &mut self,
        number: usize,
        cell: &Cell,
        servers: &mut [Running],
        mut before: impl FnMut(usize),
    ) -> Result<Held> {
        let mut held = Vec::new();
        for (index, server) in servers.iter_mut().enumerate().filter(|_| cell.idle > 0) {
            let key = (number, index);
            let refusal = self.contenders.refusal(index, self.connections + cell.idle);
            if let Some(refusal) = refusal.filter(|_| !self.refused.contains_key(&key)) {
                let reason = format!("it cannot hold {} idle connections: {refusal}", cell.idle);
                self.refused.insert(key, reason);
            }
            if self.refused.contains_key(&key) || server.ended().is_some() {
                held.push(None);
                continue;
            }
            before(index);
            held.push(match self.open_to(cell, server) {
                Ok(holder) => Some(holder),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    let reason = format!("its idle connections could not be opened: {error}");
                    self.refused.insert(key, reason);
                    None
                }
            });
        }
        Ok(held)
    }

    /// Returns why a server cannot be measured in a cell; `None` if it can.
    pub(crate) fn refusal(&self, cell: usize, server: usize) -> Option<String> {
        self.refused.get(&(cell, server)).cloned()
    }

    /// Checks that all idle connections are open and that some of them answer, and closes them. A
    /// failed check becomes a problem of the server's last slot in the round.
    pub(crate) fn close(
        &self,
        held: Held,
        servers: &mut [Running],
        round: &mut [Vec<SlotOutcome>],
    ) -> Result<()> {
        for ((server, holder), slots) in servers.iter_mut().zip(held).zip(round) {
            let Some(holder) = holder else { continue };
            let mut problems = Vec::new();
            if server.ended().is_none() {
                problems.extend(holder.check()?);
            }
            drop(holder);
            server.keep_idle(0);
            if !server.drain(self.signals)? && server.ended().is_none() {
                problems.push(format!("{} kept idle connections that were closed", server.name()));
            }
            if let Some(slot) = slots.last_mut() {
                slot.problems.append(&mut problems);
            }
        }
        Ok(())
    }

    fn open_to(&self, cell: &Cell, server: &mut Running) -> Result<Holder> {
        if let Some(network) = self.path.network() {
            network.lossless_from(0);
        }
        let target = server.address();
        let sources = match self.path.sources(target.ip()) {
            Some(sources) => sources,
            None => loopback(addresses_for(cell.idle, local_ports())?),
        };
        let route = Route { target, sources: sources.into_iter().skip(1).collect() };
        let holder = Holder::open(route, cell.idle, cell.exchange);
        if holder.is_ok() {
            server.keep_idle(cell.idle);
        }
        // Connections that could not be opened are closed by now; if the server keeps them, its
        // next slot shows that.
        let is_at_rest = server.drain(self.signals)?;
        if is_at_rest || holder.is_err() {
            return holder;
        }
        server.keep_idle(0);
        Err(Error::setup(
            format!("{} did not come to rest after it had answered all", server.name()),
            "check that it serves no other clients at the same time",
        ))
    }
}

/// Returns the usual address of the loopback device and the `addresses` after it.
fn loopback(addresses: usize) -> Vec<IpAddr> {
    (0..=addresses as u32)
        .map(|host| Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + host).into())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_take_half_of_the_ports_of_as_many_addresses_as_needed() {
        let usual = [32_768, 60_999];
        let addresses = |idle| addresses_for(idle, usual).unwrap();
        assert_eq!([0, 1, 14_116, 14_117, 100_000].map(addresses), [0, 1, 1, 2, 8]);
        assert_eq!(addresses_for(248, [1_000, 1_001]).unwrap(), 248);
        let message = addresses_for(249, [1_000, 1_001]).unwrap_err().to_string();
        assert!(message.contains("ip_local_port_range"), "{message}");
        assert!(message.contains("--idle"), "{message}");
    }

    #[test]
    fn more_files_than_may_be_open_are_refused_with_the_hard_limit() {
        let message = raise_limits(256, 1 << 40).unwrap_err().to_string();
        for part in ["hard limit", "ulimit -Hn", "--idle"] {
            assert!(message.contains(part), "no `{part}` in: {message}");
        }
        assert!(raise_limits(1, 0).is_ok());
    }

    #[test]
    fn measured_clients_keep_the_usual_address_for_themselves() {
        let addresses: Vec<String> =
            loopback(2).into_iter().skip(1).map(|address| address.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.2", "127.0.0.3"]);
    }
}
