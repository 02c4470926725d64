//! Formats the table of the transports: a block for every placement and size, a line for every
//! transport, with batching off and on in columns.

use crate::engine::statistics::Interval;
use crate::ipc::row::{ONE_WAY, PING_PONG, PIPE, UNIX, over_floor};
use crate::results::table::{Column, Entry, Table, figure};
use crate::results::{Document, Row};

const LEGEND: &str = "\
p50, p99: round trip of a ping-pong in microseconds; x floor: its median over one cache line's.
MB/s: payload one way; CPU us: of both processes per message; by N: the reader is told after N
messages. x tcp, x unix, x pipe: over tcp-blocking, unix-blocking and pipe-blocking, the kernel by
plain calls, in the same rounds and without batching (of a round trip less is better, of throughput
more), mean and 95 % interval over rounds.
";

pub(crate) fn table(document: &Document) -> Table<'_> {
    let rows = &document.results;
    let table = Table::new(rows, columns(rows), heading, LEGEND);
    Table { versus: &document.versus, line: Some(|row| &row.subject), ..table }
}

fn heading(row: &Row) -> String {
    let (reader, writer) = (row.client_cpus[0], row.server_cpus[0]);
    let siblings = match row.shares_core == Some(true) && reader != writer {
        true => " (threads of one core)",
        false => "",
    };
    format!(
        "{}, CPU {reader} and {writer}{siblings}, {}-byte messages",
        row.placement.as_deref().unwrap_or_default(),
        row.request_bytes
    )
}

fn columns(rows: &[Row]) -> Vec<Column> {
    let mut batches: Vec<u32> =
        rows.iter().filter(|row| row.workload == ONE_WAY).map(|row| row.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    let over_floor = over_floor(rows);
    let round_trip = vec![
        Column::figure("p50", 2, |row| row.p50_us()),
        Column::figure("p99", 2, |row| row.p99_us()),
        Column::figure("x floor", 2, move |entry| over_floor[entry.place]),
        Column::estimate("x tcp", first),
        Column::estimate("x unix", |entry| further(entry, UNIX)).gives_way(1),
        Column::estimate("x pipe", |entry| further(entry, PIPE)),
    ];
    let mut columns = vec![Column::left("transport", |row| row.subject.clone())];
    columns.extend(round_trip.into_iter().map(|c| c.of(|row| row.workload == PING_PONG)));
    columns.extend(batches.into_iter().flat_map(one_way));
    columns
}

fn one_way(batch: u32) -> Vec<Column> {
    let rate = if batch == 1 { "MB/s".to_owned() } else { format!("by {batch}: MB/s") };
    let mut columns = vec![
        Column::right(rate, |row| {
            let rate = row.gigabytes_per_s.map(|rate| rate * 1e3);
            figure(rate, usize::from(rate.is_some_and(|rate| rate < 100.0)))
        }),
        Column::figure("CPU us", 2, |row| row.cpu_both_us),
    ];
    if batch == 1 {
        columns.push(Column::ratio("x tcp", first));
        columns.push(Column::estimate("x unix", |entry| further(entry, UNIX)).gives_way(1));
        columns.push(Column::estimate("x pipe", |entry| further(entry, PIPE)));
    }
    let holds = move |row: &Entry<'_>| row.workload == ONE_WAY && row.batch == batch;
    columns.into_iter().map(|column| column.of(holds)).collect()
}

/// Returns the ratio of a workload's main figure to the baseline's.
fn first(entry: &Entry<'_>) -> Option<Interval> {
    entry.p50_ratio.or(entry.throughput_ratio)
}

/// Returns the same ratio to a further baseline.
fn further(entry: &Entry<'_>, baseline: &str) -> Option<Interval> {
    let ratios = entry.against(baseline)?;
    ratios.p50_ratio.or(ratios.throughput_ratio)
}
