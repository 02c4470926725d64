//! Samples, at the borders of slices, the load of both sides' CPUs and how long their threads
//! waited for them, and finds the slices that other work disturbed. The lateness of a generator is
//! judged by `open/verdict.rs`.
//!
//! Three signs show other work: time that the host took (steal), a thread that owns its CPU and had
//! to wait for it, and CPUs that were busy for longer than the measured processes account for. The
//! first two are found for each slice, the last only over the whole measurement, because /proc/stat
//! counts in ticks of 10 ms.

use serde::{Deserialize, Serialize};

use crate::client::slices::Slicing;
use crate::engine::slices::{Finding, SliceCounts};
use crate::error::Result;
use crate::sys::affinity::wake_promptly;
use crate::sys::clock::now_ns;
use crate::sys::cpu_ticks::{CpuReader, CpuTicks, TICK_NS};
use crate::sys::cpuclock;
use crate::sys::procstat::{ThreadReader, ThreadTimes, softirq_threads};
use crate::sys::signals::Signals;

/// A slice that lost more than this part (1/50) of its time to the host is discarded.
const STOLEN_PART: u64 = 50;
/// A slice in which a thread with a CPU of its own waited for more than this part (1/25) is
/// discarded.
const DELAY_PART: u64 = 25;
/// Shorter waits are caused by the kernel's own work and by the sampling.
const SHORTEST_DELAY_NS: u64 = 400_000;
/// A border sampled later than this does not match the client's clock, by which the slices are cut.
const LATE_NS: u64 = 2_000_000;

/// Largest share of the slices, and of either side's CPU time, that other programs may have.
pub(crate) const TOLERATED: f64 = 0.1;
/// If other programs have a larger share of either side's CPU time over the whole measurement, none
/// of its slices counts: no burst explains that.
const OVERWHELMED: f64 = 0.5;

/// What is known of the client's CPUs and threads.
#[derive(Debug, Clone)]
pub(crate) struct ClientSide {
    pub(crate) cpus: Vec<usize>,
    /// Whether no other program is supposed to run there.
    pub(crate) owned: bool,
    /// Whether threads of this process that are not pinned (the relay of a path) run there as well,
    /// so that waiting for a CPU proves no disturbance.
    pub(crate) roaming: bool,
}

/// The CPUs and threads of a server, as far as they are known.
#[derive(Debug, Clone)]
pub(crate) struct ServerSide {
    pub(crate) cpus: Vec<usize>,
    /// The serving threads; empty if threads come and go.
    pub(crate) threads: Vec<i32>,
    /// Whether each of these threads has a CPU to itself, so that waiting for it proves other work.
    pub(crate) alone: bool,
}

/// One side's counts at a border. CPUs that both sides use count for the client.
#[derive(Debug, Clone, Default)]
pub(crate) struct SideTimes {
    pub(crate) ticks: CpuTicks,
    /// By thread, where the threads are known.
    pub(crate) threads: Vec<ThreadTimes>,
    /// CPU time of the kernel's threads that process packets on these CPUs.
    pub(crate) softirq_ns: u64,
}

impl SideTimes {
    /// Returns the threads' CPU time since `from`.
    pub(crate) fn run_ns(&self, from: &SideTimes) -> u64 {
        let threads = from.threads.iter().zip(&self.threads);
        threads.map(|(from, to)| to.run_ns.saturating_sub(from.run_ns)).sum()
    }
}

/// The CPU time of the programs of both sides so far, as their owner reports it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    /// CPU time of a client that is another process; `None` if the clients are threads of this
    /// process.
    pub(crate) client_ns: Option<u64>,
    /// CPU time of the whole server, all its processes.
    pub(crate) server_ns: u64,
}

/// The counts at the border of two slices.
#[derive(Debug, Clone, Default)]
pub(crate) struct Border {
    pub(crate) at_ns: u64,
    pub(crate) client: SideTimes,
    pub(crate) server: SideTimes,
    pub(crate) used: Used,
    /// CPU time of this process: all its threads.
    pub(crate) own_ns: u64,
}

/// Properties of the two sides that decide which signs count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sides {
    pub(crate) client_cpus: usize,
    /// Whether only the client's threads, and on shared CPUs the server's, are supposed to run
    /// there.
    pub(crate) client_owned: bool,
    /// Whether each of the client's threads has one of these CPUs to itself.
    pub(crate) client_alone: bool,
    /// The number of the server's CPUs that the client does not use; `None` if only the server's
    /// address is known.
    pub(crate) server_cpus: Option<usize>,
    /// Whether each of the server's threads has a CPU to itself.
    pub(crate) server_alone: bool,
    /// Threads of both sides may run on the same CPUs, so both are judged together.
    pub(crate) shared: bool,
}

/// Reads the counts of one side.
struct Reader {
    cpus: CpuReader,
    threads: Vec<ThreadReader>,
    softirq: Vec<ThreadReader>,
}

impl Reader {
    fn new(cpus: &[usize], threads: &[i32]) -> Result<Reader> {
        let threads = threads.iter().filter_map(|&thread| ThreadReader::of_living(thread));
        Ok(Reader {
            cpus: CpuReader::new(cpus)?,
            threads: threads.collect::<Result<_>>()?,
            softirq: softirq_threads(cpus),
        })
    }

    fn read(&mut self) -> SideTimes {
        SideTimes {
            ticks: self.cpus.read(),
            threads: self.threads.iter().map(ThreadReader::read).collect(),
            softirq_ns: self.softirq.iter().map(|thread| thread.read().run_ns).sum(),
        }
    }
}

/// Reads the counts of both sides at borders.
pub(crate) struct Sampler {
    client: Reader,
    server: Option<Reader>,
    sides: Sides,
}

impl Sampler {
    /// Samples the client's threads, and a server if it is visible.
    pub(crate) fn new(
        client: &ClientSide,
        client_threads: &[i32],
        server: Option<&ServerSide>,
    ) -> Result<Sampler> {
        let own_cpus = |side: &ServerSide| -> Vec<usize> {
            side.cpus.iter().copied().filter(|cpu| !client.cpus.contains(cpu)).collect()
        };
        let shares = |side: &ServerSide| own_cpus(side).len() < side.cpus.len();
        let reader = |side: &ServerSide| Reader::new(&own_cpus(side), &side.threads);
        let fits = (1..=client.cpus.len()).contains(&client_threads.len());
        Ok(Sampler {
            client: Reader::new(&client.cpus, client_threads)?,
            server: server.map(reader).transpose()?,
            sides: Sides {
                client_cpus: client.cpus.len(),
                client_owned: client.owned,
                client_alone: client.owned && fits,
                server_cpus: server.map(|side| own_cpus(side).len()),
                server_alone: server.is_some_and(|side| side.alone && !side.threads.is_empty()),
                shared: client.roaming || server.is_some_and(shares),
            },
        })
    }

    pub(crate) fn sides(&self) -> Sides {
        self.sides
    }

    /// Reads all counts at every border of the slices, the first of which begins at `start_ns`;
    /// `used` reports the CPU time of both sides.
    pub(crate) fn watch(
        &mut self,
        signals: &Signals,
        start_ns: u64,
        slicing: Slicing,
        used: impl Fn() -> Used,
    ) -> Result<Vec<Border>> {
        let mut borders = Vec::with_capacity(slicing.count + 1);
        self.watch_into(&mut borders, signals, start_ns, slicing, used).map(|()| borders)
    }

    /// Does the same, so that an interrupted caller has the borders until then.
    pub(crate) fn watch_into(
        &mut self,
        borders: &mut Vec<Border>,
        signals: &Signals,
        start_ns: u64,
        slicing: Slicing,
        used: impl Fn() -> Used,
    ) -> Result<()> {
        let _prompt = wake_promptly();
        for border in 0..=slicing.count as u64 {
            signals.sleep_until(start_ns + border * slicing.length_ns)?;
            borders.push(self.border(used()));
        }
        Ok(())
    }

    /// Reads all counts.
    pub(crate) fn border(&mut self, used: Used) -> Border {
        Border {
            at_ns: now_ns(),
            client: self.client.read(),
            server: self.server.as_mut().map(Reader::read).unwrap_or_default(),
            used,
            own_ns: cpuclock::process_ns(std::process::id()).unwrap_or(0),
        }
    }
}

impl SliceCounts {
    /// Returns the finding of a run without slices, which counts as much as `slices`.
    pub(crate) fn of_whole(borders: &[Border; 2], sides: Sides, slices: u32) -> SliceCounts {
        let mut counts = SliceCounts::default();
        let finding = findings(borders, sides, None).first().copied().unwrap_or(Finding::Late);
        (0..slices).for_each(|_| counts.count(finding));
        counts
    }
}

/// Returns the finding of each slice between two borders. `due` has the planned time of the first
/// border and the length of a slice, which show late borders; without it none is late.
///
/// Other programs may use CPUs without delaying any measured thread. Only the whole measurement,
/// without the slices that are disturbed anyway, shows that; then all slices are disturbed. So they
/// are if other programs had most of the CPUs' time, whatever the slices between look like.
pub(crate) fn findings(
    borders: &[Border],
    sides: Sides,
    due: Option<(u64, Slicing)>,
) -> Vec<Finding> {
    let mut findings = of_slices(borders, sides);
    let numbers: Vec<usize> = (0..findings.len()).collect();
    let kind = |number: &usize| findings[*number];
    let runs = numbers.chunk_by(|one, next| kind(one) == kind(next));
    let clean = runs.filter(|run| kind(&run[0]) == Finding::Clean);
    let clean: Vec<&[Border]> = clean.map(|run| &borders[run[0]..run[0] + run.len() + 1]).collect();
    let exceeds = |stretches: &[&[Border]], part: f64| {
        foreign_parts(stretches, sides).into_iter().flatten().any(|foreign| foreign > part)
    };
    let foreign = exceeds(&clean, TOLERATED) || exceeds(&[borders], OVERWHELMED);
    for ((number, pair), finding) in borders.windows(2).enumerate().zip(&mut findings) {
        *finding = match *finding {
            Finding::Clean if foreign => Finding::Delayed,
            Finding::Clean if is_late(number, pair, due) => Finding::Late,
            finding => finding,
        };
    }
    findings
}

/// Returns what each slice by itself shows, and that it was part of a wait that a later one shows:
/// the kernel accounts for a wait when it ends.
fn of_slices(borders: &[Border], sides: Sides) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        borders.windows(2).map(|pair| of_slice(&pair[0], &pair[1], sides)).collect();
    let mut wait_ns = 0;
    for (pair, finding) in borders.windows(2).zip(&mut findings).rev() {
        if wait_ns > 0 && *finding == Finding::Clean {
            *finding = Finding::Delayed;
        }
        let length_ns = pair[1].at_ns.saturating_sub(pair[0].at_ns);
        wait_ns = wait_ns.max(longest_wait_ns(&pair[0], &pair[1], sides)).saturating_sub(length_ns);
    }
    findings
}

fn of_slice(from: &Border, to: &Border, sides: Sides) -> Finding {
    let length_ns = to.at_ns.saturating_sub(from.at_ns);
    let steal = |from: &SideTimes, to: &SideTimes| to.ticks.steal.saturating_sub(from.ticks.steal);
    let stolen = steal(&from.client, &to.client).max(steal(&from.server, &to.server)) * TICK_NS;
    if stolen > length_ns / STOLEN_PART {
        return Finding::Stolen;
    }
    let [_, roaming_ns] = own_use(from, to);
    let limit_ns = (length_ns / DELAY_PART).max(SHORTEST_DELAY_NS) + roaming_ns;
    match longest_wait_ns(from, to, sides) > limit_ns {
        true => Finding::Delayed,
        false => Finding::Clean,
    }
}

fn is_late(number: usize, borders: &[Border], due: Option<(u64, Slicing)>) -> bool {
    due.is_some_and(|(start_ns, slicing)| {
        let due_ns = |number: usize| start_ns + number as u64 * slicing.length_ns;
        let late =
            |(place, border): (usize, &Border)| border.at_ns > due_ns(number + place) + LATE_NS;
        borders.iter().enumerate().any(late)
    })
}

/// Returns that other programs' work was not judged, where a server on this machine may use the
/// clients' CPUs, with how long the clients' threads waited for a CPU.
pub(crate) fn unjudged(client: &ClientSide, borders: &[Border]) -> Option<String> {
    let (first, last) = (borders.first()?, borders.last()?);
    let threads = first.client.threads.iter().zip(&last.client.threads);
    let waited_ns: u64 = threads.map(|(from, to)| to.delay_ns.saturating_sub(from.delay_ns)).sum();
    let all_ns = wall_ns(borders) * last.client.threads.len() as u64;
    (!client.owned).then(|| {
        format!(
            "whether other programs disturbed this was not judged, because the server may use the \
             same CPUs; the clients' threads waited for a CPU {:.0} % of the time; name \
             --client-cpus to have it judged",
            100.0 * waited_ns as f64 / all_ns.max(1) as f64
        )
    })
}

/// What disturbed a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Disturbance {
    /// Slices of time, and those in which the host took time, or else a thread that owns its CPU
    /// waited for it.
    pub(crate) slices: u32,
    pub(crate) stolen: u32,
    pub(crate) delayed: u32,
    /// Parts of the sides' CPU time that other programs used, 0 to 1; null where it is not known
    /// what else may run there.
    pub(crate) client_foreign: Option<f64>,
    pub(crate) server_foreign: Option<f64>,
}

impl Disturbance {
    /// Merges the disturbance that another host saw in the same run: adds its slices, and keeps the
    /// worse of both shares.
    pub(crate) fn add(&mut self, other: &Disturbance) {
        self.slices += other.slices;
        self.stolen += other.stolen;
        self.delayed += other.delayed;
        for (worse, other) in [
            (&mut self.client_foreign, other.client_foreign),
            (&mut self.server_foreign, other.server_foreign),
        ] {
            *worse = [*worse, other].into_iter().flatten().reduce(f64::max);
        }
    }

    /// Returns the slices by finding: all are disturbed if other programs used the CPUs.
    pub(crate) fn counts(&self) -> SliceCounts {
        let Disturbance { slices, stolen, delayed, client_foreign, server_foreign } = *self;
        let parts = [client_foreign, server_foreign];
        let foreign = parts.into_iter().flatten().any(|part| part > TOLERATED);
        let delayed = if foreign { slices - stolen } else { delayed };
        SliceCounts { clean: slices - stolen - delayed, stolen, delayed, late: 0 }
    }

    /// Returns the reasons why figures with this disturbance are not valid; empty if they are. At
    /// most the share `tolerated` of slices and of CPU time may be disturbed.
    pub(crate) fn reasons(&self, tolerated: f64) -> Vec<String> {
        let mut reasons = Vec::new();
        let Disturbance { slices, stolen, delayed, .. } = *self;
        if f64::from(stolen + delayed) > tolerated * f64::from(slices) {
            reasons.push(format!(
                "other work disturbed {} of {slices} slices of the measured time (the host took \
                 time in {stolen}, and a thread waited for its CPU in {delayed}); stop other \
                 programs or name other CPUs",
                stolen + delayed
            ));
        }
        for (side, foreign) in [("client", self.client_foreign), ("server", self.server_foreign)] {
            if let Some(foreign) = foreign.filter(|foreign| *foreign > tolerated) {
                reasons.push(format!(
                    "other programs used {:.0} % of the {side}'s CPUs; stop them or name other \
                     CPUs",
                    100.0 * foreign
                ));
            }
        }
        reasons
    }
}

/// Returns the disturbance of a measurement, from its borders in order of time.
pub(crate) fn disturbance(borders: &[Border], sides: Sides) -> Disturbance {
    let mut sum = Disturbance::default();
    for finding in of_slices(borders, sides) {
        sum.slices += 1;
        match finding {
            Finding::Stolen => sum.stolen += 1,
            Finding::Delayed => sum.delayed += 1,
            Finding::Clean | Finding::Late => {}
        }
    }
    [sum.client_foreign, sum.server_foreign] = foreign_parts(&[borders], sides);
    sum
}

/// Returns the longest time that a thread with a CPU of its own waited for it, as far as the wait
/// ended between these borders, not counting the kernel's work on packets.
fn longest_wait_ns(from: &Border, to: &Border, sides: Sides) -> u64 {
    let of_side = |alone: bool, from: &SideTimes, to: &SideTimes| {
        let softirq_ns = to.softirq_ns.saturating_sub(from.softirq_ns);
        let threads = from.threads.iter().zip(&to.threads).filter(|_| alone && !sides.shared);
        let waits = threads.map(|(from, to)| to.delay_ns.saturating_sub(from.delay_ns));
        waits.max().unwrap_or(0).saturating_sub(softirq_ns)
    };
    let client_ns = of_side(sides.client_alone, &from.client, &to.client);
    client_ns.max(of_side(sides.server_alone, &from.server, &to.server))
}

/// Returns the CPU time of the client, and that of this process's other threads, which are not
/// pinned.
fn own_use(from: &Border, to: &Border) -> [u64; 2] {
    let own_ns = to.own_ns.saturating_sub(from.own_ns);
    match from.used.client_ns.zip(to.used.client_ns) {
        Some((from_ns, to_ns)) => [to_ns.saturating_sub(from_ns), own_ns],
        None => {
            let client_ns = to.client.run_ns(&from.client);
            [client_ns, own_ns.saturating_sub(client_ns)]
        }
    }
}

/// Returns the shares of the client's and of the server's CPUs that other programs used over some
/// stretches of time; `None` if it is not known what may run there.
fn foreign_parts(stretches: &[&[Border]], sides: Sides) -> [Option<f64>; 2] {
    let mut sums = [CpuUse::default(); 2];
    for stretch in stretches {
        let (Some(from), Some(to)) = (stretch.first(), stretch.last()) else { continue };
        let used = uses(from, to, sides);
        sums.iter_mut().zip(used).for_each(|(sum, used)| *sum = sum.with(used));
    }
    let [client, server] = sums.map(CpuUse::foreign_part);
    [sides.client_owned.then_some(client), sides.server_cpus.map(|_| server)]
}

/// Returns the use of each side's CPUs; the same for both if they are shared.
fn uses(from: &Border, to: &Border, sides: Sides) -> [CpuUse; 2] {
    let wall_ns = to.at_ns.saturating_sub(from.at_ns);
    let [client_ns, roaming_ns] = own_use(from, to);
    let server_ns = to.used.server_ns.saturating_sub(from.used.server_ns);
    let side = |cpus: usize, from: &SideTimes, to: &SideTimes, used_ns: u64| CpuUse {
        available_ns: wall_ns * cpus as u64,
        busy_ns: to.ticks.busy.saturating_sub(from.ticks.busy) * TICK_NS,
        // Each CPU's count may be wrong by a tick at either end.
        ours_ns: used_ns + to.softirq_ns.saturating_sub(from.softirq_ns) + cpus as u64 * TICK_NS,
    };
    let roaming = CpuUse { ours_ns: roaming_ns, ..CpuUse::default() };
    let client = side(sides.client_cpus, &from.client, &to.client, client_ns);
    let server = side(sides.server_cpus.unwrap_or(0), &from.server, &to.server, server_ns);
    match sides.shared {
        true => [client.with(server).with(roaming); 2],
        false => [client.with(roaming), server.with(roaming)],
    }
}

/// How CPUs were used.
#[derive(Clone, Copy, Default)]
struct CpuUse {
    available_ns: u64,
    busy_ns: u64,
    ours_ns: u64,
}

impl CpuUse {
    fn with(self, other: CpuUse) -> CpuUse {
        CpuUse {
            available_ns: self.available_ns + other.available_ns,
            busy_ns: self.busy_ns + other.busy_ns,
            ours_ns: self.ours_ns + other.ours_ns,
        }
    }

    fn foreign_part(self) -> f64 {
        self.busy_ns.saturating_sub(self.ours_ns) as f64 / self.available_ns.max(1) as f64
    }
}

/// Returns the time from the first border to the last.
pub(crate) fn wall_ns(borders: &[Border]) -> u64 {
    let (Some(first), Some(last)) = (borders.first(), borders.last()) else { return 0 };
    last.at_ns.saturating_sub(first.at_ns)
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
