//! Reads a server's use of CPU time and system calls while it is measured.

use serde::{Deserialize, Serialize};

use crate::engine::sampler::ServerSide;
use crate::server::running::Running;
use crate::sys::clock::now_ns;

/// Reads the server's use of resources; `None` if it is not visible.
pub(crate) trait Gauge {
    /// CPU time of the whole server so far.
    fn cpu_ns(&self) -> Option<u64>;
    /// Its system calls so far.
    fn system_calls(&self) -> Option<u64>;
    /// Returns the number of CPUs that it may use.
    fn cpus(&self) -> usize;
    /// Its CPUs and threads.
    fn side(&self) -> Option<ServerSide>;
}

/// A gauge for servers of which only the address is known.
pub(crate) struct Blind;

impl Gauge for Blind {
    fn cpu_ns(&self) -> Option<u64> {
        None
    }

    fn system_calls(&self) -> Option<u64> {
        None
    }

    fn cpus(&self) -> usize {
        1
    }

    fn side(&self) -> Option<ServerSide> {
        None
    }
}

/// A gauge for a server that this process has started.
pub(crate) struct Watched<'a> {
    pub(crate) server: &'a Running,
    pub(crate) cpus: &'a [usize],
}

impl Gauge for Watched<'_> {
    fn cpu_ns(&self) -> Option<u64> {
        Some(self.server.cpu_time_ns())
    }

    fn system_calls(&self) -> Option<u64> {
        self.server.counters().map(|counters| counters.system_calls)
    }

    fn cpus(&self) -> usize {
        self.cpus.len()
    }

    fn side(&self) -> Option<ServerSide> {
        Some(self.server.side(self.cpus))
    }
}

/// The server's use of resources in the measured period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerUse {
    pub(crate) cpu_us: Option<f64>,
    pub(crate) system_calls: Option<f64>,
    /// Busy share of its CPUs, 0 to 1.
    pub(crate) busy: Option<f64>,
}

/// A server's counters at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) at_ns: u64,
    pub(crate) cpu_ns: Option<u64>,
    pub(crate) system_calls: Option<u64>,
}

impl Reading {
    /// Reads the counters.
    pub(crate) fn take(gauge: &dyn Gauge) -> Reading {
        let (cpu_ns, system_calls) = (gauge.cpu_ns(), gauge.system_calls());
        Reading { at_ns: now_ns(), cpu_ns, system_calls }
    }
}

impl ServerUse {
    /// Returns the use for `requests` in a period of `measured_ns`. Readings may be a little late,
    /// so the use between them is scaled to the period.
    pub(crate) fn between(
        from: &Reading,
        to: &Reading,
        measured_ns: u64,
        requests: f64,
        cpus: usize,
    ) -> ServerUse {
        let elapsed_ns = to.at_ns.saturating_sub(from.at_ns).max(1) as f64;
        let scale = measured_ns as f64 / elapsed_ns;
        let used =
            |pick: fn(&Reading) -> Option<u64>| Some(pick(to)?.saturating_sub(pick(from)?) as f64);
        let per_request = |used: f64| (requests > 0.0).then(|| used * scale / requests);
        let cpu_ns = used(|reading| reading.cpu_ns);
        ServerUse {
            cpu_us: cpu_ns.and_then(per_request).map(|cpu_ns| cpu_ns / 1e3),
            system_calls: used(|reading| reading.system_calls).and_then(per_request),
            busy: cpu_ns.map(|cpu_ns| cpu_ns / elapsed_ns / cpus as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_scaled_to_the_measured_period() {
        let reading = |at_ns, cpu_ns| Reading { at_ns, cpu_ns, system_calls: Some(2 * at_ns) };
        let (from, to) = (reading(1_000, Some(500)), reading(3_000, Some(1_500)));
        let used = ServerUse::between(&from, &to, 1_000, 10.0, 2);
        assert_eq!((used.cpu_us, used.busy), (Some(0.05), Some(0.25)));
        assert_eq!(used.system_calls, Some(200.0));
        let nothing = ServerUse::between(&from, &to, 1_000, 0.0, 2);
        assert_eq!((nothing.cpu_us, nothing.busy), (None, Some(0.25)));
        let blind = ServerUse::between(&from, &reading(3_000, None), 1_000, 10.0, 2);
        assert_eq!((blind.cpu_us, blind.busy), (None, None));
    }
}
