//! The results for people: a block for every placement and size, a line for every transport, with
//! batching off and on side by side.

use std::fmt::Write;

use crate::engine::statistics::Interval;
use crate::engine::table::{figure, lay_out};
use crate::ipc::row::{PING_PONG, PIPE, UNIX, over_floor};
use crate::results::{Document, Row};

/// Narrower terminals get the table without intervals and without the ratios to UNIX sockets.
const WIDE: usize = 144;

const LEGEND: &str = "\
p50, p99: round trip of a ping-pong in microseconds; x floor: its median over one cache line's.
MB/s: payload one way; CPU us: of both processes per message; by N: the reader is told after N
messages. x tcp, x unix, x pipe: over tcp-blocking, unix-blocking and pipe-blocking, the kernel by
plain calls, in the same rounds and without batching (of a round trip less is better, of throughput
more), mean and 95 % interval over rounds.
";

/// A row with what is derived for it.
struct Entry<'a> {
    row: &'a Row,
    over_floor: Option<f64>,
    /// Against TCP, UNIX sockets and pipes.
    ratios: [Option<Interval>; 3],
}

impl Entry<'_> {
    fn is_ping_pong(&self) -> bool {
        self.row.workload == PING_PONG
    }

    /// The CPUs and the size, which a block has in common.
    fn key(&self) -> (&[usize], &[usize], usize) {
        (&self.row.client_cpus, &self.row.server_cpus, self.row.request_bytes)
    }
}

/// The whole report.
pub(crate) fn render(document: &Document, width: usize) -> String {
    let entries = entries(document);
    let mut text = String::new();
    let mut notes: Vec<String> = Vec::new();
    let mut blocks = Vec::new();
    for entry in &entries {
        if !blocks.contains(&entry.key()) {
            blocks.push(entry.key());
        }
    }
    for wanted in blocks {
        let block: Vec<&Entry<'_>> = entries.iter().filter(|e| e.key() == wanted).collect();
        render_block(&mut text, &block, &mut notes, width);
    }
    text.push_str(LEGEND);
    for (index, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "({}) {note}", index + 1);
    }
    text
}

fn entries(document: &Document) -> Vec<Entry<'_>> {
    let further = |name: &str, place: usize| {
        let versus = document.versus.iter().find(|versus| versus.baseline == name)?;
        let ratios = versus.results.get(place)?;
        ratios.p50_ratio.or(ratios.throughput_ratio)
    };
    let rows = document.results.iter().zip(over_floor(&document.results)).enumerate();
    rows.map(|(place, (row, over_floor))| Entry {
        row,
        over_floor,
        ratios: [
            row.p50_ratio.or(row.throughput_ratio),
            further(UNIX, place),
            further(PIPE, place),
        ],
    })
    .collect()
}

fn render_block(text: &mut String, block: &[&Entry<'_>], notes: &mut Vec<String>, width: usize) {
    let first = block[0].row;
    let (reader, writer) = (first.client_cpus[0], first.server_cpus[0]);
    let siblings = match first.shares_core == Some(true) && reader != writer {
        true => " (threads of one core)",
        false => "",
    };
    let _ = writeln!(
        text,
        "{}, CPU {reader} and {writer}{siblings}, {}-byte messages",
        first.placement.as_deref().unwrap_or_default(),
        first.request_bytes
    );
    let one_way = block.iter().filter(|entry| !entry.is_ping_pong());
    let mut batches: Vec<u32> = one_way.map(|entry| entry.row.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    let wide = width >= WIDE;
    let mut lines = vec![head(&batches, wide)];
    let mut seen: Vec<&str> = Vec::new();
    for entry in block {
        let name = entry.row.subject.as_str();
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let of_subject = block.iter().filter(|other| other.row.subject == name);
        let entries: Vec<&Entry<'_>> = of_subject.copied().collect();
        lines.push(line(&entries, &batches, wide, notes));
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

/// All that was measured of one subject.
fn line(
    entries: &[&Entry<'_>],
    batches: &[u32],
    wide: bool,
    notes: &mut Vec<String>,
) -> Vec<String> {
    let ping = entries.iter().find(|entry| entry.is_ping_pong());
    let times = ping.and_then(|ping| ping.row.latency_us);
    let mut cells = vec![
        entries[0].row.subject.clone(),
        figure(times.map(|times| times.p50), 2),
        figure(times.map(|times| times.p99), 2),
        figure(ping.and_then(|ping| ping.over_floor), 2),
    ];
    cells.extend(ratios(ping, wide, short));
    for batch in batches {
        let is_of_batch = |entry: &&&Entry<'_>| !entry.is_ping_pong() && entry.row.batch == *batch;
        let way = entries.iter().find(is_of_batch);
        let rate = way.and_then(|way| Some(way.row.gigabytes_per_s? * 1e3));
        cells.push(figure(rate, usize::from(rate.is_some_and(|rate| rate < 100.0))));
        cells.push(figure(way.and_then(|way| way.row.cpu_both_us), 2));
        if *batch == 1 {
            cells.extend(ratios(way, wide, if wide { with_interval } else { short }));
        }
    }
    let mut marks: Vec<String> = Vec::new();
    for reason in entries.iter().filter(|entry| !entry.row.valid).map(|e| e.row.notes.join("; ")) {
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

/// The cells of the ratios, the first of which is shown as asked.
fn ratios(
    entry: Option<&&Entry<'_>>,
    wide: bool,
    first: fn(Option<Interval>) -> String,
) -> impl Iterator<Item = String> {
    let [tcp, unix, pipe] = entry.map(|entry| entry.ratios).unwrap_or_default();
    [Some(first(tcp)), wide.then(|| short(unix)), Some(short(pipe))].into_iter().flatten()
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
