//! One slot: a server under load for a quarter of a second, cut into slices, with the disturbed
//! ones thrown away.

use crate::client::ClientGroup;
use crate::client::slices::{Latencies, Slicing, Tally, describe_stalled};
use crate::compare::outcome::{Accounts, Figures, SlotOutcome};
use crate::compare::plan::{Placement, WARM_UP_NS};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::figures::{self, Times, new_times};
use crate::server::process::ServerProcess;
use crate::server::shared::Counters;
use crate::sys::affinity::{thread_id, wake_promptly};
use crate::sys::clock::now_ns;
use crate::sys::procstat::{CpuReader, CpuTicks, TICK_NS, ThreadReader, ThreadTimes};
use crate::sys::signals::Signals;
use crate::sys::socket::RawAddress;

/// Longest wait during warm-up for one more connection's first transaction.
const WARM_UP_PATIENCE_NS: u64 = 1_000_000_000;
/// Between the decision to measure and the first slice, so that every client thread hears of it.
pub(crate) const LEAD_NS: u64 = 15_000_000;
/// A border sampled later than this does not fit the clients' own clock.
const LATE_NS: u64 = 2_000_000;
/// A thread with a CPU of its own that had to wait for it longer than this part of a slice (1/25)
/// was disturbed by somebody else.
const DELAY_PART: u64 = 25;
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
    client: Vec<ThreadTimes>,
    /// CPU time of this very thread, ours as well.
    coordinator_ns: u64,
    system_calls: u64,
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
    connections: usize,
    exchange: Exchange,
}

impl<'a> SlotRunner<'a> {
    pub(crate) fn new(
        clients: &'a ClientGroup,
        signals: &'a Signals,
        placement: &'a Placement,
        slicing: Slicing,
        (connections, exchange): (usize, Exchange),
    ) -> Result<Self> {
        let own = std::process::id();
        Ok(SlotRunner {
            clients,
            signals,
            placement,
            slicing,
            cpus: CpuReader::new(&placement.cpus())?,
            client_side: Side::new(own, &clients.thread_ids())?,
            coordinator: ThreadReader::new(own, thread_id())?,
            connections,
            exchange,
        })
    }

    /// Loads the server for one slot.
    pub(crate) fn run(&mut self, server: &mut ServerProcess) -> Result<SlotOutcome> {
        if let Some(status) = server.ended() {
            return Ok(SlotOutcome::failed(format!("the server process ended ({status})")));
        }
        let before = server.counters();
        let server_side = if server.works_in_its_threads() {
            Some(Side::new(server.id(), server.thread_ids())?)
        } else {
            None
        };
        self.clients.begin_slot(RawAddress::new(server.address()));
        warm_up(self.clients, self.signals)?;
        let prompt = wake_promptly();
        let start_ns = now_ns() + LEAD_NS;
        self.clients.measure_from(start_ns);
        let mut borders = Vec::with_capacity(self.slicing.count + 1);
        for border in 0..=self.slicing.count as u64 {
            self.signals.sleep_until(start_ns + border * self.slicing.length_ns)?;
            borders.push(self.sample(server, server_side.as_ref()));
        }
        drop(prompt);
        let tallies = self.clients.finish_slot()?;
        let mut problems = Vec::new();
        if !server.drain(self.signals)? {
            problems.push(match server.ended() {
                Some(status) => format!("the server process ended ({status})"),
                None => "the server kept connections that the clients had closed".to_owned(),
            });
        }
        let mut outcome = self.evaluate(start_ns, &borders, &tallies)?;
        let stalled = tallies.iter().map(|tally| tally.stalled).sum();
        // In a disturbed slot it is more likely that somebody else had the CPU.
        if stalled > 0 && outcome.slices.clean > outcome.slices.discarded() {
            problems.push(describe_stalled(stalled));
        }
        outcome.accounts = accounts(&tallies, &server.counters().since(&before));
        if outcome.faults.total() == 0 {
            problems.extend(outcome.accounts.imbalances(self.exchange, self.connections));
        }
        outcome.problems = problems;
        Ok(outcome)
    }

    fn sample(&mut self, server: &ServerProcess, server_side: Option<&Side>) -> Border {
        let mut border = Border { at_ns: now_ns(), ..Border::default() };
        border.system_calls = server.counters().system_calls;
        match server_side {
            Some(side) => side.read(&mut border.server),
            None => border.server = whole_server(server),
        }
        self.client_side.read(&mut border.client);
        border.ticks = self.cpus.read();
        border.coordinator_ns = self.coordinator.read().run_ns;
        border
    }

    fn evaluate(
        &self,
        start_ns: u64,
        borders: &[Border],
        tallies: &[Tally],
    ) -> Result<SlotOutcome> {
        let mut outcome = SlotOutcome::default();
        let mut latencies = new_times();
        for tally in tallies {
            outcome.faults.add(&tally.faults);
        }
        let foreign = self.placement.is_shared() && self.used_by_others(borders);
        let (mut sums, mut all) = (Sums::default(), Sums::default());
        for (index, pair) in borders.windows(2).enumerate() {
            let due_ns = start_ns + index as u64 * self.slicing.length_ns;
            let (from, to) = (&pair[0], &pair[1]);
            let late = from.at_ns > due_ns + LATE_NS
                || to.at_ns > due_ns + self.slicing.length_ns + LATE_NS;
            if to.ticks.steal != from.ticks.steal {
                outcome.slices.stolen += 1;
            } else if foreign || (!self.placement.is_shared() && self.was_delayed(from, to)) {
                outcome.slices.delayed += 1;
            } else if late {
                outcome.slices.late += 1;
            } else {
                outcome.slices.clean += 1;
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
            latencies = new_times();
            for slice in tallies.iter().flat_map(|tally| &tally.slices[..slices]) {
                add_latencies(&mut latencies, &slice.latencies);
            }
        }
        outcome.latencies = figures::encode(&latencies)?;
        Ok(outcome)
    }

    /// A thread that owns its CPU waited for it.
    fn was_delayed(&self, from: &Border, to: &Border) -> bool {
        let limit_ns = self.slicing.length_ns / DELAY_PART;
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
        let ours_ns = ours.server_ns
            + ours.client_ns
            + last.coordinator_ns.saturating_sub(first.coordinator_ns);
        let busy_ns = last.ticks.busy.saturating_sub(first.ticks.busy) * TICK_NS;
        let wall_ns = last.at_ns.saturating_sub(first.at_ns) * self.placement.cpus().len() as u64;
        // Each CPU's count may be off by a tick at either end.
        let slack_ns = wall_ns / FOREIGN_PART + self.placement.cpus().len() as u64 * TICK_NS;
        busy_ns > ours_ns + slack_ns
    }
}

/// The times of a server whose connections have threads or processes of their own, for as many
/// threads as it has CPUs. Those wait for each other, so that delays tell nothing about others.
fn whole_server(server: &ServerProcess) -> Vec<ThreadTimes> {
    let mut times = vec![ThreadTimes::default(); server.thread_ids().len()];
    if let Some(first) = times.first_mut() {
        first.run_ns = server.cpu_time_ns();
    }
    times
}

/// Waits for the least warm-up and until every connection has completed a transaction, or none has
/// for a while: what stalls beyond that is found out by measuring.
pub(crate) fn warm_up(clients: &ClientGroup, signals: &Signals) -> Result<()> {
    let mut progress_ns = now_ns();
    signals.sleep_until(progress_ns + WARM_UP_NS - LEAD_NS)?;
    let mut cold = clients.cold();
    while cold > 0 && now_ns() < progress_ns + WARM_UP_PATIENCE_NS {
        signals.sleep_ms(5)?;
        let still_cold = clients.cold();
        if still_cold < cold {
            (cold, progress_ns) = (still_cold, now_ns());
        }
    }
    Ok(())
}

/// Fewer clean slices say nothing about a slot.
fn least_clean(slices: usize) -> usize {
    slices.div_ceil(2).min(3)
}

fn accounts(tallies: &[Tally], server: &Counters) -> Accounts {
    let mut accounts = Accounts {
        server_accepted: server.accepted,
        server_closed: server.closed,
        server_bytes_received: server.bytes_received,
        server_bytes_sent: server.bytes_sent,
        server_errors: server.errors,
        ..Accounts::default()
    };
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
    server_threads: usize,
    client_threads: usize,
    system_calls: u64,
}

impl Sums {
    fn add(&mut self, from: &Border, to: &Border) {
        let run = |from: &[ThreadTimes], to: &[ThreadTimes]| -> u64 {
            from.iter().zip(to).map(|(from, to)| to.run_ns.saturating_sub(from.run_ns)).sum()
        };
        self.wall_ns += to.at_ns.saturating_sub(from.at_ns);
        self.server_ns += run(&from.server, &to.server);
        self.client_ns += run(&from.client, &to.client);
        self.server_threads = to.server.len();
        self.client_threads = to.client.len();
        self.system_calls += to.system_calls.saturating_sub(from.system_calls);
    }

    fn figures(&self, slices: u32, length_ns: u64) -> Option<Figures> {
        if self.transactions == 0 {
            return None;
        }
        let transactions = self.transactions as f64;
        let busy =
            |run_ns: u64, threads: usize| run_ns as f64 / (self.wall_ns * threads as u64) as f64;
        Some(Figures {
            // The clients cut by their own clock, so the slices have exactly their length.
            throughput: transactions * 1e9 / (u64::from(slices) * length_ns) as f64,
            server_cpu_us: self.server_ns as f64 / 1e3 / transactions,
            system_calls: self.system_calls as f64 / transactions,
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
        let border = |at_ns, run_ns, system_calls| Border {
            at_ns,
            server: vec![ThreadTimes { run_ns, delay_ns: 0 }],
            client: vec![ThreadTimes { run_ns: 0, delay_ns: 0 }; 2],
            system_calls,
            ..Border::default()
        };
        let mut sums = Sums::default();
        sums.add(&border(0, 0, 0), &border(1_000_000, 500_000, 400));
        sums.transactions = 100;
        let figures = sums.figures(1, 1_000_000).unwrap();
        assert_eq!((figures.throughput, figures.server_cpu_us), (100_000.0, 5.0));
        assert_eq!((figures.system_calls, figures.server_busy), (4.0, 0.5));
        assert!(Sums::default().figures(1, 1).is_none());
    }
}
