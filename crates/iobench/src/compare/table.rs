//! The results for people: a block per core count and message size, then notes, then sentences.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use crate::compare::report::Row;
use crate::engine::statistics::Interval;
use crate::engine::table::{figure, ratio};

/// A column's heading, its value, and the order in which columns give way on narrow terminals
/// (0 stays always).
struct Column {
    heading: &'static str,
    value: fn(&Row) -> String,
    left_aligned: bool,
    gives_way: u8,
    /// Left out where no row has anything but nothing or zero in it.
    optional: bool,
}

/// The last to give way.
const LAST_TO_GIVE_WAY: u8 = 6;

const COLUMNS: [Column; 16] = [
    column("trans", |row| transactions(row.transactions), 0),
    optional("idle", |row| row.idle.to_string(), 0),
    Column { left_aligned: true, ..column("server", |row| row.server.clone(), 0) },
    column("k/s", |row| figure(row.throughput.map(|value| value / 1e3), 1), 0),
    optional("GB/s", |row| figure(row.gigabytes_per_s, 2), 0),
    column("CPU us", |row| figure(row.server_cpu_us, 2), 0),
    optional("both us", |row| figure(row.cpu_both_us, 2), 6),
    optional("s/GiB", |row| figure(row.cpu_s_per_gib, 3), 0),
    column("calls", |row| figure(row.system_calls, 2), 5),
    column("p50 us", |row| figure(row.latency_us.map(|latency| latency.p50), 0), 3),
    column("p99 us", |row| figure(row.latency_us.map(|latency| latency.p99), 0), 4),
    column("throughput ratio", |row| ratio(row.throughput_ratio), 0),
    column("CPU ratio", |row| ratio(row.cpu_ratio), 0),
    optional("both ratio", |row| ratio(row.cpu_both_ratio), 6),
    column("bound", |row| row.bound.name().to_owned(), 2),
    column("slices", |row| format!("{}/{}", row.slices.clean, row.slices.discarded), 1),
];

const fn column(heading: &'static str, value: fn(&Row) -> String, gives_way: u8) -> Column {
    Column { heading, value, left_aligned: false, gives_way, optional: false }
}

const fn optional(heading: &'static str, value: fn(&Row) -> String, gives_way: u8) -> Column {
    Column { optional: true, ..column(heading, value, gives_way) }
}

/// "1", "128", or a word for 0.
pub(crate) fn transactions(count: u32) -> String {
    if count == 0 { "persist".to_owned() } else { count.to_string() }
}

/// The whole report, at most `width` wide where columns can give way.
pub(crate) fn render(rows: &[Row], baseline: &str, width: usize) -> String {
    let mut text = String::new();
    let mut notes = Notes::default();
    let key = |row: &Row| (row.cores, row.request_bytes, row.response_bytes);
    let mut blocks = Vec::new();
    for row in rows {
        if !blocks.contains(&key(row)) {
            blocks.push(key(row));
        }
    }
    let mut dropped = Vec::new();
    for wanted in blocks {
        let block: Vec<&Row> = rows.iter().filter(|row| key(row) == wanted).collect();
        text.push_str(&heading(block[0]));
        dropped = render_block(&mut text, &block, &mut notes, width);
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "Ratios are against {baseline}: mean over rounds [95 % interval]. CPU is the server's; \
         over loopback the kernel receives a packet in its sender's time, so it holds the clients' \
         receive path, too: rank servers by both, the CPU of both sides per transaction. s/GiB is \
         that for the bytes of both directions. Slices: clean/discarded."
    );
    if !dropped.is_empty() {
        let _ = writeln!(text, "Too narrow for: {}; see --json.", dropped.join(", "));
    }
    notes.render(&mut text);
    text
}

fn heading(row: &Row) -> String {
    let list = |cpus: &[usize]| {
        let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
        cpus.join(",")
    };
    let (servers, clients) = (list(&row.server_cpus), list(&row.client_cpus));
    format!(
        "{}, {} connections; servers on CPU {servers}, clients on CPU {clients}\n",
        cores_and_sizes(row),
        row.connections
    )
}

fn cores_and_sizes(row: &Row) -> String {
    let plural = if row.cores == 1 { "" } else { "s" };
    let sizes = match (row.request_bytes, row.response_bytes) {
        (request, response) if request == response => format!("{request}-byte messages"),
        (request, response) => format!("{request}-byte requests, {response}-byte answers"),
    };
    format!("{} core{plural}, {sizes}", row.cores)
}

/// What was asked of the servers of a row.
pub(crate) fn conditions(row: &Row) -> String {
    let connections = match row.transactions {
        0 => "persistent connections".to_owned(),
        1 => "1 transaction per connection".to_owned(),
        count => format!("{count} transactions per connection"),
    };
    format!("{connections}{}, {}", beside_idle(row, ","), cores_and_sizes(row))
}

/// The idle connections of a row, if it has any.
fn beside_idle(row: &Row, separator: &str) -> String {
    match row.idle {
        0 => String::new(),
        1 => format!("{separator} beside 1 idle connection"),
        count => format!("{separator} beside {count} idle connections"),
    }
}

/// Appends a block and returns the headings that did not fit.
fn render_block(
    text: &mut String,
    rows: &[&Row],
    notes: &mut Notes,
    width: usize,
) -> Vec<&'static str> {
    let marks: Vec<String> = rows.iter().map(|row| notes.mark(row)).collect();
    let mark_width = marks.iter().map(String::len).max().unwrap_or(0);
    let cells: Vec<Vec<String>> =
        COLUMNS.iter().map(|column| rows.iter().map(|row| (column.value)(row)).collect()).collect();
    let widths: Vec<usize> = COLUMNS
        .iter()
        .zip(&cells)
        .map(|(column, cells)| {
            cells.iter().map(String::len).chain([column.heading.len()]).max().unwrap_or(0)
        })
        .collect();
    let wanted = (0..COLUMNS.len()).filter(|&index| {
        let is_empty = |cell: &String| cell == "-" || cell == "0";
        !COLUMNS[index].optional || !cells[index].iter().all(is_empty)
    });
    let (shown, dropped) = fit(wanted.collect(), &widths, width.saturating_sub(mark_width));
    let mut line = |cell: &dyn Fn(usize) -> String, mark: &str| {
        let mut line = String::new();
        for &index in &shown {
            let (cell, width) = (cell(index), widths[index]);
            if COLUMNS[index].left_aligned {
                let _ = write!(line, "{cell:<width$}  ");
            } else {
                let _ = write!(line, "{cell:>width$}  ");
            }
        }
        line.push_str(mark);
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&|index| COLUMNS[index].heading.to_owned(), "");
    for (row, mark) in marks.iter().enumerate() {
        line(&|index| cells[index][row].clone(), mark);
    }
    dropped
}

/// Chooses the columns that fit: (indices shown, headings dropped).
fn fit(mut shown: Vec<usize>, widths: &[usize], width: usize) -> (Vec<usize>, Vec<&'static str>) {
    let mut dropped = Vec::new();
    for stage in 1..=LAST_TO_GIVE_WAY {
        let total: usize = shown.iter().map(|&index| widths[index] + 2).sum();
        if total <= width {
            break;
        }
        let gives_way = |index: &usize| COLUMNS[*index].gives_way == stage;
        dropped.extend(shown.iter().filter(|i| gives_way(i)).map(|&i| COLUMNS[i].heading));
        shown.retain(|index| !gives_way(index));
    }
    (shown, dropped)
}

/// Numbered notes of invalid rows; rows with the same notes share a number.
#[derive(Default)]
struct Notes {
    numbers: BTreeMap<Vec<String>, usize>,
}

impl Notes {
    fn mark(&mut self, row: &Row) -> String {
        if row.valid {
            return String::new();
        }
        let next = self.numbers.len() + 1;
        let number = *self.numbers.entry(row.notes.clone()).or_insert(next);
        format!("INVALID ({number})")
    }

    fn render(&self, text: &mut String) {
        let mut numbered: Vec<_> = self.numbers.iter().collect();
        numbered.sort_by_key(|(_, number)| **number);
        for (notes, number) in numbered {
            let _ = writeln!(text, "({number}) {}", notes.join("; "));
        }
    }
}

/// At most three plain sentences: how each server did against the baseline where it matters most,
/// with the shortest connections on the most cores, beside the most idle ones.
pub(crate) fn summarise(rows: &[Row], baseline: &str) -> Vec<String> {
    let shortest = |row: &&Row| if row.transactions == 0 { u32::MAX } else { row.transactions };
    let candidates = rows.iter().filter(|row| row.server != baseline);
    let Some(cores) = candidates.clone().map(|row| row.cores).max() else { return Vec::new() };
    let on_most_cores = candidates.filter(|row| row.cores == cores);
    let size = |row: &Row| row.request_bytes + row.response_bytes;
    let rank = |row: &&Row| (shortest(row), size(row), Reverse(row.idle));
    let Some(shown) = on_most_cores.clone().min_by_key(rank) else { return Vec::new() };
    let key = |row: &Row| (row.transactions, row.request_bytes, row.response_bytes, row.idle);
    on_most_cores
        .filter(|row| key(row) == key(shown))
        .take(3)
        .map(|row| sentence(row, baseline))
        .collect()
}

fn sentence(row: &Row, baseline: &str) -> String {
    let connections = match row.transactions {
        0 => "on persistent connections".to_owned(),
        1 => "at 1 transaction per connection".to_owned(),
        count => format!("at {count} transactions per connection"),
    };
    let plural = if row.cores == 1 { "" } else { "s" };
    let what = format!(
        "{} against {baseline} {connections}{} on {} core{plural}",
        row.server,
        beside_idle(row, ""),
        row.cores
    );
    let (Some(throughput), Some(cpu)) = (row.throughput_ratio, row.cpu_ratio) else {
        return format!("{what}: nothing can be said, see the notes.");
    };
    let verdict = |interval: Interval| {
        if interval.contains(1.0) { " (no difference shown)" } else { "" }
    };
    let caveat = if row.valid { "" } else { " NOT VALID, see the notes." };
    format!(
        "{what}: throughput x{}{}, CPU per transaction x{}{}.{caveat}",
        ratio(Some(throughput)),
        verdict(throughput),
        ratio(Some(cpu)),
        verdict(cpu)
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compare::report::{Bound, Doubts, SliceSummary};
    use crate::engine::outcome::Accounts;
    use crate::figures::Percentiles;

    /// A plausible row; the baseline is epoll.
    pub(crate) fn row(server: &str, transactions: u32, ratio: f64) -> Row {
        let interval = Interval { estimate: ratio, low: ratio - 0.1, high: ratio + 0.1 };
        let baseline = server == "epoll";
        let interval = Some(if baseline { Interval::ONE } else { interval });
        Row {
            server: server.to_owned(),
            path: None,
            cores: 2,
            server_cpus: vec![0, 1],
            client_cpus: vec![0, 1],
            transactions,
            idle: 0,
            request_bytes: 64,
            response_bytes: 64,
            connections: 256,
            throughput: Some(123_456.0),
            server_cpu_us: Some(4.321),
            cpu_both_us: Some(7.654),
            gigabytes_per_s: None,
            cpu_s_per_gib: None,
            system_calls: Some(6.0),
            latency_us: Some(Percentiles {
                p1: 0.5,
                p25: 1.0,
                p50: 2.0,
                p75: 3.0,
                p99: 4.0,
                p999: 5.0,
                max: 6.0,
            }),
            throughput_ratio: interval,
            cpu_ratio: interval,
            cpu_both_ratio: interval,
            p50_ratio: interval,
            p99_ratio: interval,
            bound: Bound::Shared,
            server_busy: Some(0.5),
            client_busy: Some(0.5),
            congestion: None,
            valid: true,
            notes: Vec::new(),
            slices: SliceSummary { clean: 50, discarded: 2 },
            pairs: 10,
            accounts: Accounts::default(),
            doubts: Doubts::default(),
        }
    }

    #[test]
    fn wide_tables_show_everything() {
        let text = render(&[row("epoll", 1, 1.0), row("other", 1, 1.5)], "epoll", 200);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("2 cores, 64-byte messages, 256 connections"), "{text}");
        let nothing_in = ["GB/s", "s/GiB", "idle"];
        for column in &COLUMNS {
            let shown = lines[1].contains(column.heading);
            assert_eq!(shown, !nothing_in.contains(&column.heading), "{text}");
        }
        assert!(lines[3].contains("123.5") && lines[3].contains("1.50 [1.40, 1.60]"), "{text}");
        assert!(lines[2].ends_with("50/2"), "{text}");
    }

    /// A row beside idle connections.
    pub(crate) fn row_beside(server: &str, idle: usize, ratio: f64) -> Row {
        Row { idle, ..row(server, 1, ratio) }
    }

    #[test]
    fn idle_connections_have_a_column_where_there_are_any() {
        let rows = [row("epoll", 1, 1.0), row_beside("epoll", 50_000, 1.0)];
        let text = render(&rows, "epoll", 80);
        let words: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0][..3], ["trans", "idle", "server"], "{text}");
        assert_eq!(words[1][..3], ["1", "0", "epoll"], "{text}");
        assert_eq!(words[2][..3], ["1", "50000", "epoll"], "{text}");
        assert!(!render(&rows[..1], "epoll", 80).contains("idle"), "{text}");
        for (idle, beside) in
            [(0, ""), (1, " beside 1 idle connection,"), (8, " beside 8 idle connections,")]
        {
            let expected =
                format!("1 transaction per connection,{beside} 2 cores, 64-byte messages");
            assert_eq!(conditions(&row_beside("epoll", idle, 1.0)), expected);
        }
    }

    #[test]
    fn sentences_speak_of_the_most_idle_connections() {
        let rows = [
            row("epoll", 1, 1.0),
            row("other", 1, 1.5),
            row_beside("epoll", 8_000, 1.0),
            row_beside("other", 8_000, 1.25),
            row_beside("other", 200, 1.4),
        ];
        assert_eq!(
            summarise(&rows, "epoll"),
            ["other against epoll at 1 transaction per connection beside 8000 idle connections \
              on 2 cores: throughput x1.25 [1.15, 1.35], CPU per transaction x1.25 [1.15, 1.35]."]
        );
    }

    #[test]
    fn every_size_has_a_block_of_its_own() {
        let mut large = row("epoll", 1, 1.0);
        large.response_bytes = 4_096;
        (large.gigabytes_per_s, large.cpu_s_per_gib) = (Some(1.25), Some(0.5));
        let text = render(&[row("epoll", 1, 1.0), large], "epoll", 200);
        assert!(text.contains("64-byte messages"), "{text}");
        assert!(text.contains("64-byte requests, 4096-byte answers"), "{text}");
        assert_eq!([text.matches("GB/s").count(), text.matches("1.25").count()], [1, 1], "{text}");
    }

    #[test]
    fn narrow_tables_keep_the_ratios() {
        let text = render(&[row("epoll", 1, 1.0), row("other", 0, 1.5)], "epoll", 80);
        let table: Vec<&str> = text.lines().skip(1).take(3).collect();
        assert!(table.iter().all(|line| line.len() <= 80), "{text}");
        assert!(table[0].contains("CPU ratio") && !table[0].contains("slices"), "{text}");
        assert!(table[2].contains("persist"), "{text}");
        assert!(text.contains("Too narrow for: slices"), "{text}");
    }

    #[test]
    fn invalid_rows_are_marked_and_explained_once() {
        let mut bad = row("other", 1, 1.5);
        bad.valid = false;
        bad.notes = vec!["it rained".to_owned()];
        bad.throughput = None;
        let mut worse = bad.clone();
        worse.transactions = 8;
        let text = render(&[row("epoll", 1, 1.0), bad, worse], "epoll", 200);
        assert_eq!(text.matches("INVALID (1)").count(), 2, "{text}");
        assert_eq!(text.matches("it rained").count(), 1, "{text}");
    }

    #[test]
    fn sentences_speak_of_the_shortest_connections() {
        let rows = [
            row("epoll", 0, 1.0),
            row("other", 0, 1.05),
            row("epoll", 1, 1.0),
            row("other", 1, 1.5),
        ];
        let sentences = summarise(&rows, "epoll");
        assert_eq!(
            sentences,
            ["other against epoll at 1 transaction per connection on 2 cores: throughput \
              x1.50 [1.40, 1.60], CPU per transaction x1.50 [1.40, 1.60]."]
        );
        let tie = summarise(&rows[..2], "epoll");
        assert!(tie[0].contains("persistent") && tie[0].contains("no difference shown"), "{tie:?}");
        assert!(summarise(&rows[..1], "epoll").is_empty());
    }
}
