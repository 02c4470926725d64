//! The table of all rows, with the figures in full for programs that read the page.

use serde::Serialize;

use crate::engine::statistics::Interval;
use crate::report::number;
use crate::report::point::Dimension;
use crate::report::section::Section;
use crate::results::{Kind, Row};

/// Sentences below the table; the raw data has all.
const MOST_REMARKS: usize = 200;

/// A table as the template wants it.
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
    cells: Vec<Cell>,
}

#[derive(Debug, Serialize)]
struct Cell {
    name: String,
    text: String,
    /// The figure itself, where there is one.
    value: Option<f64>,
}

/// What a row has to say beside its figures.
#[derive(Debug, Serialize)]
struct Remark {
    whose: String,
    valid: bool,
    text: String,
}

/// A cell's text and figure.
type Shown = (String, Option<f64>);

/// A column: its head, the name by which programs find it, and its cells.
struct Column {
    head: String,
    name: String,
    cell: Box<dyn Fn(&Row) -> Shown>,
}

impl Column {
    fn figure(
        head: &str,
        name: &str,
        value: impl Fn(&Row) -> Option<f64> + 'static,
        format: fn(f64) -> String,
    ) -> Column {
        let cell = move |row: &Row| match value(row).filter(|value| value.is_finite()) {
            Some(value) => (format(value), Some(value)),
            None => (number::NOTHING.to_owned(), None),
        };
        Column { head: head.to_owned(), name: name.to_owned(), cell: Box::new(cell) }
    }

    fn ratio(head: &str, name: &str, value: fn(&Row) -> Option<Interval>) -> Column {
        let cell = move |row: &Row| match value(row) {
            Some(Interval::ONE) => ("baseline".to_owned(), Some(1.0)),
            Some(ratio) => (number::change_with_interval(&ratio), Some(ratio.estimate)),
            None => (number::NOTHING.to_owned(), None),
        };
        Column { head: head.to_owned(), name: name.to_owned(), cell: Box::new(cell) }
    }

    /// The column says nothing if no row has anything in it.
    fn is_empty(&self, rows: &[Row]) -> bool {
        rows.iter().all(|row| (self.cell)(row).0 == number::NOTHING)
    }
}

impl Table {
    pub(crate) fn of(section: &Section) -> Table {
        let mut columns = columns(section);
        columns.retain(|column| !column.is_empty(&section.rows));
        let line = |row: &Row| Line {
            series: section.series(row),
            server: row.subject.clone(),
            valid: row.valid,
            cells: columns
                .iter()
                .map(|column| {
                    let (text, value) = (column.cell)(row);
                    Cell { name: column.name.clone(), text, value }
                })
                .collect(),
        };
        let mut remarks: Vec<Remark> = section
            .rows
            .iter()
            .filter(|row| !row.notes.is_empty() || !row.valid)
            .map(|row| remark(section, row))
            .collect();
        // Reasons against a row come before mere remarks.
        remarks.sort_by_key(|remark| remark.valid);
        let left_out = remarks.len().saturating_sub(MOST_REMARKS);
        remarks.truncate(MOST_REMARKS);
        Table {
            heads: columns.iter().map(|column| column.head.clone()).collect(),
            lines: section.rows.iter().map(line).collect(),
            remarks,
            left_out,
        }
    }
}

fn remark(section: &Section, row: &Row) -> Remark {
    let text = match row.notes.as_slice() {
        [] => "the file does not say why".to_owned(),
        notes => notes.join("; "),
    };
    Remark { whose: format!("{} {}", row.subject, section.place(row)), valid: row.valid, text }
}

fn columns(section: &Section) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    let mut dimensions = section.varying.clone();
    for always in [Dimension::Rate, Dimension::Connections] {
        if !dimensions.contains(&always) {
            dimensions.insert(0, always);
        }
    }
    for dimension in dimensions {
        columns.push(Column {
            head: dimension.name().to_owned(),
            name: dimension.name().replace(' ', "-"),
            cell: Box::new(move |row| (dimension.value(row), None)),
        });
    }
    columns.extend(latencies());
    columns.extend(rates());
    columns.extend(further_latencies());
    columns
}

fn latencies() -> Vec<Column> {
    /// A percentile's head and name, and where to find it.
    type Percentile = (&'static str, &'static str, fn(&Row) -> Option<f64>);
    const SERVICE: [Percentile; 5] = [
        ("1 %", "p1", |row| Some(row.latency_us?.p1)),
        ("25 %", "p25", |row| Some(row.latency_us?.p25)),
        ("median", "p50", Row::p50_us),
        ("75 %", "p75", |row| Some(row.latency_us?.p75)),
        ("99 %", "p99", Row::p99_us),
    ];
    SERVICE.map(|(head, name, of)| Column::figure(head, name, of, number::time)).into()
}

/// What fewer readers look for.
fn further_latencies() -> Vec<Column> {
    /// A column's head and name, and where its figure is.
    type Part = (&'static str, &'static str, fn(&Row) -> Option<f64>);
    const PARTS: [Part; 10] = [
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
    PARTS.map(|(head, name, of)| Column::figure(head, name, of, number::time)).into()
}

fn rates() -> Vec<Column> {
    let is_churn = |row: &Row| row.kind == Kind::Churn;
    vec![
        Column::figure(
            "answers per second",
            "rate",
            move |row| row.throughput.filter(|_| !is_churn(row)),
            number::plain,
        ),
        Column::figure(
            "connections served per second",
            "served",
            move |row| row.throughput.filter(|_| is_churn(row)),
            number::plain,
        ),
        Column::figure("server CPU per request", "cpu", |row| row.server_cpu_us, number::time),
        Column::figure(
            "client CPU per request",
            "client-cpu",
            |row| row.client_cpu_us,
            number::time,
        ),
        Column::figure(
            "CPU of both sides per request",
            "both",
            |row| row.cpu_both_us,
            number::time,
        ),
        Column::ratio("99 % against baseline", "p99-ratio", |row| row.p99_ratio),
        Column::ratio("throughput against baseline", "rate-ratio", |row| {
            // What was asked for in an open loop is no merit.
            row.throughput_ratio.filter(|_| row.kind == Kind::Closed)
        }),
        Column::ratio("CPU against baseline", "cpu-ratio", |row| row.cpu_ratio),
        Column::ratio("client CPU against baseline", "client-cpu-ratio", |row| {
            row.client_cpu_ratio
        }),
        Column::ratio("CPU of both against baseline", "both-ratio", |row| row.cpu_both_ratio),
        Column { head: "errors".to_owned(), name: "errors".to_owned(), cell: Box::new(errors) },
        Column::figure("system calls", "calls", |row| row.system_calls, number::plain),
    ]
}

/// Requests without a right answer in time; of what kind they are is told where there are any.
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
