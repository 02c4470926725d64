//! Slots with wrk, an independent client: it reports requests per second and latencies, and the
//! kernel reports the server's CPU time.

use std::time::Duration;

use crate::client::slices::SLICE_NS;
use crate::engine::outcome::{Figures, PrintedLatencies, SlotOutcome};
use crate::engine::placement::Placement;
use crate::engine::rounds::Rounds;
use crate::engine::sampler::{Border, ClientSide, Sampler, Sides, Used, wall_ns};
use crate::engine::slices::SliceCounts;
use crate::engine::statistics::median;
use crate::error::{Error, Result};
use crate::figures::{self, new_times};
use crate::installed::{search, version};
use crate::load::external::run_to_end;
use crate::server::running::Running;
use crate::sys::signals::Signals;

/// Duration of a run of wrk, which takes whole seconds only.
pub(crate) const SECONDS: u64 = 1;
/// wrk counts answers that take longer than its timeout, 2 s by default, as errors. With this value
/// a late answer on a busy machine is a latency.
pub(crate) const LONG_TIMEOUT: &str = "--timeout=20s";
/// How long wrk may run beyond its duration.
const END_LIMIT: Duration = Duration::from_secs(30);

/// The figures that wrk printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Printed {
    pub(crate) requests: u64,
    pub(crate) rate: f64,
    pub(crate) latencies: PrintedLatencies,
    pub(crate) errors: u64,
}

/// One run of wrk, with CPU times measured from outside.
struct Run {
    text: String,
    /// `None` if wrk did not end in time.
    client_ns: Option<u64>,
    borders: [Border; 2],
    sides: Sides,
}

/// How wrk loads a server.
pub(crate) struct Load<'a> {
    pub(crate) path: &'a str,
    pub(crate) connections: usize,
    /// Whether each request asks the server to close the connection after its answer. The latencies
    /// leave out the opening of connections.
    pub(crate) closes: bool,
}

/// Loads a server once with wrk.
pub(crate) fn run(
    server: &mut Running,
    placement: &Placement,
    load: &Load<'_>,
    signals: &Signals,
) -> Result<SlotOutcome> {
    let run = execute(server, placement, load, signals)?;
    // wrk prints percentiles only, from which no histogram can be made.
    let latencies = figures::encode(&new_times())?;
    let mut outcome = SlotOutcome { latencies, ..SlotOutcome::default() };
    if !server.drain(signals)? {
        outcome.problems.push("the server process ended".to_owned());
    }
    let Some((printed, client_ns)) = parse(&run.text).zip(run.client_ns) else {
        outcome.problems.push("wrk did not end in time or told no figures".to_owned());
        return Ok(outcome);
    };
    if printed.errors > 0 {
        outcome.problems.push(format!("wrk counted {} errors", printed.errors));
    }
    if printed.requests == 0 {
        outcome.problems.push("wrk got no answer".to_owned());
        return Ok(outcome);
    }
    judge(&mut outcome, &run, &printed, client_ns, placement);
    outcome.printed = Some(printed.latencies);
    Ok(outcome)
}

/// Runs wrk and waits for its end.
fn execute(
    server: &Running,
    placement: &Placement,
    load: &Load<'_>,
    signals: &Signals,
) -> Result<Run> {
    let Load { path, connections, closes } = *load;
    let mut words = vec![
        "wrk".to_owned(),
        format!("-t{}", placement.client_cpus.len().min(connections)),
        format!("-c{connections}"),
        format!("-d{SECONDS}s"),
        "--latency".to_owned(),
        LONG_TIMEOUT.to_owned(),
        format!("http://{}{path}", server.address()),
    ];
    if closes {
        words.push("--header=Connection: close".to_owned());
    }
    let cpus = placement.client_cpus.clone();
    let client = ClientSide { cpus, owned: true, roaming: false };
    let mut sampler = Sampler::new(&client, &[], Some(&server.side(&placement.server_cpus)))?;
    let used = |client_ns| Used { client_ns: Some(client_ns), server_ns: server.cpu_time_ns() };
    let before = sampler.border(used(0));
    let limit = Duration::from_secs(SECONDS) + END_LIMIT;
    let run = run_to_end(&words, &placement.client_cpus, limit, signals)?;
    let client_ns = run.ended.map(|ended| ended.cpu_ns);
    let after = sampler.border(used(client_ns.unwrap_or(0)));
    Ok(Run { text: run.text, client_ns, borders: [before, after], sides: sampler.sides() })
}

/// Makes the outcome of a run. A run has no slices, so it is valid or not as a whole; it counts as
/// the number of slices that its duration would have had.
fn judge(
    outcome: &mut SlotOutcome,
    run: &Run,
    printed: &Printed,
    client_ns: u64,
    placement: &Placement,
) {
    let [before, after] = &run.borders;
    let server_ns = after.used.server_ns.saturating_sub(before.used.server_ns);
    let wall_ns = wall_ns(&run.borders);
    let busy = |ns: u64, cpus: usize| ns as f64 / (wall_ns * cpus.max(1) as u64) as f64;
    let figures = Figures {
        throughput: printed.rate,
        server_cpu_us: server_ns as f64 / 1e3 / printed.requests as f64,
        cpu_both_us: None,
        system_calls: None,
        server_busy: busy(server_ns, placement.server_cpus.len()),
        client_busy: busy(client_ns, placement.client_cpus.len()),
    };
    outcome.rough = Some(figures);
    let slices = (SECONDS * 1_000_000_000 / SLICE_NS) as u32;
    outcome.slices = SliceCounts::of_whole(&run.borders, run.sides, slices);
    outcome.figures = (outcome.slices.clean > 0).then_some(figures);
}

/// Returns wrk's version; fails if it is not installed.
pub(crate) fn find() -> Result<String> {
    let file = search(&[], "wrk").ok_or_else(|| {
        Error::setup(
            "the program wrk is not installed",
            "install the package wrk (`cargo xtask setup`), or omit --wrk",
        )
    })?;
    Ok(version(&file, "-v"))
}

/// Describes the latencies that wrk printed, in the median over slots. It prints only percentiles,
/// which cannot be merged into a histogram.
pub(crate) fn note(rounds: &Rounds<SlotOutcome>) -> Option<String> {
    let printed: Vec<_> = rounds.iter().flatten().filter_map(|slot| slot.printed).collect();
    let middle = |figure: fn(&PrintedLatencies) -> f64| {
        median(&printed.iter().map(figure).collect::<Vec<_>>())
    };
    let (p50, p99) = middle(|p| p.p50_us).zip(middle(|p| p.p99_us))?;
    Some(format!("wrk itself told latencies of {p50:.0} us (p50) and {p99:.0} us (p99)"))
}

/// Reads what wrk prints with --latency.
pub(crate) fn parse(text: &str) -> Option<Printed> {
    let value_of = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
        Some(line.trim_start()[name.len()..].trim().to_owned())
    };
    let counted = text.lines().find(|line| line.contains(" requests in "))?;
    let requests = counted.split_whitespace().next()?.parse().ok()?;
    let rate = value_of("Requests/sec:")?.parse().ok()?;
    let wrong: u64 = value_of("Non-2xx or 3xx responses:").map_or(Some(0), |n| n.parse().ok())?;
    let failed: u64 = value_of("Socket errors:").map_or(0, |line| {
        let numbers = line.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
        numbers.filter_map(|number| number.parse::<u64>().ok()).sum()
    });
    Some(Printed {
        requests,
        rate,
        latencies: PrintedLatencies {
            p50_us: microseconds(&value_of("50%")?)?,
            p99_us: microseconds(&value_of("99%")?)?,
        },
        errors: wrong + failed,
    })
}

/// Returns a time with one of wrk's units.
fn microseconds(text: &str) -> Option<f64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = text[..unit_at].parse().ok()?;
    match &text[unit_at..] {
        "us" => Some(number),
        "ms" => Some(number * 1e3),
        "s" => Some(number * 1e6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "Running 1s test @ http://127.0.0.1:1/x
  1 threads and 8 connections
  Latency Distribution
     50%  250.00us
     75%    1.00ms
     90%    2.00ms
     99%    1.50s
  5000 requests in 1.10s, 3.00MB read
Requests/sec:   4545.50
Transfer/sec:      2.73MB
";

    #[test]
    fn figures_are_read_with_their_units() {
        let printed = parse(PRINTED).unwrap();
        assert_eq!((printed.requests, printed.errors), (5_000, 0));
        let PrintedLatencies { p50_us, p99_us } = printed.latencies;
        assert_eq!((printed.rate, p50_us, p99_us), (4_545.5, 250.0, 1_500_000.0));
    }

    #[test]
    fn errors_are_added_up() {
        let wrong = format!(
            "{PRINTED}  Socket errors: connect 0, read 3, write 0, timeout 4\n  \
             Non-2xx or 3xx responses: 5\n"
        );
        assert_eq!(parse(&wrong).unwrap().errors, 12);
        assert_eq!(parse("unable to connect"), None);
    }
}
