//! `iobench agent --check`: checks whether hosts can work together, before they measure.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::addresses::{self, Reachability};
use super::clock::{self, ClockOffset};
use super::control::{Control, ROOT, gather_values};
use super::with_control;
use crate::cli::agent::AgentArgs;
use crate::error::{Error, Result};
use crate::figures::{Percentiles, Times, new_times};
use crate::output;
use crate::sys::affinity::{allowed_cpus, online};
use crate::sys::limits::read_trimmed;

/// Bytes that are sent each way.
const CHECK_BYTES: usize = 1 << 20;

/// What a process reports about its host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Host {
    name: String,
    /// The number of CPUs that the process may use, and of all CPUs.
    cpus: usize,
    online_cpus: usize,
    kernel: String,
    iobench: String,
    offset: ClockOffset,
}

/// What a process found out about the transfer and the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Checked {
    /// Whether it received exactly the bytes that rank 0 sent.
    whole: bool,
    /// When it woke up for the agreed start, by the clock of rank 0.
    woke_ns: u64,
}

/// The round trips that a process has measured.
#[derive(Serialize, Deserialize)]
struct RoundTrips(#[serde(with = "crate::figures::as_text")] Times);

fn merge(parts: &[RoundTrips]) -> Result<Times> {
    let mut sum = new_times();
    for RoundTrips(part) in parts {
        sum.add(part).map_err(|error| {
            Error::setup(format!("cannot merge histograms: {error}"), "report this as a bug")
        })?;
    }
    Ok(sum)
}

/// Prints the table at rank 0; an error reports what is wrong.
pub(crate) fn run(arguments: &AgentArgs) -> Result<()> {
    // Every process finishes MPI before rank 0 reports problems; otherwise MPI's messages would
    // hide them.
    let problems = with_control(|control| examine(control, arguments))?;
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::setup(problems.join("\n  "), "then run `iobench agent --check` again"))
}

/// Returns all processes call it together; rank 0 prints and gets the problems.
fn examine(control: &dyn Control, arguments: &AgentArgs) -> Result<Vec<String>> {
    let mut round_trips = new_times();
    let offset = clock::measure(control, &mut round_trips)?;
    let host = Host {
        name: addresses::host_name(),
        cpus: allowed_cpus()?.len(),
        online_cpus: online().len(),
        kernel: read_trimmed("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
        iobench: env!("MEGAPIPE_VERSION").to_owned(),
        offset,
    };
    let hosts = gather_values(control, &host)?;
    // Uses the transfer of a run's results, so that a corruption would show here.
    let round_trips = merge(&gather_values(control, &RoundTrips(round_trips))?)?;
    let reachability = addresses::explore(control, arguments.mpi_address)?;
    let checked = check(control, offset)?;
    if control.rank() != ROOT {
        return Ok(Vec::new());
    }
    let mut text = table(&hosts, &reachability);
    text.push_str(&round_trip_line(&round_trips));
    text.push_str(&check_line(&checked));
    output::print(&text)?;
    remarks(&hosts).iter().for_each(|remark| output::note(remark));
    let mut problems = problems(&hosts, &reachability);
    problems.extend(damages(&checked));
    Ok(problems)
}

/// Sends the test bytes both ways, and starts all at an agreed time. Rank 0 gets all results.
fn check(control: &dyn Control, offset: ClockOffset) -> Result<Vec<Checked>> {
    let own = test_bytes(control.rank());
    let received = control.broadcast(&own)?;
    let gathered = control.gather(&own)?;
    // Lengths and values are compared with those that follow from the sender's rank.
    let whole = received == test_bytes(ROOT)
        && gathered.iter().enumerate().all(|(rank, bytes)| *bytes == test_bytes(rank));
    let woke_ns = clock::sleep_until(clock::agree_on_start(control, offset)?.agreed()?);
    gather_values(control, &Checked { whole, woke_ns: offset.to_root(woke_ns) })
}

/// Returns a line about the check's results, and how far apart the processes started.
fn check_line(checked: &[Checked]) -> String {
    let woke_ns = checked.iter().map(|checked| checked.woke_ns);
    let (Some(first_ns), Some(last_ns)) = (woke_ns.clone().min(), woke_ns.max()) else {
        return String::new();
    };
    let whole = checked.iter().filter(|checked| checked.whole).count();
    format!(
        "1 MiB to and from rank 0 arrived whole at {whole} of {} ranks; all woke for an agreed \
         start within {:.0} us\n",
        checked.len(),
        (last_ns - first_ns) as f64 / 1e3
    )
}

/// Test bytes in which lost, repeated or exchanged parts, or those of another rank, are detected
/// (xorshift64).
fn test_bytes(rank: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ rank as u64;
    let mut bytes = Vec::with_capacity(CHECK_BYTES);
    while bytes.len() < CHECK_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

fn damages(checked: &[Checked]) -> Vec<String> {
    let damaged = checked.iter().enumerate().filter(|(_, checked)| !checked.whole);
    damaged
        .map(|(rank, _)| {
            format!("rank {rank} received other bytes than were sent: check the MPI installation")
        })
        .collect()
}

const HEADINGS: [&str; 7] =
    ["rank", "host", "CPUs", "kernel", "clock offset us", "round trip us", "reaches rank 0 at"];

/// Returns a line for each rank, columns aligned.
fn table(hosts: &[Host], reachability: &Reachability) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    for (rank, host) in hosts.iter().enumerate() {
        let us = |ns: u64| ns as f64 / 1e3;
        let offset_us = host.offset.offset_ns as f64 / 1e3;
        let bound_us = us(host.offset.bound_ns);
        let (offset, round_trip, reached) = if rank == ROOT {
            ("the reference".to_owned(), "-".to_owned(), "-".to_owned())
        } else {
            let address = reachability.first_of(rank);
            (
                format!("{offset_us:+.3} ± {bound_us:.3}"),
                format!("{:.3}", us(host.offset.round_trip_ns)),
                address.map_or_else(|| "not at all".to_owned(), |address| address.to_string()),
            )
        };
        let (name, kernel) = (host.name.clone(), host.kernel.clone());
        let cpus = match host.cpus == host.online_cpus {
            true => host.cpus.to_string(),
            false => format!("{} of {}", host.cpus, host.online_cpus),
        };
        rows.push([rank.to_string(), name, cpus, kernel, offset, round_trip, reached]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEADINGS.len()).map(|at| width(at).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// Returns a line about the round trips of all hosts together; empty if there were none.
fn round_trip_line(all: &Times) -> String {
    Percentiles::of(all).map_or_else(String::new, |Percentiles { p50, p99, max, .. }| {
        let count = all.len();
        format!("{count} round trips: p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us\n")
    })
}

/// Warnings, although the hosts can work together.
fn remarks(hosts: &[Host]) -> Vec<String> {
    let bound = hosts.iter().enumerate().filter(|(_, host)| host.cpus < host.online_cpus);
    bound
        .map(|(rank, host)| {
            format!(
                "rank {rank} may use only {} of {} CPUs; if that is mpirun's doing, add \
                 --bind-to none",
                host.cpus, host.online_cpus
            )
        })
        .collect()
}

/// Reasons why the hosts cannot work together, each with its remedy.
fn problems(hosts: &[Host], reachability: &Reachability) -> Vec<String> {
    let mut problems = Vec::new();
    if hosts.len() < 2 {
        let remedy = "start one on each host: mpirun -N 1 --bind-to none --host HOST,HOST,... \
                      iobench agent --check";
        problems.push(format!("there is only one process; {remedy}"));
    } else if let Err(error) = reachability.agreed() {
        problems.push(error.to_string());
    }
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, host) in hosts.iter().enumerate() {
        by_name.entry(&host.name).or_default().push(rank);
        if host.iobench != hosts[ROOT].iobench {
            problems.push(format!(
                "{} has iobench {}, rank {ROOT} has {}; install the same everywhere",
                host.name, host.iobench, hosts[ROOT].iobench
            ));
        }
    }
    for (name, ranks) in by_name.iter().filter(|(_, ranks)| ranks.len() > 1) {
        let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
        problems.push(format!(
            "ranks {} all run on {name} and would disturb each other; give each a host of its \
             own: mpirun -N 1 --bind-to none --host HOST,HOST,...",
            ranks.join(", ")
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::super::threads::on_threads;
    use super::*;

    fn host(name: &str) -> Host {
        Host {
            name: name.to_owned(),
            cpus: 2,
            online_cpus: 2,
            kernel: "6.18.0".to_owned(),
            iobench: "1.0.0".to_owned(),
            offset: ClockOffset { offset_ns: -1_234, bound_ns: 20_500, round_trip_ns: 41_000 },
        }
    }

    fn reached(candidates: &[&str], reached: &[&[bool]]) -> Reachability {
        Reachability {
            candidates: candidates.iter().map(|address| address.parse().unwrap()).collect(),
            reached: reached.iter().map(|reached| reached.to_vec()).collect(),
        }
    }

    #[test]
    fn hosts_that_fit_have_no_problems() {
        let hosts = [host("a"), host("b"), host("c")];
        let reachability = reached(&["10.0.0.1"], &[&[true], &[true]]);
        assert!(problems(&hosts, &reachability).is_empty());
        let table = table(&hosts, &reachability);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].contains("the reference"), "{table}");
        for part in ["2     c", "-1.234 ± 20.500", "41.000", "10.0.0.1"] {
            assert!(lines[3].contains(part), "no `{part}` in: {table}");
        }
    }

    #[test]
    fn each_problem_comes_with_its_remedy() {
        #[track_caller]
        fn assert_problem(hosts: &[Host], reachability: &Reachability, part: &str) {
            let problems = problems(hosts, reachability);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains(part), "{problems:?}");
        }
        let fine = reached(&["10.0.0.1"], &[&[true], &[true]]);
        let twins = [host("a"), host("b"), host("b")];
        assert_problem(&twins, &fine, "ranks 1, 2 all run on b");
        let older = Host { iobench: "0.9.0".to_owned(), ..host("c") };
        assert_problem(&[host("a"), host("b"), older], &fine, "c has iobench 0.9.0");
        let barred = reached(&["10.0.0.1"], &[&[true], &[false]]);
        assert_problem(&[host("a"), host("b"), host("c")], &barred, "--mpi-address");
        assert_problem(&[host("a")], &reached(&[], &[]), "mpirun -N 1");
    }

    #[test]
    fn a_bound_process_is_remarked() {
        let bound = Host { cpus: 1, ..host("b") };
        let hosts = [host("a"), bound];
        let remarks = remarks(&hosts);
        assert_eq!(remarks.len(), 1);
        assert!(remarks[0].starts_with("rank 1") && remarks[0].contains("--bind-to none"));
        assert!(table(&hosts, &reached(&["10.0.0.1"], &[&[true]])).contains("1 of 2"));
    }

    #[test]
    fn what_was_sent_is_recognised() {
        let found = on_threads(3, |control| check(control, ClockOffset::ROOT).unwrap());
        assert_eq!(found[ROOT].len(), 3);
        assert!(damages(&found[ROOT]).is_empty());
        assert!(check_line(&found[ROOT]).contains("whole at 3 of 3 ranks"));
        assert_eq!(check_line(&[]), "");
        let damaged = Checked { whole: false, ..found[ROOT][1].clone() };
        assert!(damages(&[found[ROOT][0].clone(), damaged])[0].starts_with("rank 1"));
        assert_eq!(test_bytes(1).len(), CHECK_BYTES);
        assert_ne!(test_bytes(1), test_bytes(2));
    }

    #[test]
    fn round_trips_are_summed_up_where_there_are_any() {
        let mut times = new_times();
        times.record_n(20_000, 128).unwrap();
        let line = round_trip_line(&times);
        assert!(line.starts_with("128 round trips: p50 20.0 us"), "{line}");
        assert_eq!(round_trip_line(&new_times()), "");
    }
}
