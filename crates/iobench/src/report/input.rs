//! Reading saved results: files of `run`, and files of `compare`, which become rows of the same
//! kind. Files come from anywhere, so everything is bounded and checked before it is used.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::compare::environment::Environment;
use crate::compare::stats::Interval;
use crate::error::{Context, Error, Result};
use crate::figures::Percentiles;
use crate::ipc;
use crate::report::ipc as report_ipc;
use crate::results::{self, Document, ExperimentRecord, Histograms, Kind, Row};

/// Largest file that is read.
const MOST_BYTES: u64 = 256 << 20;
/// Most rows, and most rounds or moments of a row.
const MOST_ROWS: usize = 10_000;
const MOST_PARTS: usize = 100_000;
const MOST_NAME_BYTES: usize = 200;
/// Nothing that is measured is larger: in microseconds these are thirty years.
const MOST: f64 = 1e15;

/// A file and what it says.
pub(crate) struct Saved {
    /// The file's name without its directory.
    pub(crate) label: String,
    /// The file as it was read.
    pub(crate) text: String,
    pub(crate) document: Document,
}

/// A file of `iobench ipc`.
pub(crate) struct SavedIpc {
    /// As in [`Saved`].
    pub(crate) label: String,
    pub(crate) text: String,
    pub(crate) document: ipc::file::Document,
}

/// A file that can be shown.
pub(crate) enum AnySaved {
    Run(Saved),
    Ipc(SavedIpc),
}

/// The beginning of any file, to tell what it is.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<u64>,
    slots_per_round: Option<u64>,
}

/// Reads and checks a file of `run` or `compare`.
pub(crate) fn read(path: &Path) -> Result<Saved> {
    match read_any(path)? {
        AnySaved::Run(saved) => Ok(saved),
        AnySaved::Ipc(_) => Err(Error::setup(
            format!(
                "{} holds transports between processes, from `iobench ipc`, which are not \
                 compared row by row",
                path.display()
            ),
            "lay the pages of `iobench report` beside one another",
        )),
    }
}

/// Reads and checks a file of `run`, `compare` or `ipc`.
pub(crate) fn read_any(path: &Path) -> Result<AnySaved> {
    const REMEDY: &str = "give a file written by `iobench run`, `compare` or `ipc` with --json";
    let text = read_bounded(path)?;
    let label = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let refuse =
        |cause: String| Error::setup(format!("cannot use {}: {cause}", path.display()), REMEDY);
    let head: Head = from_json(&text).map_err(refuse)?;
    if head.format.as_deref() == Some(ipc::file::FORMAT) {
        let document = parse_ipc(&text, head.version).map_err(refuse)?;
        return Ok(AnySaved::Ipc(SavedIpc { label, text, document }));
    }
    let document = parse(&text).map_err(refuse)?;
    Ok(AnySaved::Run(Saved { label, text, document }))
}

fn parse_ipc(text: &str, version: Option<u64>) -> std::result::Result<ipc::file::Document, String> {
    if version != Some(u64::from(ipc::file::VERSION)) {
        return Err(format!(
            "it has another version of the format than {}; read it with the program that wrote it",
            ipc::file::VERSION
        ));
    }
    let document: ipc::file::Document = from_json(text)?;
    if document.results.is_empty() || document.results.len() > MOST_ROWS {
        return Err(format!("it has no rows or more than {MOST_ROWS}"));
    }
    report_ipc::check(&document)?;
    Ok(document)
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
        (None, None) if head.slots_per_round.is_some() => {
            from_json::<CompareFile>(text)?.into_document()
        }
        _ => return Err("it does not say that it holds results of iobench".to_owned()),
    };
    check(&document)?;
    Ok(document)
}

fn from_json<T: DeserializeOwned>(text: &str) -> std::result::Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("it is damaged or cut off: {error}"))
}

/// Refuses what no run can have measured, so that nobody has to think of it later.
fn check(document: &Document) -> std::result::Result<(), String> {
    let rows = &document.results;
    if rows.is_empty() {
        return Err("it has no results".to_owned());
    }
    if rows.len() > MOST_ROWS {
        return Err(format!("it has {} rows, more than {MOST_ROWS}", rows.len()));
    }
    for (index, row) in rows.iter().enumerate() {
        if row.server.len() > MOST_NAME_BYTES {
            return Err(format!("the server's name in row {} is too long", index + 1));
        }
        if row.rounds.len() > MOST_PARTS || row.timeline.len() > MOST_PARTS {
            return Err(format!("row {} has more than {MOST_PARTS} parts", index + 1));
        }
        if let Some((name, value)) = figures(row).into_iter().find(|(_, v)| !is_plausible(*v)) {
            return Err(format!("row {} has {value} as {name}", index + 1));
        }
    }
    Ok(())
}

fn is_plausible(value: f64) -> bool {
    // What compare does not tell is not a number here.
    value.is_nan() || (0.0..=MOST).contains(&value)
}

/// Every figure of a row that is drawn or compared.
fn figures(row: &Row) -> Vec<(&'static str, f64)> {
    let mut all = Vec::new();
    let mut times = |name, percentiles: &Option<Percentiles>| {
        let Some(Percentiles { p1, p25, p50, p75, p99, p999, max }) = *percentiles else { return };
        all.extend([p1, p25, p50, p75, p99, p999, max].map(|value| (name, value)));
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
    figure("system_calls", row.system_calls);
    figure("server_busy", row.server_busy);
    figure("client_busy", row.client_busy);
    let work = [row.throughput_ratio, row.cpu_ratio, row.cpu_both_ratio];
    for ratio in work.into_iter().chain([row.p50_ratio, row.p99_ratio]) {
        for value in ratio.iter().flat_map(|ratio| [ratio.low, ratio.median, ratio.high]) {
            figure("a ratio", Some(value));
        }
    }
    for round in &row.rounds {
        figure("throughput of a round", round.throughput);
        figure("server_cpu_us of a round", round.server_cpu_us);
    }
    for moment in &row.timeline {
        figure("t_s", Some(moment.t_s));
        figure("offered_rate of a moment", Some(moment.offered_rate));
        figure("throughput of a moment", Some(moment.throughput));
        figure("send_lag_p50_us", moment.send_lag_p50_us);
        figure("send_lag_p99_us", moment.send_lag_p99_us);
        figure("service_p50_us", moment.service_p50_us);
        figure("service_p99_us", moment.service_p99_us);
        figure("server_busy of a moment", moment.server_busy);
    }
    all
}

/// A file of `compare`, as far as it is shown.
#[derive(Deserialize)]
struct CompareFile {
    environment: Environment,
    baseline: String,
    rounds: u32,
    slice_ms: f64,
    results: Vec<CompareRow>,
}

#[derive(Deserialize)]
struct CompareRow {
    server: String,
    cores: usize,
    server_cpus: Vec<usize>,
    client_cpus: Vec<usize>,
    transactions: u32,
    #[serde(default)]
    idle: usize,
    /// Of an echo; files of before other sizes could be asked for have nothing else.
    message_bytes: Option<usize>,
    #[serde(default)]
    request_bytes: usize,
    #[serde(default)]
    response_bytes: usize,
    #[serde(default)]
    path: Option<String>,
    connections: usize,
    throughput: Option<f64>,
    server_cpu_us: Option<f64>,
    #[serde(default)]
    cpu_both_us: Option<f64>,
    system_calls: Option<f64>,
    latency_us: Option<CompareLatency>,
    throughput_ratio: Option<Interval>,
    cpu_ratio: Option<Interval>,
    #[serde(default)]
    cpu_both_ratio: Option<Interval>,
    server_busy: Option<f64>,
    client_busy: Option<f64>,
    #[serde(default)]
    bound: Option<String>,
    valid: bool,
    notes: Vec<String>,
    pairs: usize,
}

#[derive(Deserialize)]
struct CompareLatency {
    p25: f64,
    p50: f64,
    p75: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl CompareFile {
    fn into_document(self) -> Document {
        let plan = format!("{} rounds, slices of {} ms", self.rounds, self.slice_ms);
        Document {
            format: results::FORMAT.to_owned(),
            version: results::VERSION,
            environment: self.environment,
            experiment: ExperimentRecord {
                name: "compare".to_owned(),
                title: format!("Servers compared, {plan}"),
                source: None,
                scale: "default".to_owned(),
                // The command, which stands with the environment, is the whole experiment.
                file: String::new(),
            },
            elapsed_s: 0.0,
            baseline: self.baseline,
            results: self.results.into_iter().map(CompareRow::into_row).collect(),
        }
    }
}

impl CompareRow {
    fn into_row(mut self) -> Row {
        // The one figure of theirs that rows of `run` have no place for.
        self.notes.push(format!("ratios are over {} pairs of slots", self.pairs));
        Row {
            server: self.server,
            kind: Kind::Closed,
            connections: self.connections,
            request_rate: None,
            request_bytes: self.message_bytes.unwrap_or(self.request_bytes),
            response_bytes: self.message_bytes.unwrap_or(self.response_bytes),
            transactions: self.transactions,
            idle: self.idle,
            cores: self.cores,
            server_cpus: self.server_cpus,
            client_cpus: self.client_cpus,
            work: "none".to_owned(),
            network: self.path,
            latency_us: self.latency_us.map(CompareLatency::into_percentiles),
            send_lag_us: None,
            transmit_us: None,
            turnaround_us: None,
            receive_lag_us: None,
            accept_us: None,
            throughput: self.throughput,
            server_cpu_us: self.server_cpu_us,
            cpu_both_us: self.cpu_both_us,
            system_calls: self.system_calls,
            server_busy: self.server_busy,
            client_busy: self.client_busy,
            bound: self.bound,
            throughput_ratio: self.throughput_ratio,
            cpu_ratio: self.cpu_ratio,
            cpu_both_ratio: self.cpu_both_ratio,
            p50_ratio: None,
            p99_ratio: None,
            valid: self.valid,
            notes: self.notes,
            accounts: None,
            rounds: Vec::new(),
            timeline: Vec::new(),
            histograms: Histograms::default(),
        }
    }
}

impl CompareLatency {
    fn into_percentiles(self) -> Percentiles {
        let CompareLatency { p25, p50, p75, p99, p999, max } = self;
        // `compare` does not tell the first percentile; nothing is drawn for it.
        Percentiles { p1: f64::NAN, p25, p50, p75, p99, p999, max }
    }
}
