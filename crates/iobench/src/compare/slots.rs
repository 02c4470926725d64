//! Runs one slot: loads a server for a quarter of a second, cuts the time into slices, and discards
//! the disturbed ones.

use crate::client::slices::{Slicing, Tally, add_latencies, add_open};
use crate::client::warm_up::{LEAD_NS, USUAL_WAIT_NS, warm_up};
use crate::client::{ClientGroup, Order};
use crate::compare::plan::Cell;
use crate::engine::outcome::{Accounts, Figures, ServerAccounts, SlotOutcome};
use crate::engine::sampler::{Border, ClientSide, Sampler, Sides, Used, findings};
use crate::engine::slices::{Finding, SliceCounts, least_clean};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::figures::{self, new_times};
use crate::network::Network;
use crate::network::verdict::Observation;
use crate::server::running::Running;
use crate::server::shared::Counters;
use crate::sys::affinity::wake_promptly;
use crate::sys::clock::now_ns;
use crate::sys::procstat::ThreadReader;
use crate::sys::signals::Signals;

/// Parameters that all slots of a cell share.
#[derive(Clone, Copy)]
pub(crate) struct SlotShape<'a> {
    pub(crate) connections: usize,
    pub(crate) slicing: Slicing,
    /// The emulated network between clients and servers, if there is one.
    pub(crate) network: Option<&'a Network>,
}

/// What is read at the border of two slices.
struct Sample {
    border: Border,
    /// CPU time of the network's relay.
    relay_ns: u64,
    /// The server's system calls, if they are counted.
    system_calls: Option<u64>,
}

/// The clients of a slot: threads of this process, or another program.
pub(crate) trait Load {
    /// Lets all connections open and run; the measurement does not start yet.
    fn begin_slot(&mut self, order: Order) -> Result<()>;
    /// Waits until every connection works, or none has made progress for `longest_wait_ns`.
    fn warm_up(&self, signals: &Signals, longest_wait_ns: u64) -> Result<()>;
    /// Sets the start of the first slice, a little in the future.
    fn measure_from(&mut self, start_ns: u64);
    /// Ends the slot and returns what the clients recorded.
    fn finish_slot(&mut self) -> Result<Vec<Tally>>;
    /// Whether the load of the last slot covered the whole measured time.
    fn covers(&self) -> bool {
        true
    }
    /// The threads of this process that load, each with a CPU of its own.
    fn thread_ids(&self) -> Vec<i32>;
    /// CPU time of the program that loads; `None` if threads of this process do.
    fn cpu_time_ns(&self) -> Option<u64> {
        None
    }
}

impl Load for ClientGroup {
    fn begin_slot(&mut self, order: Order) -> Result<()> {
        ClientGroup::begin_slot(self, order);
        Ok(())
    }

    fn warm_up(&self, signals: &Signals, longest_wait_ns: u64) -> Result<()> {
        warm_up(self, signals, longest_wait_ns)
    }

    fn measure_from(&mut self, start_ns: u64) {
        ClientGroup::measure_from(self, start_ns);
    }

    fn finish_slot(&mut self) -> Result<Vec<Tally>> {
        ClientGroup::finish_slot(self)
    }

    fn thread_ids(&self) -> Vec<i32> {
        ClientGroup::thread_ids(self)
    }
}

/// Runs slots with one group of clients.
pub(crate) struct SlotRunner<'a> {
    clients: Box<dyn Load + 'a>,
    signals: &'a Signals,
    cell: &'a Cell,
    slicing: Slicing,
    /// The emulated network between clients and servers, if there is one, and its relay.
    path: Option<(&'a Network, ThreadReader)>,
    connections: usize,
    /// The sizes by which the byte counts of both sides are compared; `None` if requests differ.
    exchange: Option<Exchange>,
}

impl<'a> SlotRunner<'a> {
    pub(crate) fn new(
        clients: impl Load + 'a,
        signals: &'a Signals,
        cell: &'a Cell,
        shape: &SlotShape<'a>,
    ) -> Result<Self> {
        let relay =
            |network: &Network| ThreadReader::new(std::process::id(), network.relay_thread());
        Ok(SlotRunner {
            clients: Box::new(clients),
            signals,
            cell,
            slicing: shape.slicing,
            path: shape.network.zip(shape.network.map(relay).transpose()?),
            connections: shape.connections,
            exchange: Some(cell.exchange),
        })
    }

    /// Disables the comparison of byte counts, for clients that check every answer by their
    /// protocol and whose requests may differ.
    pub(crate) fn without_byte_counts(self) -> Self {
        SlotRunner { exchange: None, ..self }
    }

    /// Loads the server for one slot.
    pub(crate) fn run(&mut self, server: &mut Running) -> Result<SlotOutcome> {
        if let Some(status) = server.ended() {
            return Ok(SlotOutcome::failed(format!("the server process ended ({status})")));
        }
        // From one drained state to the next: so no bytes are lost between slots, and work that the
        // server begins meanwhile does not count as incomplete.
        let before = server.drained();
        let network = self.network();
        if let Some(network) = network {
            network.lossless_from(u64::MAX);
        }
        let mut sampler = self.sampler(server)?;
        self.clients.begin_slot(order(server, network))?;
        self.clients.warm_up(self.signals, longest_wait_ns(network))?;
        let prompt = wake_promptly();
        let start_ns = now_ns() + LEAD_NS;
        self.clients.measure_from(start_ns);
        let end_ns = start_ns + self.slicing.total_ns();
        let observed = network.map(|network| Observation::begin(network, end_ns)).transpose()?;
        let mut samples = Vec::with_capacity(self.slicing.count + 1);
        for border in 0..=self.slicing.count as u64 {
            self.signals.sleep_until(start_ns + border * self.slicing.length_ns)?;
            samples.push(self.sample(server, &mut sampler));
        }
        drop(prompt);
        let tallies = self.clients.finish_slot()?;
        let mut problems = match network.zip(observed) {
            Some((network, observation)) => observation.end(network)?,
            None => Vec::new(),
        };
        if !server.drain(self.signals)? {
            problems.push(match server.ended() {
                Some(status) => format!("the server process ended ({status})"),
                None => {
                    format!("{} kept connections that the clients had closed", server.name())
                }
            });
        }
        if let Some(missing) = server.missing_idle().filter(|&missing| missing > 0) {
            problems.push(format!("{} closed {missing} idle connections", server.name()));
        }
        let mut outcome = self.evaluate(start_ns, &samples, sampler.sides(), &tallies)?;
        if server.thread_ids().is_some() {
            outcome.thread_busy = thread_busy(&samples);
        }
        if !may_accuse(&outcome.slices, network.is_some_and(is_lossy)) {
            outcome.faults.forgive_unanswered();
        }
        let counted = before.zip(server.drained()).map(|(before, after)| after.since(&before));
        outcome.accounts = accounts(&tallies, counted.as_ref());
        if let Some(exchange) = self.exchange.filter(|_| outcome.faults.total() == 0) {
            problems.extend(outcome.accounts.imbalances(exchange, self.connections));
        }
        problems.extend(tallies.iter().find_map(|tally| tally.failure.clone()));
        outcome.problems = problems;
        Ok(outcome)
    }

    fn sampler(&self, server: &Running) -> Result<Sampler> {
        let client = ClientSide {
            cpus: self.cell.placement.client_cpus.clone(),
            owned: true,
            roaming: self.path.is_some(),
        };
        let server = server.side(&self.cell.placement.server_cpus);
        Sampler::new(&client, &self.clients.thread_ids(), Some(&server))
    }

    fn sample(&self, server: &Running, sampler: &mut Sampler) -> Sample {
        let system_calls = server.system_calls();
        let used = Used { client_ns: self.clients.cpu_time_ns(), server_ns: server.cpu_time_ns() };
        let relay_ns = self.path.as_ref().map_or(0, |(_, relay)| relay.read().run_ns);
        Sample { border: sampler.border(used), relay_ns, system_calls }
    }

    fn evaluate(
        &self,
        start_ns: u64,
        samples: &[Sample],
        sides: Sides,
        tallies: &[Tally],
    ) -> Result<SlotOutcome> {
        let mut outcome = SlotOutcome::default();
        let mut latencies = new_times();
        for tally in tallies {
            outcome.faults.add(&tally.faults);
        }
        let borders: Vec<Border> = samples.iter().map(|sample| sample.border.clone()).collect();
        let mut findings = findings(&borders, sides, Some((start_ns, self.slicing)));
        if !self.clients.covers() {
            findings.fill(Finding::Late);
        }
        let placement = &self.cell.placement;
        let clients = match self.clients.thread_ids().len() {
            0 => placement.client_cpus.len(),
            threads => threads,
        };
        let threads = [placement.server_cpus.len(), clients];
        let (mut sums, mut all) = (Sums::default(), Sums::default());
        for (index, (pair, finding)) in samples.windows(2).zip(&findings).enumerate() {
            let slices = || tallies.iter().map(|tally| &tally.slices[index]);
            let transactions = slices().map(|slice| slice.transactions).sum::<u64>();
            outcome.slices.count(*finding);
            all.add(&pair[0], &pair[1], transactions);
            if *finding == Finding::Clean {
                sums.add(&pair[0], &pair[1], transactions);
                slices().for_each(|slice| add_latencies(&mut latencies, &slice.latencies));
            }
        }
        outcome.rough = all.figures(findings.len(), self.slicing.length_ns, threads);
        let mut ends_clean = findings.last() == Some(&Finding::Clean);
        if outcome.slices.clean as usize >= least_clean(self.slicing.count) {
            let clean = outcome.slices.clean as usize;
            outcome.figures = sums.figures(clean, self.slicing.length_ns, threads);
        } else {
            (latencies, ends_clean) = (new_times(), true);
            for slice in tallies.iter().flat_map(|tally| &tally.slices[..findings.len()]) {
                add_latencies(&mut latencies, &slice.latencies);
            }
        }
        if ends_clean {
            add_open(&mut latencies, tallies.iter().flat_map(|t| t.open_ages_ns.iter().copied()));
        }
        outcome.latencies = figures::encode(&latencies)?;
        Ok(outcome)
    }

    fn network(&self) -> Option<&'a Network> {
        self.path.as_ref().map(|(network, _)| *network)
    }
}

/// Longest wait for one more connection. Over a network it includes some round trips, and on a
/// lossy one the second until a SYN is retransmitted, and the two seconds until the next
/// retransmission.
fn longest_wait_ns(network: Option<&Network>) -> u64 {
    let Some(network) = network else { return USUAL_WAIT_NS };
    let repetitions_ns = if is_lossy(network) { 3 * USUAL_WAIT_NS } else { 0 };
    USUAL_WAIT_NS + repetitions_ns + round_trips_ns(network)
}

/// Three times the network's longest round trip: for a handshake and an exchange.
fn round_trips_ns(network: &Network) -> u64 {
    3 * network.conditions().longest_round_trip().as_nanos() as u64
}

fn is_lossy(network: &Network) -> bool {
    network.conditions().is_lossy()
}

/// Returns the clients' order for the slot. On a lossy path open requests are not awaited, because
/// a missing answer would prove nothing.
fn order(server: &Running, network: Option<&Network>) -> Order {
    let mut order = Order::new(server.address(), matches!(server, Running::Own { .. }));
    order.drain_limit_ns += network.map_or(0, round_trips_ns);
    if network.is_some_and(is_lossy) {
        order.drain_limit_ns = 0;
    }
    order
}

/// Returns whether unanswered requests are evidence against the server. Not on a lossy path, where
/// retransmissions take long, and not in a disturbed slot, where other work probably had the CPU.
fn may_accuse(slices: &SliceCounts, is_lossy: bool) -> bool {
    !is_lossy && slices.clean > slices.discarded()
}

/// Returns the busy share of each serving thread over the whole slot.
fn thread_busy(samples: &[Sample]) -> Vec<f64> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Vec::new() };
    let wall_ns = last.border.at_ns.saturating_sub(first.border.at_ns).max(1) as f64;
    let threads = first.border.server.threads.iter().zip(&last.border.server.threads);
    threads.map(|(from, to)| to.run_ns.saturating_sub(from.run_ns) as f64 / wall_ns).collect()
}

fn accounts(tallies: &[Tally], server: Option<&Counters>) -> Accounts {
    let server = server.map(|server| ServerAccounts {
        server_accepted: server.accepted,
        server_closed: server.closed,
        server_bytes_received: server.bytes_received,
        server_bytes_sent: server.bytes_sent,
        server_errors: server.errors,
    });
    let mut accounts = Accounts { server, ..Accounts::default() };
    for tally in tallies {
        accounts.client_transactions += tally.transactions;
        accounts.client_connections += tally.connections;
        accounts.client_bytes_sent += tally.bytes_sent;
        accounts.client_bytes_received += tally.bytes_received;
    }
    accounts
}

/// Sums over slices.
#[derive(Debug, Default)]
struct Sums {
    transactions: u64,
    wall_ns: u64,
    server_ns: u64,
    client_ns: u64,
    /// CPU time of the relay, and of the kernel's threads that process the network's packets.
    between_ns: u64,
    system_calls: Option<u64>,
}

impl Sums {
    fn add(&mut self, from: &Sample, to: &Sample, transactions: u64) {
        let softirq_ns = |border: &Border| border.client.softirq_ns + border.server.softirq_ns;
        self.transactions += transactions;
        if let (Some(from), Some(to)) = (from.system_calls, to.system_calls) {
            *self.system_calls.get_or_insert_default() += to.saturating_sub(from);
        }
        self.between_ns += to.relay_ns.saturating_sub(from.relay_ns);
        let (from, to) = (&from.border, &to.border);
        self.between_ns += softirq_ns(to).saturating_sub(softirq_ns(from));
        self.wall_ns += to.at_ns.saturating_sub(from.at_ns);
        self.server_ns += to.used.server_ns.saturating_sub(from.used.server_ns);
        self.client_ns += match from.used.client_ns.zip(to.used.client_ns) {
            Some((from_ns, to_ns)) => to_ns.saturating_sub(from_ns),
            None => to.client.run_ns(&from.client),
        };
    }

    /// Computes the figures. `threads` are the numbers of the server's threads, at least one for
    /// each of its CPUs, and of the clients' threads.
    fn figures(&self, slices: usize, length_ns: u64, threads: [usize; 2]) -> Option<Figures> {
        if self.transactions == 0 {
            return None;
        }
        let transactions = self.transactions as f64;
        let both_ns = self.server_ns + self.client_ns + self.between_ns;
        let busy =
            |run_ns: u64, threads: usize| run_ns as f64 / (self.wall_ns * threads as u64) as f64;
        Some(Figures {
            // The clients divide slices by their own clock, so all slices have exactly the same
            // length.
            throughput: transactions * 1e9 / (slices as u64 * length_ns) as f64,
            server_cpu_us: self.server_ns as f64 / 1e3 / transactions,
            cpu_both_us: Some(both_ns as f64 / 1e3 / transactions),
            system_calls: self.system_calls.map(|calls| calls as f64 / transactions),
            server_busy: busy(self.server_ns, threads[0]),
            client_busy: busy(self.client_ns, threads[1]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sampler::SideTimes;
    use crate::sys::procstat::ThreadTimes;

    #[test]
    fn disturbed_slots_and_lossy_networks_accuse_nobody() {
        let slices = |clean, delayed| SliceCounts { clean, delayed, ..SliceCounts::default() };
        assert!(may_accuse(&slices(6, 4), false));
        assert!(!may_accuse(&slices(5, 5), false));
        assert!(!may_accuse(&slices(10, 0), true));
    }

    #[test]
    fn figures_divide_by_clean_time_and_transactions() {
        let threads = |run_ns, count| vec![ThreadTimes { run_ns, delay_ns: 0 }; count];
        let side = |threads, softirq_ns| SideTimes { threads, softirq_ns, ..SideTimes::default() };
        let sample = |at_ns, run_ns, system_calls: u64| Sample {
            border: Border {
                at_ns,
                client: side(threads(system_calls * 250, 2), run_ns / 10),
                server: side(threads(run_ns, 1), run_ns / 10),
                used: Used { client_ns: None, server_ns: run_ns },
                own_ns: 0,
            },
            relay_ns: run_ns / 5,
            system_calls: Some(system_calls),
        };
        let mut sums = Sums::default();
        sums.add(&sample(0, 0, 0), &sample(1_000_000, 500_000, 400), 100);
        let figures = sums.figures(1, 1_000_000, [1, 2]).unwrap();
        assert_eq!((figures.throughput, figures.server_cpu_us), (100_000.0, 5.0));
        assert_eq!(figures.cpu_both_us, Some(5.0 + 2.0 + 1.0 + 1.0));
        assert_eq!((figures.system_calls, figures.server_busy), (Some(4.0), 0.5));
        assert!(Sums::default().figures(1, 1, [1, 1]).is_none());
    }
}
