//! Decides whether a measurement over the path is evidence about the servers, or was limited by the
//! path.

use crate::error::Result;
use crate::figures::Percentiles;
use crate::network::{Network, NetworkCounters};
use crate::sys::clock::now_ns;

/// Lateness below this is the time to wake up a thread, which every machine has.
const TOLERATED_LATE_US: f64 = 1_000.0;
/// Lateness above this part of the delay changes the measured conditions.
const TOLERATED_PART: f64 = 0.1;

/// A relay that is busier than this, or waits for a CPU, reads packets late, which no counter
/// shows.
const TOLERATED_BUSY: f64 = 0.95;

/// Observes the path during one measurement.
pub(crate) struct Observation {
    before: NetworkCounters,
    begun_ns: u64,
}

impl Observation {
    /// Starts to observe a measurement that ends at `end_ns`. After that no packet is dropped, so
    /// that connections can be closed.
    pub(crate) fn begin(network: &Network, end_ns: u64) -> Result<Observation> {
        network.lossless_from(end_ns);
        let before = network.counters()?;
        network.take_lateness();
        Ok(Observation { before, begun_ns: now_ns() })
    }

    /// Returns the reasons why the measurement is not valid.
    pub(crate) fn end(self, network: &Network) -> Result<Vec<String>> {
        let late = Percentiles::of(&network.take_lateness());
        let after = network.counters()?;
        let elapsed_ns = now_ns() - self.begun_ns;
        let delay_us = network.conditions().delay.as_nanos() as f64 / 1e3;
        Ok(problems(late, delay_us, &self.before, &after, elapsed_ns))
    }
}

fn problems(
    late: Option<Percentiles>,
    delay_us: f64,
    before: &NetworkCounters,
    after: &NetworkCounters,
    elapsed_ns: u64,
) -> Vec<String> {
    let mut problems = Vec::new();
    let limit_us = TOLERATED_LATE_US.max(delay_us * TOLERATED_PART);
    // Without the figure itself, so that a row with many slots has one such note.
    if late.is_some_and(|late| late.p99 > limit_us) {
        problems.push(format!(
            "the network's relay delivered packets late (p99 above {:.1} ms): give it a CPU \
             (--relay-cpu) or ask for less load",
            limit_us / 1e3
        ));
    }
    let [used_before_ns, used_ns] = [before, after].map(|c| c.relay_cpu_ns + c.relay_wait_ns);
    if (used_ns - used_before_ns) as f64 > elapsed_ns as f64 * TOLERATED_BUSY {
        problems.push(
            "the network's relay never rested, so packets waited for it: give it a CPU \
             (--relay-cpu) or ask for less load"
                .to_owned(),
        );
    }
    let device_full = [before, after].map(|c| c.to_server.device_full + c.to_client.device_full);
    let flight_full = [before, after].map(|c| c.to_server.flight_full + c.to_client.flight_full);
    let refused = [before, after].map(|c| c.to_server.refused + c.to_client.refused);
    for ([before, after], what) in [
        (device_full, "overflowed the network's devices because the relay was too slow"),
        (flight_full, "did not fit into the memory of the network's relay"),
        (refused, "were not taken by the receiving side of the network"),
    ] {
        if after > before {
            problems.push(format!("{} packets {what}", after - before));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(p99: f64) -> Option<Percentiles> {
        let rest = p99 / 2.0;
        let tail = Percentiles { p99, p999: p99, max: p99, ..Percentiles::default() };
        Some(Percentiles { p1: rest, p25: rest, p50: rest, p75: rest, ..tail })
    }

    #[test]
    fn lateness_counts_against_the_delay() {
        let none = NetworkCounters::default();
        assert!(problems(None, 0.0, &none, &none, 1).is_empty());
        assert!(problems(late(900.0), 0.0, &none, &none, 1).is_empty());
        assert!(problems(late(4_900.0), 50_000.0, &none, &none, 1).is_empty());
        let problems = problems(late(5_100.0), 10_000.0, &none, &none, 1);
        assert!(problems[0].contains("p99 above 1.0 ms"), "{problems:?}");
    }

    #[test]
    fn a_relay_without_rest_is_the_limit() {
        let before = NetworkCounters { relay_cpu_ns: 1_000, ..NetworkCounters::default() };
        let after = NetworkCounters { relay_cpu_ns: 1_600, relay_wait_ns: 300, ..before };
        assert!(problems(None, 0.0, &before, &after, 1_000).is_empty());
        let problems = problems(None, 0.0, &before, &after, 940);
        assert!(problems[0].contains("never rested"), "{problems:?}");
    }

    #[test]
    fn packets_that_the_tool_itself_dropped_are_named() {
        let before = NetworkCounters::default();
        let mut after = before;
        (after.to_server.lost, after.to_client.queue_full) = (5, 6);
        assert!(problems(None, 0.0, &before, &after, 1).is_empty(), "the conditions demand these");
        (after.to_server.device_full, after.to_client.device_full) = (1, 2);
        after.to_client.refused = 4;
        let problems = problems(None, 0.0, &before, &after, 1);
        assert!(problems[0].starts_with("3 packets overflowed"), "{problems:?}");
        assert!(problems[1].starts_with("4 packets were not taken"), "{problems:?}");
    }
}
