//! The open loop: sends requests at scheduled times, whatever the server does, and accounts for
//! every one (Kawai and Yamaguchi, section 4.1).
//!
//! A generator is a send thread and a receive thread that share only the queues of requests in
//! flight (`inflight`). The schedule (`phases`, `arrivals`) is drawn from a seed; every reply is
//! checked (`dialogue`); both threads have records of their own (`record`). `verdict` decides
//! whether the figures are valid, and `disturbance` whether other work affected them.

pub(crate) mod arrivals;
mod churn;
pub(crate) mod connect;
mod dialogue;
pub(crate) mod gauge;
mod inflight;
pub(crate) mod log;
pub(crate) mod outcome;
pub(crate) mod phases;
mod receiver;
pub(crate) mod record;
mod reopen;
mod sender;
mod summary;
mod threads;
mod timestamps;
pub(crate) mod verdict;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::engine::progress::RunProgress;
use crate::engine::sampler::ClientSide;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::open::arrivals::Arrivals;
use crate::open::churn::{Churn, ChurnConnections};
use crate::open::connect::{Connecting, Opening, Route};
use crate::open::gauge::Gauge;
use crate::open::log::LogWriter;
use crate::open::outcome::OpenOutcome;
use crate::open::phases::Course;
use crate::open::verdict::Tolerance;
use crate::sys::signals::Signals;
use crate::sys::socket::CongestionControl;

/// Highest rate of one generator in requests per second, if there are CPUs for more generators.
const RATE_PER_GENERATOR: f64 = 50_000.0;
/// Time from the decision to start to the start.
pub(crate) const LEAD_NS: u64 = 20_000_000;

/// The parameters of an open-loop run.
#[derive(Debug, Clone)]
pub(crate) struct OpenPlan {
    pub(crate) course: Course,
    pub(crate) arrivals: Arrivals,
    pub(crate) exchange: Exchange,
    /// Standing connections; for a churn, the most that may be open at a time.
    pub(crate) connections: usize,
    /// Requests per connection of a churn, whose rate is that of new connections.
    pub(crate) churn: Option<u32>,
    /// An answer that takes longer is late; one that is missing for this long after the end is
    /// lost.
    pub(crate) timeout_ns: u64,
    pub(crate) generators: Vec<GeneratorCpus>,
    pub(crate) client: ClientSide,
    /// The server answers as iobench's own do, so its replies are known in advance.
    pub(crate) own_server: bool,
    pub(crate) seed: u64,
    pub(crate) tolerance: Tolerance,
    pub(crate) log: Option<PathBuf>,
    /// Whether an interrupted run has an outcome, of the time until then.
    pub(crate) keeps_part: bool,
}

impl OpenPlan {
    fn numbering(&self, generator: usize) -> Numbering {
        Numbering { generator, generators: self.generators.len() }
    }

    /// Returns the CPUs that the generators use, which may be fewer than were offered.
    fn client_side(&self) -> ClientSide {
        let used =
            |cpu: &usize| self.generators.iter().any(|g| g.sender == *cpu || g.receiver == *cpu);
        let cpus = self.client.cpus.iter().copied().filter(used).collect();
        ClientSide { cpus, ..self.client }
    }
}

/// Numbers the connections of one generator among those of all: they are dealt out in turns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbering {
    generator: usize,
    generators: usize,
}

impl Numbering {
    /// For a generator whose own numbers are those among all connections.
    pub(crate) const ALONE: Numbering = Numbering { generator: 0, generators: 1 };

    /// Returns the number among all connections of a generator's own connection.
    pub(crate) fn of(self, own: usize) -> usize {
        own * self.generators + self.generator
    }
}

/// The CPUs of a generator's threads; on a shared CPU the sender yields to the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GeneratorCpus {
    pub(crate) sender: usize,
    pub(crate) receiver: usize,
}

/// Divides the client CPUs among the generators that a rate needs (or that the user asked for): two
/// CPUs each if there are enough, else one.
pub(crate) fn place(cpus: &[usize], rate: f64, asked: Option<usize>) -> Result<Vec<GeneratorCpus>> {
    let wanted = asked.unwrap_or((rate / RATE_PER_GENERATOR).ceil().max(1.0) as usize);
    if cpus.is_empty() || asked.is_some_and(|asked| asked == 0 || asked > cpus.len()) {
        return Err(Error::setup(
            format!("{wanted} generators do not fit on {} client CPUs", cpus.len()),
            "each needs one; use fewer --generators or name more client CPUs",
        ));
    }
    let count = wanted.min(cpus.len());
    let per_generator = (cpus.len() / count).min(2);
    let of = |number: usize| {
        let own = &cpus[number * per_generator..];
        GeneratorCpus { sender: own[0], receiver: own[per_generator - 1] }
    };
    Ok((0..count).map(of).collect())
}

/// A run whose connections are open.
pub(crate) struct Prepared {
    plan: OpenPlan,
    target: SocketAddr,
    load: Load,
}

/// The generators' parts of the load.
enum Load {
    Standing(Vec<Vec<OwnedFd>>),
    Churn(Churn, Vec<ChurnConnections>),
}

impl Prepared {
    /// Opens the connections. Sockets belong to the network namespace of the calling thread.
    pub(crate) fn connect(
        plan: OpenPlan,
        route: &Route,
        signals: &Signals,
        progress: &RunProgress,
    ) -> Result<Prepared> {
        let generators = plan.generators.len();
        if plan.connections < generators {
            return Err(Error::setup(
                format!("{generators} generators cannot share {} connections", plan.connections),
                "ask for more --connections or fewer --generators",
            ));
        }
        let load = match plan.churn {
            Some(transactions) => begin_churn(&plan, route, transactions)?,
            None => stand(&plan, route, signals, progress)?,
        };
        Ok(Prepared { plan, target: route.target, load })
    }

    /// Runs all periods from `start_ns` and closes the connections.
    pub(crate) fn run(
        self,
        start_ns: u64,
        gauge: &dyn Gauge,
        signals: &Signals,
        progress: &RunProgress,
    ) -> Result<OpenOutcome> {
        let log = self.plan.log.as_deref().map(LogWriter::create);
        let log = log.transpose()?;
        let sink = log.as_ref().and_then(LogWriter::sink);
        let outcome = threads::run(&self, start_ns, sink, gauge, signals, progress);
        // The log's error is more important than an interruption that it may have caused.
        if let Some(log) = log {
            log.finish()?;
        }
        outcome
    }
}

/// Opens the standing connections and divides them among the generators.
fn stand(
    plan: &OpenPlan,
    route: &Route,
    signals: &Signals,
    progress: &RunProgress,
) -> Result<Load> {
    let congestion = CongestionControl::pick();
    let (opening, count) = (Opening::Exchange(plan.exchange), plan.connections);
    let connecting = Connecting {
        route,
        opening,
        request: &opening.request(),
        congestion: &congestion,
        signals,
    };
    let all = connecting.establish(count, |ready| progress.connecting(ready, count))?;
    let generators = plan.generators.len();
    let mut sockets: Vec<Vec<OwnedFd>> = (0..generators).map(|_| Vec::new()).collect();
    for (number, socket) in all.into_iter().enumerate() {
        sockets[number % generators].push(socket);
    }
    Ok(Load::Standing(sockets))
}

fn begin_churn(plan: &OpenPlan, route: &Route, transactions: u32) -> Result<Load> {
    let generators = plan.generators.len();
    let churn = Churn {
        route: route.clone(),
        transactions,
        most_open: plan.connections / generators,
        congestion: CongestionControl::pick(),
    };
    churn.check(generators)?;
    let pool = (0..generators)
        .map(|_| ChurnConnections::new(&churn, generators))
        .collect::<Result<_>>()?;
    Ok(Load::Churn(churn, pool))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(cpus: &[usize], rate: f64, asked: Option<usize>) -> Vec<(usize, usize)> {
        let placed = place(cpus, rate, asked).unwrap();
        placed.iter().map(|generator| (generator.sender, generator.receiver)).collect()
    }

    #[test]
    fn no_two_generators_number_a_connection_alike() {
        let numbers = |generator| {
            let numbering = Numbering { generator, generators: 2 };
            (0..3).map(move |own| numbering.of(own))
        };
        let mut all: Vec<usize> = numbers(0).chain(numbers(1)).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn generators_take_two_cpus_where_there_are_enough() {
        assert_eq!(cpus(&[1], 8_000.0, None), [(1, 1)]);
        assert_eq!(cpus(&[1, 2], 8_000.0, None), [(1, 2)]);
        assert_eq!(cpus(&[1, 2], 60_000.0, None), [(1, 1), (2, 2)]);
        assert_eq!(cpus(&[1, 2, 3, 4, 5], 8_000.0, Some(2)), [(1, 2), (3, 4)]);
        assert_eq!(cpus(&[7], 1e6, None), [(7, 7)]);
        assert!(place(&[1], 1.0, Some(2)).is_err() && place(&[], 1.0, None).is_err());
    }
}
