//! One slot: a server under load for a quarter of a second, cut into slices, with the disturbed
//! ones thrown away.

use crate::client::slices::{Latencies, Slicing, Tally, add_open};
use crate::client::{ClientGroup, Order};
use crate::compare::congestion;
use crate::compare::plan::{Cell, WARM_UP_NS};
use crate::compare::rounds::RoundShape;
use crate::engine::outcome::{Accounts, Figures, ServerAccounts, SliceCounts, SlotOutcome};
use crate::engine::placement::Placement;
use crate::error::Result;
use crate::exchange::Exchange;
use crate::figures::{self, Times, new_times};
use crate::network::Network;
use crate::network::verdict::Observation;
use crate::server::running::Running;
use crate::server::shared::Counters;
use crate::sys::affinity::{thread_id, wake_promptly};
use crate::sys::clock::now_ns;
use crate::sys::procstat::{
    CpuReader, CpuTicks, TICK_NS, ThreadReader, ThreadTimes, softirq_threads,
};
use crate::sys::signals::Signals;

/// Longest wait during warm-up for one more connection's first transaction.
const WARM_UP_PATIENCE_NS: u64 = 1_000_000_000;
/// Between the decision to measure and the first slice, so that every client thread hears of it.
pub(crate) const LEAD_NS: u64 = 15_000_000;
/// A border sampled later than this does not fit the clients' own clock.
pub(crate) const LATE_NS: u64 = 2_000_000;
/// A thread with a CPU of its own that had to wait for it longer than this part of a slice (1/25)
/// was disturbed by somebody else.
pub(crate) const DELAY_PART: u64 = 25;
/// Where CPUs are shared, waiting is normal; there a slot is disturbed if others used more than
/// this part (1/10) of the CPUs.
const FOREIGN_PART: u64 = 10;

/// One side's threads.
struct Side {
    readers: Vec<ThreadReader>,
}

impl Side {
    fn new(process: u32, threads: &[i32]) -> Result<Side> {
        let readers = threads.iter().map(|&thread| ThreadReader::new(process, thread));
        Ok(Side { readers: readers.collect::<Result<_>>()? })
    }

    /// Threads that may belong to several processes; the kernel finds each by its number alone.
    fn of_any_process(threads: &[i32]) -> Result<Side> {
        let readers = threads.iter().map(|&thread| ThreadReader::new(thread as u32, thread));
        Ok(Side { readers: readers.collect::<Result<_>>()? })
    }

    fn read(&self, into: &mut Vec<ThreadTimes>) {
        into.extend(self.readers.iter().map(ThreadReader::read));
    }
}

/// The state of everything at a slice's border.
#[derive(Debug, Clone, Default)]
struct Border {
    at_ns: u64,
    ticks: CpuTicks,
    server: Vec<ThreadTimes>,
    /// CPU time of the whole server, which may have helpers beside the threads that serve.
    server_ns: u64,
    client: Vec<ThreadTimes>,
    /// CPU time of this very thread, ours as well.
    coordinator_ns: u64,
    /// CPU time of the network's relay.
    relay_ns: u64,
    /// CPU time of the kernel's threads that finish the network's work for both sides.
    softirq_ns: u64,
    /// Unless nobody counts them.
    system_calls: Option<u64>,
}

/// Runs slots against one server with one group of clients.
pub(crate) struct SlotRunner<'a> {
    clients: &'a ClientGroup,
    signals: &'a Signals,
    placement: &'a Placement,
    slicing: Slicing,
    cpus: CpuReader,
    client_side: Side,
    coordinator: ThreadReader,
    softirq: Vec<ThreadReader>,
    /// The path between clients and servers, unless it is the loopback device, and its relay.
    path: Option<(&'a Network, ThreadReader)>,
    connections: usize,
    /// What the books have to balance by, unless requests differ.
    exchange: Option<Exchange>,
}

impl<'a> SlotRunner<'a> {
    pub(crate) fn new(
        clients: &'a ClientGroup,
        signals: &'a Signals,
        cell: &'a Cell,
        shape: &RoundShape<'a>,
    ) -> Result<Self> {
        let own = std::process::id();
        let relay = shape.network.map(|network| ThreadReader::new(own, network.relay_thread()));
        Ok(SlotRunner {
            clients,
            signals,
            placement: &cell.placement,
            slicing: shape.slicing,
            cpus: CpuReader::new(&cell.placement.cpus())?,
            client_side: Side::new(own, &clients.thread_ids())?,
            coordinator: ThreadReader::new(own, thread_id())?,
            softirq: softirq_threads(&cell.placement.cpus()),
            path: shape.network.zip(relay.transpose()?),
            connections: shape.connections,
            exchange: Some(cell.exchange),
        })
    }

    /// For clients that check every answer for themselves, whose requests may differ.
    pub(crate) fn without_books(self) -> Self {
        SlotRunner { exchange: None, ..self }
    }

    /// Loads the server for one slot; `looks` if the congestion control of its connections is to be
    /// read back, which happens before anything is measured.
    pub(crate) fn run(&mut self, server: &mut Running, looks: bool) -> Result<SlotOutcome> {
        if let Some(status) = server.ended() {
            return Ok(SlotOutcome::failed(format!("the server process ended ({status})")));
        }
        // From one drained state to the next: nothing is lost between slots, and what the server
        // may begin meanwhile does not show as half done.
        let before = server.drained();
        let network = self.network();
        if let Some(network) = network {
            network.lossless_from(u64::MAX);
        }
        let threads = server.thread_ids();
        let server_side = threads.map(Side::of_any_process).transpose()?;
        self.clients.begin_slot(order(server, network));
        warm_up_within(self.clients, self.signals, patience_ns(network))?;
        let congestion = looks.then(|| congestion::read(server)).flatten();
        let prompt = wake_promptly();
        let start_ns = now_ns() + LEAD_NS;
        self.clients.measure_from(start_ns);
        let end_ns = start_ns + self.slicing.total_ns();
        let observed = network.map(|network| Observation::begin(network, end_ns)).transpose()?;
        let mut borders = Vec::with_capacity(self.slicing.count + 1);
        for border in 0..=self.slicing.count as u64 {
            self.signals.sleep_until(start_ns + border * self.slicing.length_ns)?;
            borders.push(self.sample(server, server_side.as_ref()));
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
        let mut outcome = self.evaluate(start_ns, &borders, &tallies, server)?;
        if !may_accuse(&outcome.slices, network.is_some_and(is_lossy)) {
            outcome.faults.forgive_unanswered();
        }
        let counted = before.zip(server.drained()).map(|(before, after)| after.since(&before));
        outcome.accounts = accounts(&tallies, counted.as_ref());
        if let Some(exchange) = self.exchange.filter(|_| outcome.faults.total() == 0) {
            problems.extend(outcome.accounts.imbalances(exchange, self.connections));
        }
        problems.extend(tallies.iter().find_map(|tally| tally.failure.clone()));
        outcome.congestion = congestion;
        outcome.problems = problems;
        Ok(outcome)
    }

    fn sample(&mut self, server: &Running, server_side: Option<&Side>) -> Border {
        let mut border = Border { at_ns: now_ns(), ..Border::default() };
        border.system_calls = server.system_calls();
        match server_side {
            Some(side) => {
                side.read(&mut border.server);
                if !server.has_cpus_to_itself() {
                    border.server.iter_mut().for_each(|thread| thread.delay_ns = 0);
                }
            }
            // Threads that come and go with connections wait for each other, so their delays would
            // tell nothing about others; they count as one for each CPU.
            None => {
                border.server = vec![ThreadTimes::default(); self.placement.server_cpus.len()];
            }
        }
        border.server_ns = match (server, server_side) {
            (Running::Own { .. }, Some(_)) => border.server.iter().map(|t| t.run_ns).sum(),
            _ => server.cpu_time_ns(),
        };
        self.client_side.read(&mut border.client);
        border.ticks = self.cpus.read();
        border.relay_ns = self.path.as_ref().map_or(0, |(_, relay)| relay.read().run_ns);
        border.softirq_ns = self.softirq.iter().map(|thread| thread.read().run_ns).sum();
        border.coordinator_ns = self.coordinator.read().run_ns;
        border
    }

    fn evaluate(
        &self,
        start_ns: u64,
        borders: &[Border],
        tallies: &[Tally],
        server: &Running,
    ) -> Result<SlotOutcome> {
        let mut outcome = SlotOutcome::default();
        let mut latencies = new_times();
        for tally in tallies {
            outcome.faults.add(&tally.faults);
        }
        let shared = self.shares_cpus();
        // Where threads wait for each other only the whole slot tells whether others were there.
        let looks_at_slot = shared || !server.has_cpus_to_itself();
        let foreign = looks_at_slot && self.used_by_others(borders);
        let (mut sums, mut all) = (Sums::default(), Sums::default());
        let mut ends_clean = false;
        for (index, pair) in borders.windows(2).enumerate() {
            let due_ns = start_ns + index as u64 * self.slicing.length_ns;
            let (from, to) = (&pair[0], &pair[1]);
            let late = from.at_ns > due_ns + LATE_NS
                || to.at_ns > due_ns + self.slicing.length_ns + LATE_NS;
            ends_clean = false;
            if to.ticks.steal != from.ticks.steal {
                outcome.slices.stolen += 1;
            } else if foreign || (!shared && self.was_delayed(from, to)) {
                outcome.slices.delayed += 1;
            } else if late {
                outcome.slices.late += 1;
            } else {
                outcome.slices.clean += 1;
                ends_clean = true;
                sums.add(from, to);
                for tally in tallies {
                    let slice = &tally.slices[index];
                    sums.transactions += slice.transactions;
                    add_latencies(&mut latencies, &slice.latencies);
                }
            }
            all.add(from, to);
            all.transactions +=
                tallies.iter().map(|tally| tally.slices[index].transactions).sum::<u64>();
        }
        let slices = borders.len().saturating_sub(1);
        outcome.rough = all.figures(slices as u32, self.slicing.length_ns);
        if outcome.slices.clean as usize >= least_clean(self.slicing.count) {
            outcome.figures = sums.figures(outcome.slices.clean, self.slicing.length_ns);
        } else {
            (latencies, ends_clean) = (new_times(), true);
            for slice in tallies.iter().flat_map(|tally| &tally.slices[..slices]) {
                add_latencies(&mut latencies, &slice.latencies);
            }
        }
        if ends_clean {
            add_open(&mut latencies, tallies.iter().flat_map(|t| t.open_ages_ns.iter().copied()));
        }
        outcome.latencies = figures::encode(&latencies)?;
        outcome.thread_busy =
            if server.thread_ids().is_some() { thread_busy(borders) } else { Vec::new() };
        Ok(outcome)
    }

    fn network(&self) -> Option<&'a Network> {
        self.path.as_ref().map(|(network, _)| *network)
    }

    /// No thread has a CPU to itself; the relay takes its time wherever there is some.
    fn shares_cpus(&self) -> bool {
        self.placement.is_shared() || self.path.is_some()
    }

    /// A thread that owns its CPU waited for it, and not for the kernel's work on its own packets.
    fn was_delayed(&self, from: &Border, to: &Border) -> bool {
        let softirq_ns = to.softirq_ns.saturating_sub(from.softirq_ns);
        let limit_ns = self.slicing.length_ns / DELAY_PART + softirq_ns;
        let delayed = |from: &[ThreadTimes], to: &[ThreadTimes]| {
            from.iter()
                .zip(to)
                .any(|(from, to)| to.delay_ns.saturating_sub(from.delay_ns) > limit_ns)
        };
        delayed(&from.server, &to.server) || delayed(&from.client, &to.client)
    }

    /// Compares what the CPUs were busy with to what our threads used, over the whole slot because
    /// /proc/stat counts in ticks.
    fn used_by_others(&self, borders: &[Border]) -> bool {
        let (Some(first), Some(last)) = (borders.first(), borders.last()) else { return false };
        let mut ours = Sums::default();
        ours.add(first, last);
        let coordinator_ns = last.coordinator_ns.saturating_sub(first.coordinator_ns);
        let ours_ns = ours.server_ns + ours.client_ns + ours.between_ns + coordinator_ns;
        let wall_ns = last.at_ns.saturating_sub(first.at_ns);
        is_used_by_others(&first.ticks, &last.ticks, ours_ns, wall_ns, self.placement.cpus().len())
    }
}

/// Whether the CPUs were busy with much more than what is known to be ours.
pub(crate) fn is_used_by_others(
    from: &CpuTicks,
    to: &CpuTicks,
    ours_ns: u64,
    wall_ns: u64,
    cpus: usize,
) -> bool {
    let busy_ns = to.busy.saturating_sub(from.busy) * TICK_NS;
    // Each CPU's count may be off by a tick at either end.
    let slack_ns = wall_ns * cpus as u64 / FOREIGN_PART + cpus as u64 * TICK_NS;
    busy_ns > ours_ns + slack_ns
}

/// Waits for the least warm-up and until every connection has completed a transaction, or none has
/// for a while: what stalls beyond that is found out by measuring.
pub(crate) fn warm_up(clients: &ClientGroup, signals: &Signals) -> Result<()> {
    warm_up_within(clients, signals, WARM_UP_PATIENCE_NS)
}

/// Longest wait for one more connection: over a network some round trips, and where packets get
/// lost the second that a SYN waits to be sent again, and twice that.
fn patience_ns(network: Option<&Network>) -> u64 {
    let Some(network) = network else { return WARM_UP_PATIENCE_NS };
    let repetitions_ns = if is_lossy(network) { 3 * WARM_UP_PATIENCE_NS } else { 0 };
    WARM_UP_PATIENCE_NS + repetitions_ns + round_trips_ns(network)
}

/// Three of the network's longest round trips: a handshake and an exchange.
fn round_trips_ns(network: &Network) -> u64 {
    3 * network.conditions().longest_round_trip().as_nanos() as u64
}

fn is_lossy(network: &Network) -> bool {
    network.conditions().is_lossy()
}

/// What the clients are told. Where packets get lost, requests that wait are waited for no longer,
/// because nothing could be concluded.
fn order(server: &Running, network: Option<&Network>) -> Order {
    let mut order = Order::new(server.address(), matches!(server, Running::Own { .. }));
    order.patience_ns += network.map_or(0, round_trips_ns);
    if network.is_some_and(is_lossy) {
        order.patience_ns = 0;
    }
    order
}

/// Whether requests without an answer tell of the server: retransmissions take long, and in a
/// disturbed slot it is more likely that somebody else had the CPU.
fn may_accuse(slices: &SliceCounts, is_lossy: bool) -> bool {
    !is_lossy && slices.clean > slices.discarded()
}

fn warm_up_within(clients: &ClientGroup, signals: &Signals, patience_ns: u64) -> Result<()> {
    let mut progress_ns = now_ns();
    signals.sleep_until(progress_ns + WARM_UP_NS - LEAD_NS)?;
    let mut cold = clients.cold();
    while cold > 0 && now_ns() < progress_ns + patience_ns {
        signals.sleep_ms(5)?;
        let still_cold = clients.cold();
        if still_cold < cold {
            (cold, progress_ns) = (still_cold, now_ns());
        }
    }
    Ok(())
}

/// The busy part of each thread's time over the whole slot.
fn thread_busy(borders: &[Border]) -> Vec<f64> {
    let (Some(first), Some(last)) = (borders.first(), borders.last()) else { return Vec::new() };
    let wall_ns = last.at_ns.saturating_sub(first.at_ns).max(1) as f64;
    let threads = first.server.iter().zip(&last.server);
    threads.map(|(from, to)| to.run_ns.saturating_sub(from.run_ns) as f64 / wall_ns).collect()
}

/// Fewer clean slices say nothing about a slot.
pub(crate) fn least_clean(slices: usize) -> usize {
    slices.div_ceil(2).min(3)
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

/// Merges a slice's histogram into one of a whole slot or run, which tells more values apart.
pub(crate) fn add_latencies(sum: &mut Times, slice: &Latencies) {
    for value in slice.iter_recorded() {
        sum.saturating_record_n(value.value_iterated_to(), u64::from(value.count_at_value()));
    }
}

/// Totals over clean slices.
#[derive(Debug, Default)]
struct Sums {
    transactions: u64,
    wall_ns: u64,
    server_ns: u64,
    client_ns: u64,
    /// The relay's and what the kernel's own threads did to finish the network's work.
    between_ns: u64,
    server_threads: usize,
    client_threads: usize,
    system_calls: Option<u64>,
}

impl Sums {
    fn add(&mut self, from: &Border, to: &Border) {
        let run = |from: &[ThreadTimes], to: &[ThreadTimes]| -> u64 {
            from.iter().zip(to).map(|(from, to)| to.run_ns.saturating_sub(from.run_ns)).sum()
        };
        self.wall_ns += to.at_ns.saturating_sub(from.at_ns);
        self.server_ns += to.server_ns.saturating_sub(from.server_ns);
        self.client_ns += run(&from.client, &to.client);
        self.between_ns += to.relay_ns.saturating_sub(from.relay_ns)
            + to.softirq_ns.saturating_sub(from.softirq_ns);
        self.server_threads = to.server.len();
        self.client_threads = to.client.len();
        if let (Some(from), Some(to)) = (from.system_calls, to.system_calls) {
            *self.system_calls.get_or_insert_default() += to.saturating_sub(from);
        }
    }

    fn figures(&self, slices: u32, length_ns: u64) -> Option<Figures> {
        if self.transactions == 0 {
            return None;
        }
        let transactions = self.transactions as f64;
        let both_ns = self.server_ns + self.client_ns + self.between_ns;
        let busy =
            |run_ns: u64, threads: usize| run_ns as f64 / (self.wall_ns * threads as u64) as f64;
        Some(Figures {
            // The clients cut by their own clock, so the slices have exactly their length.
            throughput: transactions * 1e9 / (u64::from(slices) * length_ns) as f64,
            server_cpu_us: self.server_ns as f64 / 1e3 / transactions,
            cpu_both_us: Some(both_ns as f64 / 1e3 / transactions),
            system_calls: self.system_calls.map(|calls| calls as f64 / transactions),
            server_busy: busy(self.server_ns, self.server_threads),
            client_busy: busy(self.client_ns, self.client_threads),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::slices::new_latencies;

    #[test]
    fn half_of_the_slices_but_no_more_than_three_must_be_clean() {
        assert_eq!([1, 2, 3, 5, 10].map(least_clean), [1, 1, 2, 3, 3]);
    }

    #[test]
    fn disturbed_slots_and_lossy_networks_accuse_nobody() {
        let slices = |clean, delayed| SliceCounts { clean, delayed, ..SliceCounts::default() };
        assert!(may_accuse(&slices(6, 4), false));
        assert!(!may_accuse(&slices(5, 5), false));
        assert!(!may_accuse(&slices(10, 0), true));
    }

    #[test]
    fn others_are_noticed_by_what_is_not_ours() {
        let ticks = |busy| CpuTicks { busy, steal: 0 };
        // Two CPUs for a second: a tenth of it and a tick for each CPU may be somebody else's.
        let others =
            |busy, ours_ns| is_used_by_others(&ticks(0), &ticks(busy), ours_ns, 1_000_000_000, 2);
        assert!(!others(122, 1_000_000_000) && others(123, 1_000_000_000));
        assert!(!others(0, 0));
    }

    #[test]
    fn merged_histograms_keep_their_counts() {
        let (mut sum, mut slice) = (new_times(), new_latencies());
        for latency_ns in [1_000, 50_000, 50_000, 3_000_000] {
            slice.saturating_record(latency_ns);
        }
        add_latencies(&mut sum, &slice);
        add_latencies(&mut sum, &slice);
        assert_eq!(sum.len(), 8);
        let median = sum.value_at_quantile(0.5);
        assert!((49_000..52_000).contains(&median), "{median}");
    }

    #[test]
    fn figures_divide_by_clean_time_and_transactions() {
        let border = |at_ns, run_ns, system_calls: u64| Border {
            at_ns,
            server: vec![ThreadTimes { run_ns, delay_ns: 0 }],
            server_ns: run_ns,
            client: vec![ThreadTimes { run_ns: system_calls * 250, delay_ns: 0 }; 2],
            relay_ns: run_ns / 5,
            softirq_ns: run_ns / 5,
            system_calls: Some(system_calls),
            ..Border::default()
        };
        let mut sums = Sums::default();
        sums.add(&border(0, 0, 0), &border(1_000_000, 500_000, 400));
        sums.transactions = 100;
        let figures = sums.figures(1, 1_000_000).unwrap();
        assert_eq!((figures.throughput, figures.server_cpu_us), (100_000.0, 5.0));
        assert_eq!(figures.cpu_both_us, Some(5.0 + 2.0 + 1.0 + 1.0));
        assert_eq!((figures.system_calls, figures.server_busy), (Some(4.0), 0.5));
        assert!(Sums::default().figures(1, 1).is_none());
    }
}
