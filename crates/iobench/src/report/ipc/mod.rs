//! The part of the page for files of `iobench ipc`: heat maps of latency by pair of CPUs and bars
//! of throughput, as Figures 3 and 4 of the FABLE paper, and all figures.

mod bars;
mod heat;

use serde::Serialize;

use crate::engine::statistics::Interval;
use crate::ipc::file::Document;
use crate::ipc::row::Row;
use crate::report::input::SavedIpc;
use crate::report::{command, facts, in_script, number};

const HEADS: [&str; 16] = [
    "placement",
    "CPUs",
    "bytes",
    "batch",
    "round trip p50",
    "p99",
    "× floor",
    "× tcp",
    "× unix",
    "× pipe",
    "MB/s",
    "messages/s",
    "CPU per message",
    "× tcp",
    "× unix",
    "× pipe",
];

/// Everything of one file.
#[derive(Serialize)]
pub(crate) struct IpcSection {
    id: String,
    pub(crate) title: String,
    label: String,
    clock: String,
    invalid: Option<String>,
    heads: [&'static str; HEADS.len()],
    lines: Vec<Line>,
    remarks: Vec<String>,
    heat_maps: Vec<Figure>,
    bars: Vec<Figure>,
    environment: Vec<(String, String)>,
    command: String,
    json: String,
}

/// A row of the table.
#[derive(Serialize)]
struct Line {
    name: String,
    valid: bool,
    cells: Vec<String>,
}

/// Pictures that are looked at together.
#[derive(Serialize)]
struct Figure {
    title: String,
    pictures: Vec<String>,
}

impl IpcSection {
    pub(crate) fn of(index: usize, file: &SavedIpc) -> IpcSection {
        let document = &file.document;
        let rows = &document.results;
        let invalid = rows.iter().filter(|row| !row.valid).count();
        let mut remarks: Vec<String> = Vec::new();
        for row in rows {
            let Some(reason) = &row.reason else { continue };
            let remark = format!("{}: {reason}", row.name());
            if !remarks.contains(&remark) {
                remarks.push(remark);
            }
        }
        IpcSection {
            id: format!("i{}", index + 1),
            title: "Between two processes of one machine".to_owned(),
            label: file.label.clone(),
            clock: document.clock.describe(),
            invalid: (invalid > 0)
                .then(|| format!("{invalid} of {} rows are not valid.", rows.len())),
            heads: HEADS,
            lines: rows.iter().map(Line::of).collect(),
            remarks,
            heat_maps: heat::figures(rows),
            bars: bars::figures(rows),
            environment: facts(&document.environment),
            command: command(&document.environment),
            json: in_script(&file.text),
        }
    }
}

impl Line {
    fn of(row: &Row) -> Line {
        let time = |us: Option<f64>| us.map_or(number::NOTHING.to_owned(), number::time);
        let plain = |value: Option<f64>| value.map_or(number::NOTHING.to_owned(), number::plain);
        let ratio = |ratio: Option<Interval>| plain(ratio.map(|ratio| ratio.estimate));
        let latency = row.latency_ns;
        Line {
            name: row.name(),
            valid: row.valid,
            cells: vec![
                row.placement.name().to_owned(),
                format!("{}, {}", row.cpus[0], row.cpus[1]),
                row.message_bytes.to_string(),
                row.batch.to_string(),
                time(latency.map(|latency| latency.p50 / 1e3)),
                time(latency.map(|latency| latency.p99 / 1e3)),
                plain(row.p50_over_floor),
                ratio(row.latency_ratio_tcp),
                ratio(row.latency_ratio_unix),
                ratio(row.latency_ratio_pipe),
                plain(row.throughput_mb_s),
                plain(row.messages_s),
                time(row.cpu_us_per_message),
                ratio(row.throughput_ratio_tcp),
                ratio(row.throughput_ratio_unix),
                ratio(row.throughput_ratio_pipe),
            ],
        }
    }
}

/// The names of the file's transports, in the order in which they first appear.
fn names(rows: &[Row]) -> Vec<String> {
    distinct(rows, |row| row.name())
}

/// The values of a property, in the order in which they first appear.
fn distinct<T: PartialEq>(rows: &[Row], property: impl Fn(&Row) -> T) -> Vec<T> {
    let mut values = Vec::new();
    for row in rows {
        let value = property(row);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// Refuses what no run can have measured, so that nobody has to think of it later.
pub(crate) fn check(document: &Document) -> Result<(), String> {
    const MOST: f64 = 1e18;
    const MOST_CPU: usize = 1 << 16;
    for (index, row) in document.results.iter().enumerate() {
        let refuse = |what: &str| Err(format!("row {} has an impossible {what}", index + 1));
        if row.transport.len() > 200 || row.form.as_ref().is_some_and(|form| form.len() > 200) {
            return refuse("name");
        }
        if row.cpus.iter().any(|cpu| *cpu > MOST_CPU) {
            return refuse("CPU");
        }
        let latency = row.latency_ns.map(|l| [l.p50, l.p90, l.p99, l.p999, l.max, l.mean]);
        let figures = [row.throughput_mb_s, row.messages_s, row.cpu_us_per_message];
        let interval = row.throughput_interval_mb_s.map(|i| [i.low, i.estimate, i.high]);
        let all = latency.into_iter().flatten().chain(figures.into_iter().flatten());
        if all.chain(interval.into_iter().flatten()).any(|value| !(0.0..=MOST).contains(&value)) {
            return refuse("figure");
        }
    }
    Ok(())
}
