//! The table of all rows, with exact figures in attributes for programs that read the page.

use serde::Serialize;

use crate::engine::statistics::Interval;
use crate::ipc::row::over_floor;
use crate::report::number;
use crate::report::point::Dimension;
use crate::report::remarks::{Remark, Remarks};
use crate::report::section::Section;
use crate::results::{Document, Kind, Ratios, Row};

/// The data of the table template.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    heads: Vec<String>,
    lines: Vec<Line>,
    remarks: Vec<Remark>,
    left_out: usize,
}

#[derive(Debug, Serialize)]
struct Line {
    series: usize,
    server: String,
    valid: bool,
    /// Numbers of the common notes.
    notes: Vec<usize>,
    cells: Vec<Cell>,
}

#[derive(Debug, Serialize)]
struct Cell {
    name: String,
    text: String,
    /// The figure, if the cell has one.
    value: Option<f64>,
}

/// A cell's text and figure.
type Shown = (String, Option<f64>);

/// A column: its heading, its name for programs, and its cells in the order of the rows.
struct Column {
    head: String,
    name: String,
    cells: Vec<Shown>,
}

impl Column {
    fn new(head: &str, name: &str, cells: impl Iterator<Item = Shown>) -> Column {
        Column { head: head.to_owned(), name: name.to_owned(), cells: cells.collect() }
    }

    fn figures(
        head: &str,
        name: &str,
        values: impl Iterator<Item = Option<f64>>,
        format: fn(f64) -> String,
    ) -> Column {
        let cell = |value: Option<f64>| match value.filter(|value| value.is_finite()) {
            Some(value) => (format(value), Some(value)),
            None => (number::NOTHING.to_owned(), None),
        };
        Column::new(head, name, values.map(cell))
    }

    /// A column of ratios to the baseline, each as a change with its interval; rows sort by the
    /// estimate.
    fn ratios(head: &str, name: &str, values: impl Iterator<Item = Option<Interval>>) -> Column {
        let cell = |ratio| match ratio {
            Some(Interval::ONE) => ("baseline".to_owned(), Some(1.0)),
            Some(ratio) => (number::change_with_interval(&ratio), Some(ratio.estimate)),
            None => (number::NOTHING.to_owned(), None),
        };
        Column::new(head, name, values.map(cell))
    }

    /// Returns whether the column has no content in any row.
    fn is_empty(&self) -> bool {
        self.cells.iter().all(|(text, _)| text == number::NOTHING)
    }
}

impl Table {
    pub(crate) fn of(section: &Section, remarks: Remarks) -> Table {
        let Remarks { single, left_out, numbers, .. } = remarks;
        let mut columns = columns(section);
        columns.retain(|column| !column.is_empty());
        let cell = |column: &Column, place: usize| {
            let (text, value) = column.cells[place].clone();
            Cell { name: column.name.clone(), text, value }
        };
        let line = |(place, row): (usize, &Row)| Line {
            series: section.series(row),
            server: row.subject.clone(),
            valid: row.valid,
            notes: numbers[place].clone(),
            cells: columns.iter().map(|column| cell(column, place)).collect(),
        };
        Table {
            heads: columns.iter().map(|column| column.head.clone()).collect(),
            lines: section.rows.iter().enumerate().map(line).collect(),
            remarks: single,
            left_out,
        }
    }
}

fn columns(section: &Section) -> Vec<Column> {
    let rows = section.rows.as_slice();
    let mut dimensions = section.varying.clone();
    for always in [Dimension::Placement, Dimension::Rate, Dimension::Connections] {
        if !dimensions.contains(&always) {
            dimensions.insert(0, always);
        }
    }
    let of_dimension = |dimension: Dimension| {
        let cells = rows.iter().map(|row| (dimension.value(row), None));
        Column::new(dimension.name(), &dimension.name().replace(' ', "-"), cells)
    };
    let mut columns: Vec<Column> = dimensions.into_iter().map(of_dimension).collect();
    columns.extend(times(rows, &LATENCIES));
    let over_floor = section.files.iter().flat_map(|file| over_floor(&file.document.results));
    columns.push(Column::figures("median over cache line", "floor", over_floor, number::plain));
    columns.extend(rates(rows));
    columns.extend(ratios(rows));
    columns.extend(further_ratios(section));
    columns.push(Column::new("errors", "errors", rows.iter().map(errors)));
    let calls = rows.iter().map(|row| row.system_calls);
    columns.push(Column::figures("system calls", "calls", calls, number::plain));
    let memory = rows.iter().map(|row| row.idle_bytes);
    columns.push(Column::figures("bytes per idle connection", "idle-bytes", memory, number::plain));
    columns.extend(times(rows, &FURTHER_LATENCIES));
    columns
}

/// A column's heading and name, and how to read its figure.
type Time = (&'static str, &'static str, fn(&Row) -> Option<f64>);

/// Latencies shown first: with the rates and the ratios they fit into a window of 1,280 pixels.
const LATENCIES: [Time; 2] = [("median", "p50", Row::p50_us), ("99 %", "p99", Row::p99_us)];

/// Latencies shown in further columns.
const FURTHER_LATENCIES: [Time; 16] = [
    ("mean", "mean", |row| row.latency_us?.mean),
    ("1 %", "p1", |row| Some(row.latency_us?.p1)),
    ("25 %", "p25", |row| Some(row.latency_us?.p25)),
    ("75 %", "p75", |row| Some(row.latency_us?.p75)),
    ("90 %", "p90", |row| row.latency_us?.p90),
    ("95 %", "p95", |row| row.latency_us?.p95),
    ("99.9 %", "p999", |row| Some(row.latency_us?.p999)),
    ("longest", "max", |row| Some(row.latency_us?.max)),
    ("send lag, median", "lag-p50", |row| Some(row.send_lag_us?.p50)),
    ("send lag, 99 %", "lag-p99", |row| Some(row.send_lag_us?.p99)),
    ("turnaround, median", "turnaround-p50", |row| Some(row.turnaround_us?.p50)),
    ("turnaround, 99 %", "turnaround-p99", |row| Some(row.turnaround_us?.p99)),
    ("receive lag, median", "receive-lag-p50", |row| Some(row.receive_lag_us?.p50)),
    ("receive lag, 99 %", "receive-lag-p99", |row| Some(row.receive_lag_us?.p99)),
    ("accept, median", "accept-p50", |row| Some(row.accept_us?.p50)),
    ("accept, 99 %", "accept-p99", |row| Some(row.accept_us?.p99)),
];

/// CPU time of the sides, per request.
const CPU_TIMES: [Time; 3] = [
    ("server CPU per request", "cpu", |row| row.server_cpu_us),
    ("client CPU per request", "client-cpu", |row| row.client_cpu_us),
    ("CPU of both sides per request", "both", |row| row.cpu_both_us),
];

fn times<'a>(rows: &'a [Row], columns: &'a [Time]) -> impl Iterator<Item = Column> {
    columns
        .iter()
        .map(|(head, name, of)| Column::figures(head, name, rows.iter().map(of), number::time))
}

fn rates(rows: &[Row]) -> Vec<Column> {
    let of_kinds = |head: &str, name: &str, kinds: &[Kind]| {
        let rate = |row: &Row| row.throughput.filter(|_| kinds.contains(&row.kind));
        Column::figures(head, name, rows.iter().map(rate), number::plain)
    };
    let gigabytes = rows.iter().map(|row| row.gigabytes_per_s);
    let mut columns = vec![
        of_kinds("answers per second", "rate", &[Kind::Open, Kind::Closed]),
        of_kinds("connections served per second", "served", &[Kind::Churn]),
        of_kinds("messages per second", "messages", &[Kind::OneWay]),
        Column::figures("GB per second", "gigabytes", gigabytes, number::plain),
    ];
    columns.extend(times(rows, &CPU_TIMES));
    columns
}

/// Returns the columns that compare each row with its baseline.
fn ratios(rows: &[Row]) -> [Column; 6] {
    // The throughput of an open loop is the requested one, so a higher value is not better.
    let throughput = |row: &Row| {
        row.throughput_ratio.filter(|_| matches!(row.kind, Kind::Closed | Kind::OneWay))
    };
    let column = |what: &str, name: &str, of: fn(&Row) -> Option<Interval>| {
        Column::ratios(&format!("{what} against baseline"), name, rows.iter().map(of))
    };
    [
        column("median", "p50-ratio", |row| row.p50_ratio),
        column("99 %", "p99-ratio", |row| row.p99_ratio),
        column("throughput", "rate-ratio", throughput),
        column("CPU", "cpu-ratio", |row| row.cpu_ratio),
        column("client CPU", "client-cpu-ratio", |row| row.client_cpu_ratio),
        column("CPU of both", "both-ratio", |row| row.cpu_both_ratio),
    ]
}

/// Columns of the ratios to every further baseline of any file.
fn further_ratios(section: &Section) -> Vec<Column> {
    /// A figure's heading, its name for programs, and how to read its ratio.
    type Figure = (&'static str, &'static str, fn(&Ratios) -> Option<Interval>);
    const FIGURES: [Figure; 5] = [
        ("median", "p50", |ratios| ratios.p50_ratio),
        ("99 %", "p99", |ratios| ratios.p99_ratio),
        ("throughput", "rate", |ratios| ratios.throughput_ratio),
        ("CPU", "cpu", |ratios| ratios.cpu_ratio),
        ("CPU of both", "both", |ratios| ratios.cpu_both_ratio),
    ];
    let documents = || section.files.iter().map(|file| &file.document);
    let mut baselines: Vec<&str> = Vec::new();
    for versus in documents().flat_map(|document| &document.versus) {
        if !baselines.contains(&versus.baseline.as_str()) {
            baselines.push(&versus.baseline);
        }
    }
    let column = |baseline: &str, (what, name, of): Figure| {
        let of_document = |document: &Document| {
            let versus = document.versus.iter().find(|versus| versus.baseline == baseline);
            let ratios = versus.map_or(&[][..], |versus| versus.results.as_slice());
            let trusted = ratios.iter().map(|ratios| of(ratios).filter(|_| ratios.valid));
            let missing = std::iter::repeat(None);
            trusted.chain(missing).take(document.results.len()).collect::<Vec<_>>()
        };
        let (head, name) = (format!("{what} against {baseline}"), format!("{name}-{baseline}"));
        Column::ratios(&head, &name, documents().flat_map(of_document))
    };
    let all = |baseline| FIGURES.into_iter().map(move |figure| (baseline, figure));
    baselines.into_iter().flat_map(all).map(|(baseline, figure)| column(baseline, figure)).collect()
}

/// Returns the number of requests without a correct answer in time, and of each kind if there are
/// any.
fn errors(row: &Row) -> Shown {
    let Some(accounts) = row.accounts else { return (number::NOTHING.to_owned(), None) };
    let kinds = [
        (accounts.late, "late"),
        (accounts.lost, "lost"),
        (accounts.refused, "refused"),
        (accounts.reset, "reset"),
        (accounts.wrong, "wrong"),
    ];
    let told: Vec<String> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{} {name}", number::count(*count as f64)))
        .collect();
    let all: f64 = kinds.iter().map(|(count, _)| *count as f64).sum();
    (if told.is_empty() { "0".to_owned() } else { told.join(", ") }, Some(all))
}
