//! Opens idle connections to every server of a cell before its slots and closes them after the
//! slots, so that the slots show the cost of a transaction beside them.
//!
//! Each idle connection has made one transaction, so that the server has accepted it and waits for
//! its next request. Idle connections use addresses that the measured clients do not use, so that
//! the clients' ports stay free. Opening, checking and closing are not part of any slot. If a
//! server cannot hold the connections, or ends some, its outcomes contain the reason. A server that
//! could not hold them is not tried again with as many. Clients on user-level TCP have no idle
//! connections.
//!
//! Before the first slot, the memory of the servers' processes is read without and with idle
//! connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use crate::compare::holder::{ASKED, Holder};
use crate::compare::plan::Cell;
use crate::engine::outcome::SlotOutcome;
use crate::engine::progress::Progress;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::open::connect::{Opening, Route};
use crate::output;
use crate::path::Path;
use crate::server::running::Running;
use crate::sys::limits::{Limits, local_ports};
use crate::sys::process_tree;
use crate::sys::signals::Signals;

/// Most addresses on the clients' side beside the measured clients' own.
const MOST_ADDRESSES: usize = 248;
/// From this number on, opening idle connections takes long enough to be announced.
const MANY: usize = 5_000;
/// Most connections that are open when a server's memory is read for the first time.
const FEW: usize = 64;

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

/// Returns why a server, by its number, cannot hold this many idle connections; `None` if that is
/// not known before.
pub(crate) type Refusal<'a> = Box<dyn Fn(usize, usize) -> Option<String> + 'a>;

/// Identifies a server's process with a number of idle connections.
type Key = (u32, usize);

/// Opens and closes the idle connections of a run's cells.
pub(crate) struct IdleLoad<'a> {
    path: &'a Path,
    /// The request that each connection makes first, by the sizes of a cell.
    opening: fn(Exchange) -> Opening,
    refusal: Refusal<'a>,
    signals: &'a Signals,
    /// Why a server cannot be measured beside as many.
    refused: BTreeMap<Key, String>,
    /// Memory of the server for each connection, in bytes.
    memory: BTreeMap<Key, f64>,
}

/// The open idle connections of a cell, by server; `None` for servers that cannot hold them.
pub(crate) type Held = Vec<Option<Holder>>;

impl<'a> IdleLoad<'a> {
    /// Prepares for servers over a path with addresses for idle connections.
    pub(crate) fn new(
        path: &'a Path,
        opening: fn(Exchange) -> Opening,
        refusal: Refusal<'a>,
        signals: &'a Signals,
    ) -> IdleLoad<'a> {
        let (refused, memory) = (BTreeMap::new(), BTreeMap::new());
        IdleLoad { path, opening, refusal, signals, refused, memory }
    }

    /// Measures the memory that servers use for idle connections, for each number in `counts`. The
    /// servers must have been started just now: memory that earlier connections have left would be
    /// used again, and not be counted.
    pub(crate) fn measure_memory(
        &mut self,
        exchange: Exchange,
        counts: impl Iterator<Item = usize>,
        servers: &mut [Running],
    ) -> Result<()> {
        let mut counts: Vec<usize> = counts.filter(|&count| count > 0).collect();
        counts.sort_unstable();
        counts.dedup();
        for (index, server) in servers.iter_mut().enumerate() {
            self.measure_server(index, server, exchange, &counts)?;
        }
        Ok(())
    }

    /// Measures one server with numbers of connections that grow, so that memory which fewer
    /// connections have left is part of what more of them use.
    fn measure_server(
        &mut self,
        index: usize,
        server: &mut Running,
        exchange: Exchange,
        counts: &[usize],
    ) -> Result<()> {
        let Some(&most) = counts.last() else { return Ok(()) };
        // They stay open, so that what a server allocates only once is in both readings.
        let few = FEW.min(most);
        let Ok(first) = self.try_open(0, few, exchange, server)? else { return Ok(()) };
        let before = process_tree::memory_bytes(server.process_id());
        for &count in counts {
            if !self.may_hold(index, count, server) {
                continue;
            }
            if count >= MANY {
                let name = server.name();
                output::note(&format!(
                    "measuring the memory of {count} idle connections to {name}"
                ));
            }
            match self.try_open(few, count, exchange, server)? {
                Ok(holder) => {
                    let after = process_tree::memory_bytes(server.process_id());
                    // A server that has closed some is not measured.
                    let is_held = holder.check()?.is_none();
                    if let Some((before, after)) = before.zip(after).filter(|_| is_held) {
                        let bytes = after.saturating_sub(before) as f64 / count as f64;
                        self.memory.insert((server.process_id(), count), bytes);
                    }
                }
                Err(reason) => self.refuse(server, count, reason),
            }
            server.keep_idle(few);
            server.drain(self.signals)?;
        }
        drop(first);
        server.keep_idle(0);
        server.drain(self.signals)?;
        Ok(())
    }

    /// Opens the idle connections of a cell to servers that wait for requests. Announces it if
    /// `progress` is given and there are many.
    pub(crate) fn open(
        &mut self,
        cell: &Cell,
        servers: &mut [Running],
        progress: Option<&Progress>,
    ) -> Result<Held> {
        let mut held = Vec::new();
        for (index, server) in servers.iter_mut().enumerate().filter(|_| cell.idle > 0) {
            if !self.may_hold(index, cell.idle, server) {
                held.push(None);
                continue;
            }
            if let Some(progress) = progress.filter(|_| cell.idle >= MANY) {
                let name = server.name();
                progress.note(&format!("opening {} idle connections to {name}", cell.idle));
            }
            held.push(match self.try_open(0, cell.idle, cell.exchange, server)? {
                Ok(holder) => Some(holder),
                Err(reason) => {
                    self.refuse(server, cell.idle, reason);
                    None
                }
            });
        }
        Ok(held)
    }

    /// Returns why a server cannot be measured in a cell; `None` if it can.
    pub(crate) fn refusal(&self, cell: &Cell, server: &Running) -> Option<String> {
        self.refused.get(&(server.process_id(), cell.idle)).cloned()
    }

    /// Checks that all idle connections are open and that some of them answer, and closes them. A
    /// failed check becomes a problem of the server's last slot in the round; otherwise that slot
    /// gets the memory of an idle connection.
    pub(crate) fn close(
        &self,
        cell: &Cell,
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
                slot.idle_bytes = self.memory.get(&(server.process_id(), cell.idle)).copied();
                slot.problems.append(&mut problems);
            }
        }
        Ok(())
    }

    /// Returns whether the server lives and nothing is known that prevents so many connections.
    fn may_hold(&mut self, index: usize, count: usize, server: &mut Running) -> bool {
        let is_refused = self.refused.contains_key(&(server.process_id(), count));
        if let Some(refusal) = (self.refusal)(index, count).filter(|_| !is_refused) {
            let reason = format!("it cannot hold {count} idle connections: {refusal}");
            self.refuse(server, count, reason);
            return false;
        }
        !is_refused && server.ended().is_none()
    }

    fn refuse(&mut self, server: &Running, count: usize, reason: String) {
        self.refused.insert((server.process_id(), count), reason);
    }

    /// Opens connections beside `others` that are open already; returns them, or the reason why
    /// they could not be opened. Fails if the run was interrupted.
    fn try_open(
        &self,
        others: usize,
        count: usize,
        exchange: Exchange,
        server: &mut Running,
    ) -> Result<std::result::Result<Holder, String>> {
        match self.open_to(others, count, exchange, server) {
            Ok(holder) => Ok(Ok(holder)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => Ok(Err(format!("its idle connections could not be opened: {error}"))),
        }
    }

    fn open_to(
        &self,
        others: usize,
        count: usize,
        exchange: Exchange,
        server: &mut Running,
    ) -> Result<Holder> {
        if let Some(network) = self.path.network() {
            network.lossless_from(0);
        }
        let target = server.address();
        let sources = match self.path.sources(target.ip()) {
            Some(sources) => sources,
            None => loopback(addresses_for(others + count, local_ports())?),
        };
        let route = Route { target, sources: sources.into_iter().skip(1).collect() };
        let holder = Holder::open(route, count, (self.opening)(exchange));
        server.keep_idle(others + if holder.is_ok() { count } else { 0 });
        // Connections that could not be opened are closed by now; if the server keeps them, its
        // next slot shows that.
        let is_at_rest = server.drain(self.signals)?;
        if is_at_rest || holder.is_err() {
            return holder;
        }
        server.keep_idle(others);
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
