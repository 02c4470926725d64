//! Reads result files. They may come from anywhere, so everything is bounded and checked before it
//! is used.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::engine::statistics::Interval;
use crate::error::{Context, Error, Result};
use crate::figures::Percentiles;
use crate::results::{self, Document, Row};

/// Largest file that is read.
const MOST_BYTES: u64 = 256 << 20;
/// Most rows, and most rounds or moments of a row.
const MOST_ROWS: usize = 10_000;
const MOST_PARTS: usize = 100_000;
/// Most further baselines, of which each has columns.
const MOST_BASELINES: usize = 16;
const MOST_NAME_BYTES: usize = 200;
/// Largest accepted value; in microseconds it is thirty years.
const MOST: f64 = 1e15;

/// A result file and its content.
pub(crate) struct Saved {
    /// The file's name without its directory.
    pub(crate) label: String,
    /// The text of the file.
    pub(crate) text: String,
    pub(crate) document: Document,
}

/// The first fields of a file, which identify its format.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<u64>,
}

/// Reads and checks a result file.
pub(crate) fn read(path: &Path) -> Result<Saved> {
    checked(read_bounded(path)?, path)
}

/// Parses and checks the text of a result file.
pub(crate) fn checked(text: String, path: &Path) -> Result<Saved> {
    const REMEDY: &str = "give a file that iobench wrote with --json";
    let label = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let refuse =
        |cause: String| Error::setup(format!("cannot use {}: {cause}", path.display()), REMEDY);
    let document = parse(&text).map_err(refuse)?;
    Ok(Saved { label, text, document })
}

fn read_bounded(path: &Path) -> Result<String> {
    let shown = path.display();
    let file = File::open(path).context(format!("open {shown}"), "check the name of the file")?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .context(format!("read {shown}"), "check that it is a file and can be read")?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Error::setup(
            format!("{shown} has more than {} MiB", MOST_BYTES >> 20),
            "give a result file; real ones are smaller",
        ));
    }
    String::from_utf8(bytes).map_err(|_| {
        Error::setup(format!("{shown} is no text"), "give a result file, which is JSON")
    })
}

fn parse(text: &str) -> std::result::Result<Document, String> {
    let head: Head = from_json(text)?;
    let document = match (head.format.as_deref(), head.version) {
        (Some(results::FORMAT), Some(version)) if version == u64::from(results::VERSION) => {
            from_json(text)?
        }
        (Some(results::FORMAT), Some(version)) => {
            return Err(format!(
                "it has version {version} of the format, and this program reads version {}; read \
                 it with the program that wrote it, or measure again",
                results::VERSION
            ));
        }
        _ => return Err("it does not say that it holds results of iobench".to_owned()),
    };
    check(&document)?;
    check_versus(&document)?;
    Ok(document)
}

fn from_json<T: DeserializeOwned>(text: &str) -> std::result::Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("it is damaged or cut off: {error}"))
}

/// Fails for values that no run can have measured, so that later code need not check them.
fn check(document: &Document) -> std::result::Result<(), String> {
    let rows = &document.results;
    if rows.is_empty() {
        return Err("it has no results".to_owned());
    }
    if rows.len() > MOST_ROWS {
        return Err(format!("it has {} rows, more than {MOST_ROWS}", rows.len()));
    }
    for (index, row) in rows.iter().enumerate() {
        let names = [Some(&row.subject), Some(&row.workload), row.placement.as_ref()];
        if names.into_iter().flatten().any(|name| name.len() > MOST_NAME_BYTES) {
            return Err(format!("the name in row {} is too long", index + 1));
        }
        if row.rounds.len() > MOST_PARTS {
            return Err(format!("row {} has more than {MOST_PARTS} parts", index + 1));
        }
        if let Some((name, value)) = figures(row).into_iter().find(|(_, v)| !is_plausible(*v)) {
            return Err(format!("row {} has {value} as {name}", index + 1));
        }
    }
    Ok(())
}

fn is_plausible(value: f64) -> bool {
    // A figure that `compare` does not have is NaN here.
    value.is_nan() || (0.0..=MOST).contains(&value)
}

/// Fails for such values of further baselines.
fn check_versus(document: &Document) -> std::result::Result<(), String> {
    let versus = &document.versus;
    let all = versus.iter().flat_map(|versus| &versus.results);
    let ratios = all.flat_map(|r| {
        [r.throughput_ratio, r.cpu_ratio, r.cpu_both_ratio, r.p50_ratio, r.p99_ratio]
    });
    if versus.len() > MOST_BASELINES {
        Err(format!("it has {} further baselines, more than {MOST_BASELINES}", versus.len()))
    } else if versus.iter().any(|versus| versus.baseline.len() > MOST_NAME_BYTES) {
        Err("the name of a further baseline is too long".to_owned())
    } else if let Some(value) = bounds(ratios).find(|value| !is_plausible(*value)) {
        Err(format!("it has {value} as a ratio to a further baseline"))
    } else {
        Ok(())
    }
}

fn bounds(ratios: impl Iterator<Item = Option<Interval>>) -> impl Iterator<Item = f64> {
    ratios.flatten().flat_map(|ratio| [ratio.low, ratio.estimate, ratio.high])
}

/// Returns every figure of a row that is drawn or compared.
fn figures(row: &Row) -> Vec<(&'static str, f64)> {
    let mut all = Vec::new();
    let mut times = |name, percentiles: &Option<Percentiles>| {
        let Some(Percentiles { p1, p25, p50, p75, p90, p95, p99, p999, max, mean }) = *percentiles
        else {
            return;
        };
        all.extend([p1, p25, p50, p75, p99, p999, max].map(|value| (name, value)));
        all.extend([p90, p95, mean].into_iter().flatten().map(|value| (name, value)));
    };
    times("latency_us", &row.latency_us);
    times("send_lag_us", &row.send_lag_us);
    times("transmit_us", &row.transmit_us);
    times("turnaround_us", &row.turnaround_us);
    times("receive_lag_us", &row.receive_lag_us);
    times("accept_us", &row.accept_us);
    row.rounds.iter().for_each(|round| times("latency_us of a round", &round.latency_us));
    let mut figure = |name, value: Option<f64>| all.extend(value.map(|value| (name, value)));
    figure("request_rate", row.request_rate);
    figure("throughput", row.throughput);
    figure("server_cpu_us", row.server_cpu_us);
    figure("cpu_both_us", row.cpu_both_us);
    figure("client_cpu_us", row.client_cpu_us);
    figure("gigabytes_per_s", row.gigabytes_per_s);
    figure("p50", row.p50_us());
    figure("p99", row.p99_us());
    figure("mean", row.reported_latency_us.and_then(|reported| reported.mean));
    figure("system_calls", row.system_calls);
    figure("idle_bytes", row.idle_bytes);
    figure("server_busy", row.server_busy);
    figure("client_busy", row.client_busy);
    let work = [row.throughput_ratio, row.cpu_ratio, row.client_cpu_ratio, row.cpu_both_ratio];
    for value in bounds(work.into_iter().chain([row.p50_ratio, row.p99_ratio])) {
        figure("a ratio", Some(value));
    }
    for round in &row.rounds {
        figure("throughput of a round", round.throughput);
        figure("server_cpu_us of a round", round.server_cpu_us);
        figure("cpu_both_us of a round", round.cpu_both_us);
        figure("p50 of a round", round.p50_us());
        figure("p99 of a round", round.p99_us());
    }
    all
}
