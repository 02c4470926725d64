//! Slots with wrk, for whoever does not trust our own client: it tells requests per second and its
//! latencies, and the kernel tells the server's CPU time.

use std::process::Stdio;
use std::time::Duration;

use crate::compare::plan::SLICE_NS;
use crate::compare::slots::is_used_by_others;
use crate::engine::outcome::{Figures, SliceCounts, SlotOutcome};
use crate::engine::placement::Placement;
use crate::error::{Error, Result};
use crate::figures::{self, new_times};
use crate::load::external::run_to_end;
use crate::server::running::Running;
use crate::sys::clock::now_ns;
use crate::sys::procstat::{CpuReader, CpuTicks, TICK_NS};
use crate::sys::signals::Signals;

/// wrk counts in whole seconds.
pub(crate) const SECONDS: u64 = 1;
/// wrk calls answers that take longer errors, by default after 2 s: an answer that comes late on a
/// busy machine is a latency.
pub(crate) const PATIENT: &str = "--timeout=20s";
/// How long it may take beyond its time.
const END_LIMIT: Duration = Duration::from_secs(30);
/// A run that lost more than this part (1/50) of its time to the host says nothing.
const STOLEN_PART: u64 = 50;

/// What wrk printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Printed {
    pub(crate) requests: u64,
    pub(crate) rate: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) errors: u64,
}

/// One run, as seen from outside.
struct Run {
    text: String,
    /// Nothing if wrk did not end in time.
    client_ns: Option<u64>,
    server_ns: u64,
    wall_ns: u64,
    before: CpuTicks,
    after: CpuTicks,
}

/// Loads a server once with wrk.
pub(crate) fn run(
    server: &mut Running,
    placement: &Placement,
    connections: usize,
    path: &str,
    signals: &Signals,
) -> Result<(SlotOutcome, Option<Printed>)> {
    let run = execute(server, placement, connections, path, signals)?;
    // Its percentiles do not make a histogram, so there is none.
    let latencies = figures::encode(&new_times())?;
    let mut outcome = SlotOutcome { latencies, ..SlotOutcome::default() };
    if !server.drain(signals)? {
        outcome.problems.push("the server process ended".to_owned());
    }
    let Some((printed, client_ns)) = parse(&run.text).zip(run.client_ns) else {
        outcome.problems.push("wrk did not end in time or told no figures".to_owned());
        return Ok((outcome, None));
    };
    if printed.errors > 0 {
        outcome.problems.push(format!("wrk counted {} errors", printed.errors));
    }
    if printed.requests == 0 {
        outcome.problems.push("wrk got no answer".to_owned());
        return Ok((outcome, None));
    }
    judge(&mut outcome, &run, &printed, client_ns, placement);
    Ok((outcome, Some(printed)))
}

/// Runs wrk and waits for its end.
fn execute(
    server: &Running,
    placement: &Placement,
    connections: usize,
    path: &str,
    signals: &Signals,
) -> Result<Run> {
    let words = [
        "wrk".to_owned(),
        format!("-t{}", placement.client_cpus.len()),
        format!("-c{connections}"),
        format!("-d{SECONDS}s"),
        "--latency".to_owned(),
        PATIENT.to_owned(),
        format!("http://{}{path}", server.address()),
    ];
    let mut cpus = CpuReader::new(&placement.cpus())?;
    let (begun_ns, before, server_ns) = (now_ns(), cpus.read(), server.cpu_time_ns());
    let limit = Duration::from_secs(SECONDS) + END_LIMIT;
    let run = run_to_end(&words, &placement.client_cpus, limit, signals)?;
    let (wall_ns, after) = (now_ns() - begun_ns, cpus.read());
    let server_ns = server.cpu_time_ns().saturating_sub(server_ns);
    let (text, client_ns) = (run.text, run.ended.map(|ended| ended.cpu_ns));
    Ok(Run { text, client_ns, server_ns, wall_ns, before, after })
}

/// A run is all or nothing; it counts as much as the slices that its time would have had.
fn judge(
    outcome: &mut SlotOutcome,
    run: &Run,
    printed: &Printed,
    client_ns: u64,
    placement: &Placement,
) {
    let Run { server_ns, wall_ns, before, after, .. } = run;
    let busy = |ns: u64, cpus: usize| ns as f64 / (wall_ns * cpus.max(1) as u64) as f64;
    let figures = Figures {
        throughput: printed.rate,
        server_cpu_us: *server_ns as f64 / 1e3 / printed.requests as f64,
        cpu_both_us: None,
        system_calls: None,
        server_busy: busy(*server_ns, placement.server_cpus.len()),
        client_busy: busy(client_ns, placement.client_cpus.len()),
    };
    outcome.rough = Some(figures);
    let slices = (SECONDS * 1_000_000_000 / SLICE_NS) as u32;
    let stolen_ns = after.steal.saturating_sub(before.steal) * TICK_NS;
    let ours_ns = server_ns + client_ns;
    if stolen_ns > wall_ns / STOLEN_PART {
        outcome.slices = SliceCounts { stolen: slices, ..SliceCounts::default() };
    } else if is_used_by_others(before, after, ours_ns, *wall_ns, placement.cpus().len()) {
        outcome.slices = SliceCounts { delayed: slices, ..SliceCounts::default() };
    } else {
        outcome.slices = SliceCounts { clean: slices, ..SliceCounts::default() };
        outcome.figures = Some(figures);
    }
}

/// Refuses where wrk is not there.
pub(crate) fn check_installed() -> Result<()> {
    let found = std::process::Command::new("wrk")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.map(|_| ()).map_err(|error| {
        Error::setup(
            format!("wrk cannot be started: {error}"),
            "install the package wrk (`cargo xtask setup`), or leave --wrk out",
        )
    })
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
        p50_us: microseconds(&value_of("50%")?)?,
        p99_us: microseconds(&value_of("99%")?)?,
        errors: wrong + failed,
    })
}

/// A time with one of wrk's units.
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
        assert_eq!((printed.rate, printed.p50_us, printed.p99_us), (4_545.5, 250.0, 1_500_000.0));
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
