//! Whether other work disturbed a measurement: reads what the CPUs of both sides were busy with and
//! how long their threads waited for them, and judges that. The generator's own lateness is judged
//! elsewhere (`open/verdict.rs`).
//!
//! Three signs, as in `compare`: time that the host took (steal), a thread that owns its CPU and
//! yet had to wait for it, and CPUs that were busy with more than what is known to be ours. The
//! first two are seen in each slice of time; the last only over the whole, because /proc/stat
//! counts in ticks of 10 ms.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::server::running::Running;
use crate::sys::clock::now_ns;
use crate::sys::cpuclock;
use crate::sys::procstat::{
    CpuReader, CpuTicks, TICK_NS, ThreadReader, ThreadTimes, softirq_threads,
};

/// A thread with a CPU of its own that waited for it longer than this part (1/25) of a slice was
/// disturbed.
const DELAY_PART: u64 = 25;
/// Shorter waits are the kernel's own work and the reading of these figures.
const SHORTEST_DELAY_NS: u64 = 1_000_000;

/// At most this part of the slices, and of either side's CPU time, may be others'.
pub(crate) const TOLERATED: f64 = 0.1;

/// What is known of the client's CPUs.
#[derive(Debug, Clone)]
pub(crate) struct ClientSide {
    pub(crate) cpus: Vec<usize>,
    /// Whether nothing else is meant to run there.
    pub(crate) owned: bool,
    /// Threads of ours without a place (the relay of a path) take their time wherever there is
    /// some, so that waiting for a CPU tells nothing of others.
    pub(crate) roaming: bool,
}

/// Where a server runs, as far as that is known.
#[derive(Debug, Clone)]
pub(crate) struct ServerSide {
    pub(crate) cpus: Vec<usize>,
    /// The threads that serve; none where they come and go.
    pub(crate) threads: Vec<i32>,
    /// Whether each of these threads has a CPU to itself, so that waiting for it tells of others.
    pub(crate) alone: bool,
}

impl ServerSide {
    pub(crate) fn of(server: &Running, cpus: &[usize]) -> ServerSide {
        let threads = server.thread_ids().map(<[i32]>::to_vec).unwrap_or_default();
        let alone = server.has_cpus_to_itself() && !threads.is_empty();
        ServerSide { cpus: cpus.to_vec(), threads, alone }
    }
}

/// One side's counts at a border.
#[derive(Debug, Clone, Default)]
pub(crate) struct SideTimes {
    pub(crate) ticks: CpuTicks,
    /// The threads that own their CPUs, or all of the client.
    pub(crate) threads: Vec<ThreadTimes>,
    /// CPU time of the kernel's threads that finish the network's work on these CPUs.
    pub(crate) softirq_ns: u64,
}

/// The counts at the border of two slices.
#[derive(Debug, Clone, Default)]
pub(crate) struct Border {
    pub(crate) at_ns: u64,
    pub(crate) client: SideTimes,
    pub(crate) server: SideTimes,
    /// CPU time of the whole server, whatever it consists of.
    pub(crate) server_ns: u64,
    /// CPU time of this process: the client's threads and all others.
    pub(crate) own_ns: u64,
}

/// What the verdict has to know of the two sides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sides {
    pub(crate) client_cpus: usize,
    /// Whether nothing but the client's threads, and on shared CPUs the server's, is to run there.
    pub(crate) client_owned: bool,
    /// Whether each of the client's threads has one of them to itself.
    pub(crate) client_alone: bool,
    /// None where the server is only known by its address.
    pub(crate) server_cpus: usize,
    /// Whether each of the server's threads has a CPU to itself.
    pub(crate) server_alone: bool,
    /// Threads of both sides may run on the same CPUs.
    pub(crate) shared: bool,
}

/// Reads one side.
struct Reader {
    cpus: CpuReader,
    threads: Vec<ThreadReader>,
    softirq: Vec<ThreadReader>,
}

impl Reader {
    fn new(cpus: &[usize], threads: &[i32]) -> Result<Reader> {
        // The kernel finds a thread of any process by its number alone.
        let threads = threads.iter().map(|&thread| ThreadReader::new(thread as u32, thread));
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

/// Reads borders.
pub(crate) struct Observer {
    client: Reader,
    server: Option<Reader>,
    sides: Sides,
}

impl Observer {
    /// For the client's threads, and a server if it can be seen.
    pub(crate) fn new(
        client: &ClientSide,
        client_threads: &[i32],
        server: Option<&ServerSide>,
    ) -> Result<Observer> {
        let reader = |side: &ServerSide| Reader::new(&side.cpus, &side.threads);
        let shares = |side: &ServerSide| side.cpus.iter().any(|cpu| client.cpus.contains(cpu));
        Ok(Observer {
            client: Reader::new(&client.cpus, client_threads)?,
            server: server.map(reader).transpose()?,
            sides: Sides {
                client_cpus: client.cpus.len(),
                client_owned: client.owned,
                client_alone: client.owned && client_threads.len() <= client.cpus.len(),
                server_cpus: server.map_or(0, |side| side.cpus.len()),
                server_alone: server.is_some_and(|side| side.alone),
                shared: client.roaming || server.is_some_and(shares),
            },
        })
    }

    pub(crate) fn sides(&self) -> Sides {
        self.sides
    }

    /// Reads everything; the server's CPU time comes from whoever knows it.
    pub(crate) fn border(&mut self, server_ns: u64) -> Border {
        Border {
            at_ns: now_ns(),
            client: self.client.read(),
            server: self.server.as_mut().map(Reader::read).unwrap_or_default(),
            server_ns,
            own_ns: cpuclock::process_ns(std::process::id()).unwrap_or(0),
        }
    }
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
    /// Adds what another host saw in the same run: its slices, and the worse of both parts.
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

    /// Why figures with so much disturbance are not to be believed; nothing if they are. At most
    /// the part `tolerated` of slices and of CPU time may be others'.
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

/// Judges a measurement by its borders, first to last.
pub(crate) fn disturbance(borders: &[Border], sides: Sides) -> Disturbance {
    let mut sum = Disturbance::default();
    for pair in borders.windows(2) {
        let (from, to) = (&pair[0], &pair[1]);
        let length_ns = to.at_ns.saturating_sub(from.at_ns);
        let stolen = |from: &SideTimes, to: &SideTimes| to.ticks.steal > from.ticks.steal;
        sum.slices += 1;
        if stolen(&from.client, &to.client) || stolen(&from.server, &to.server) {
            sum.stolen += 1;
        } else if !sides.shared
            && (sides.client_alone && was_delayed(&from.client, &to.client, length_ns)
                || sides.server_alone && was_delayed(&from.server, &to.server, length_ns))
        {
            sum.delayed += 1;
        }
    }
    if let (Some(first), Some(last)) = (borders.first(), borders.last()) {
        let of = |owned: bool, cpus: usize, used: fn(&Border, &Border, bool) -> (u64, u64)| {
            let (busy_ns, ours_ns) = used(first, last, sides.shared);
            let wall_ns = last.at_ns.saturating_sub(first.at_ns);
            owned.then(|| foreign_part(busy_ns, ours_ns, wall_ns, cpus))
        };
        sum.client_foreign = of(sides.client_owned, sides.client_cpus, client_use);
        sum.server_foreign = of(sides.server_cpus > 0, sides.server_cpus, server_use);
    }
    sum
}

/// A thread waited for its CPU, and not for the kernel's work on its own packets.
fn was_delayed(from: &SideTimes, to: &SideTimes, length_ns: u64) -> bool {
    let softirq_ns = to.softirq_ns.saturating_sub(from.softirq_ns);
    let limit_ns = (length_ns / DELAY_PART).max(SHORTEST_DELAY_NS) + softirq_ns;
    let mut threads = from.threads.iter().zip(&to.threads);
    threads.any(|(from, to)| to.delay_ns.saturating_sub(from.delay_ns) > limit_ns)
}

/// What the client's CPUs were busy with, and what of it may have been ours.
fn client_use(from: &Border, to: &Border, shared: bool) -> (u64, u64) {
    let own_ns = to.own_ns.saturating_sub(from.own_ns);
    let server_ns = if shared { to.server_ns.saturating_sub(from.server_ns) } else { 0 };
    let (busy_ns, softirq_ns) = side_use(&from.client, &to.client);
    (busy_ns, own_ns + server_ns + softirq_ns)
}

/// The same of the server's CPUs, where threads of ours without a place may run as well.
fn server_use(from: &Border, to: &Border, shared: bool) -> (u64, u64) {
    let run_ns =
        |side: &SideTimes| -> u64 { side.threads.iter().map(|thread| thread.run_ns).sum() };
    let own_ns = to.own_ns.saturating_sub(from.own_ns);
    let client_ns = run_ns(&to.client).saturating_sub(run_ns(&from.client));
    let elsewhere_ns = if shared { 0 } else { client_ns };
    let server_ns = to.server_ns.saturating_sub(from.server_ns);
    let (busy_ns, softirq_ns) = side_use(&from.server, &to.server);
    (busy_ns, server_ns + own_ns.saturating_sub(elsewhere_ns) + softirq_ns)
}

fn side_use(from: &SideTimes, to: &SideTimes) -> (u64, u64) {
    let busy = to.ticks.busy.saturating_sub(from.ticks.busy);
    (busy * TICK_NS, to.softirq_ns.saturating_sub(from.softirq_ns))
}

/// The part of the CPUs' time that was not ours. Each CPU's count may be off by a tick at either
/// end.
fn foreign_part(busy_ns: u64, ours_ns: u64, wall_ns: u64, cpus: usize) -> f64 {
    let slack_ns = cpus as u64 * TICK_NS;
    let foreign_ns = busy_ns.saturating_sub(ours_ns + slack_ns);
    foreign_ns as f64 / (wall_ns * cpus as u64).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const SIDES: Sides = Sides {
        client_cpus: 1,
        client_owned: true,
        client_alone: true,
        server_cpus: 1,
        server_alone: true,
        shared: false,
    };

    /// Tenths of a second; the client is always busy and the server a third of the time.
    fn borders(change: impl Fn(u64, &mut Border)) -> Vec<Border> {
        let border = |number: u64| {
            let at_ns = number * SECOND / 10;
            let side = |run_ns: u64| SideTimes {
                ticks: CpuTicks { busy: run_ns / TICK_NS, steal: 0 },
                threads: vec![ThreadTimes { run_ns, delay_ns: 0 }],
                softirq_ns: 0,
            };
            let mut border = Border {
                at_ns,
                client: side(at_ns),
                server: side(at_ns / 3),
                server_ns: at_ns / 3,
                own_ns: at_ns,
            };
            change(number, &mut border);
            border
        };
        (0..=10).map(border).collect()
    }

    fn judged(sides: Sides, change: impl Fn(u64, &mut Border)) -> (Disturbance, String) {
        let disturbance = disturbance(&borders(change), sides);
        (disturbance, disturbance.reasons(0.1).join("; "))
    }

    #[test]
    fn a_quiet_machine_disturbs_nothing() {
        let (found, reasons) = judged(SIDES, |_, _| ());
        assert_eq!((found.slices, found.stolen, found.delayed, reasons.as_str()), (10, 0, 0, ""));
        assert_eq!((found.client_foreign, found.server_foreign), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn a_spinner_on_either_side_is_seen() {
        // It takes half of the client's CPU, and what the server leaves of its own.
        let (found, reasons) = judged(SIDES, |_, border| {
            border.own_ns /= 2;
            border.client.threads[0].run_ns /= 2;
        });
        assert!(found.client_foreign > Some(0.4), "{found:?}");
        assert!(reasons.contains("49 % of the client's CPUs"), "{reasons}");
        let (found, reasons) = judged(SIDES, |_, border| {
            border.server.ticks.busy = border.at_ns / TICK_NS;
        });
        assert!(found.server_foreign > Some(0.6) && found.client_foreign == Some(0.0), "{found:?}");
        assert!(reasons.contains("of the server's CPUs"), "{reasons}");
    }

    #[test]
    fn waiting_counts_where_a_thread_owns_its_cpu() {
        let wait = |number: u64, border: &mut Border| {
            border.server.threads[0].delay_ns = number * 5_000_000;
        };
        let (found, reasons) = judged(SIDES, wait);
        assert_eq!(found.delayed, 10);
        assert!(reasons.contains("10 of 10 slices"), "{reasons}");
        for sides in [Sides { server_alone: false, ..SIDES }, Sides { shared: true, ..SIDES }] {
            assert_eq!(judged(sides, wait).0.delayed, 0);
        }
        let (found, _) = judged(SIDES, |number, border| {
            wait(number, border);
            border.server.softirq_ns = number * 2_000_000;
        });
        assert_eq!(found.delayed, 0, "the kernel worked on the server's packets");
    }

    #[test]
    fn stolen_time_is_told_and_one_slice_in_ten_is_tolerated() {
        let steal = |from: u64| {
            move |number: u64, border: &mut Border| {
                border.client.ticks.steal = number.saturating_sub(from);
            }
        };
        let (found, reasons) = judged(SIDES, steal(9));
        assert_eq!((found.stolen, reasons.as_str()), (1, ""));
        assert!(judged(SIDES, steal(8)).1.contains("the host took time in 2"));
    }

    #[test]
    fn what_may_run_on_unknown_cpus_is_not_judged() {
        let client = Sides { client_owned: false, client_alone: false, ..SIDES };
        let sides = Sides { server_cpus: 0, server_alone: false, ..client };
        let (found, reasons) = judged(sides, |number, border| {
            border.own_ns = 0;
            border.client.threads[0].delay_ns = number * SECOND;
        });
        assert_eq!((found.client_foreign, found.server_foreign), (None, None));
        assert_eq!(reasons, "");
    }
}
