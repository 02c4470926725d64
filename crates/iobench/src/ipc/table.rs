//! The results for people: a block for every placement and size, a line for every transport, with
//! batching off and on side by side.

use std::fmt::Write;

use crate::engine::statistics::Interval;
use crate::engine::table::{figure, lay_out};
use crate::ipc::row::Row;

/// Narrower terminals get the table without intervals and without the ratios to UNIX sockets.
const WIDE: usize = 144;

const LEGEND: &str = "\
p50, p99: round trip of a ping-pong in microseconds; x floor: its median over one cache line's.
MB/s: payload one way; CPU us: of both processes per message; by N: the reader is told after N
messages. x tcp, x unix, x pipe: over tcp-blocking, unix-blocking and pipe-blocking, the kernel by
plain calls, in the same rounds and without batching (of a round trip less is better, of throughput
more), mean and 95 % interval over rounds.
";

/// The whole report.
pub(crate) fn render(rows: &[Row], width: usize) -> String {
    let mut text = String::new();
    let mut notes: Vec<&str> = Vec::new();
    let key = |row: &Row| (row.cpus, row.message_bytes);
    let mut blocks = Vec::new();
    for row in rows {
        if !blocks.contains(&key(row)) {
            blocks.push(key(row));
        }
    }
    for wanted in blocks {
        let block: Vec<&Row> = rows.iter().filter(|row| key(row) == wanted).collect();
        render_block(&mut text, &block, &mut notes, width);
    }
    text.push_str(LEGEND);
    for (index, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "({}) {note}", index + 1);
    }
    text
}

fn render_block<'a>(text: &mut String, block: &[&'a Row], notes: &mut Vec<&'a str>, width: usize) {
    let first = block[0];
    let [reader, writer] = first.cpus;
    let siblings =
        if first.shares_core && reader != writer { " (threads of one core)" } else { "" };
    let _ = writeln!(
        text,
        "{}, CPU {reader} and {writer}{siblings}, {}-byte messages",
        first.placement.name(),
        first.message_bytes
    );
    let mut batches: Vec<u32> = block.iter().map(|row| row.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    let wide = width >= WIDE;
    let mut lines = vec![head(&batches, wide)];
    let mut seen: Vec<(&str, Option<&str>)> = Vec::new();
    for row in block {
        let name = (row.transport.as_str(), row.form.as_deref());
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let same = |other: &&&Row| (other.transport.as_str(), other.form.as_deref()) == name;
        let rows: Vec<&Row> = block.iter().filter(same).copied().collect();
        lines.push(line(&rows, &batches, wide, notes));
    }
    lay_out(text, &lines);
    text.push('\n');
}

fn head(batches: &[u32], wide: bool) -> Vec<String> {
    let ratios: &[&str] = if wide { &["x tcp", "x unix", "x pipe"] } else { &["x tcp", "x pipe"] };
    let ratios = || ratios.iter().map(ToString::to_string);
    let mut cells = ["transport", "p50", "p99", "x floor"].map(str::to_owned).to_vec();
    cells.extend(ratios());
    for batch in batches {
        cells.push(if *batch == 1 { "MB/s".to_owned() } else { format!("by {batch}: MB/s") });
        cells.push("CPU us".to_owned());
        if *batch == 1 {
            cells.extend(ratios());
        }
    }
    cells
}

fn line<'a>(
    rows: &[&'a Row],
    batches: &[u32],
    wide: bool,
    notes: &mut Vec<&'a str>,
) -> Vec<String> {
    let first = rows[0];
    let latency = |pick: fn(&crate::ipc::row::LatencyNs) -> f64| {
        first.latency_ns.as_ref().map(|latency| pick(latency) / 1e3)
    };
    let mut cells = vec![
        first.name(),
        figure(latency(|latency| latency.p50), 2),
        figure(latency(|latency| latency.p99), 2),
        figure(first.p50_over_floor, 2),
    ];
    let [tcp, unix, pipe] =
        [first.latency_ratio_tcp, first.latency_ratio_unix, first.latency_ratio_pipe];
    cells.extend(ratios(short(tcp), unix, pipe, wide));
    for batch in batches {
        let row = rows.iter().find(|row| row.batch == *batch);
        let get = |pick: fn(&Row) -> Option<f64>| row.and_then(|row| pick(row));
        let decimals =
            if get(|row| row.throughput_mb_s).is_some_and(|rate| rate < 100.0) { 1 } else { 0 };
        cells.push(figure(get(|row| row.throughput_mb_s), decimals));
        cells.push(figure(get(|row| row.cpu_us_per_message), 2));
        if *batch == 1 {
            let ratio = |pick: fn(&Row) -> Option<Interval>| row.and_then(|row| pick(row));
            let tcp = ratio(|row| row.throughput_ratio_tcp);
            let tcp = if wide { with_interval(tcp) } else { short(tcp) };
            let unix = ratio(|row| row.throughput_ratio_unix);
            let pipe = ratio(|row| row.throughput_ratio_pipe);
            cells.extend(ratios(tcp, unix, pipe, wide));
        }
    }
    let reasons = rows.iter().filter(|row| !row.valid).map(|row| row.reason.as_deref());
    let mut marks: Vec<String> = Vec::new();
    for reason in reasons.map(|reason| reason.unwrap_or("no reason was given")) {
        let place = notes.iter().position(|note| *note == reason).unwrap_or_else(|| {
            notes.push(reason);
            notes.len() - 1
        });
        let mark = format!("({})", place + 1);
        if !marks.contains(&mark) {
            marks.push(mark);
        }
    }
    cells.push(if marks.is_empty() {
        String::new()
    } else {
        format!("INVALID {}", marks.concat())
    });
    cells
}

fn ratios(
    tcp: String,
    unix: Option<Interval>,
    pipe: Option<Interval>,
    wide: bool,
) -> impl Iterator<Item = String> {
    let unix = wide.then(|| short(unix));
    [Some(tcp), unix, Some(short(pipe))].into_iter().flatten()
}

fn short(ratio: Option<Interval>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(Interval::ONE) => "1".to_owned(),
        Some(ratio) => digits(ratio.estimate),
    }
}

fn with_interval(ratio: Option<Interval>) -> String {
    match ratio {
        None | Some(Interval::ONE) => short(ratio),
        Some(Interval { estimate, low, high }) => {
            format!("{} [{}, {}]", digits(estimate), digits(low), digits(high))
        }
    }
}

/// Three digits or so, because ratios reach from hundredths to hundreds.
fn digits(value: f64) -> String {
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$}")
}
