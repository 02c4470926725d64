//! Formats the tables of a comparison, those of further baselines, and the sentences below.

use std::cmp::Reverse;

use crate::engine::statistics::Interval;
use crate::results::Row;
use crate::results::table::{Column, Table, ratio, transactions};

/// Returns the table of all rows, with a block per number of cores and message size.
pub(crate) fn table<'a>(rows: &'a [Row], baseline: &str) -> Table<'a> {
    let legend = format!(
        "Ratios are against {baseline}: mean over rounds [95 % interval]. CPU is the server's; \
         over loopback the kernel receives a packet in its sender's time, so it holds the clients' \
         receive path, too: rank servers by both, the CPU of both sides per transaction. s/GiB is \
         that for the bytes of both directions. {}Slices: clean/discarded.\n",
        idle_legend(rows)
    );
    Table::new(rows, columns(), heading, legend)
}

fn columns() -> Vec<Column> {
    vec![
        Column::right("trans", |row| transactions(row.transactions)),
        Column::right("idle", |row| row.idle.to_string()).optional(),
        Column::left("server", |row| row.subject.clone()),
        Column::figure("k/s", 1, |row| row.throughput.map(|rate| rate / 1e3)),
        Column::figure("GB/s", 2, |row| row.gigabytes_per_s).optional(),
        Column::figure("CPU us", 2, |row| row.server_cpu_us),
        Column::figure("both us", 2, |row| row.cpu_both_us).optional().gives_way(6),
        Column::figure("s/GiB", 3, |row| row.cpu_s_per_gib).optional(),
        Column::figure("calls", 2, |row| row.system_calls).gives_way(5),
        idle_bytes(),
        Column::figure("p50 us", 0, |row| row.p50_us()).gives_way(3),
        Column::figure("p99 us", 0, |row| row.p99_us()).gives_way(4),
        Column::ratio("throughput ratio", |row| row.throughput_ratio),
        Column::ratio("CPU ratio", |row| row.cpu_ratio),
        Column::ratio("both ratio", |row| row.cpu_both_ratio).optional().gives_way(6),
        Column::right("bound", |row| row.bound.clone().unwrap_or_default()).gives_way(2),
        Column::right("slices", |row| slices(row)).gives_way(1),
    ]
}

/// Returns the explanation of the columns about idle connections, if there are any.
pub(crate) fn idle_legend(rows: &[Row]) -> &'static str {
    match rows.iter().any(|row| row.idle > 0) {
        true => {
            "idle: connections that are kept alive without traffic after one transaction; B/idle: \
             bytes of the server's memory for each, without the kernel's. "
        }
        false => "",
    }
}

/// Returns the column of the memory of an idle connection.
pub(crate) fn idle_bytes() -> Column {
    Column::figure("B/idle", 0, |row| row.idle_bytes).optional()
}

/// Returns the numbers of clean and of discarded slices.
pub(crate) fn slices(row: &Row) -> String {
    let slices = row.slices.unwrap_or_default();
    format!("{}/{}", slices.clean, slices.discarded())
}

/// Returns the table of ratios to a further baseline, from the same slots.
pub(crate) fn against<'a>(rows: &'a [Row], baseline: &'a str) -> Table<'a> {
    let columns = vec![
        Column::left("server", |row| row.subject.clone()),
        Column::right("trans", |row| transactions(row.transactions)),
        Column::right("idle", |row| row.idle.to_string()).optional(),
        Column::right("bytes", |row| format!("{}/{}", row.request_bytes, row.response_bytes)),
        Column::right("cores", |row| row.cores.to_string()),
        Column::ratio("throughput ratio", |row| row.throughput_ratio),
        Column::ratio("CPU ratio", |row| row.cpu_ratio),
        Column::ratio("both ratio", |row| row.cpu_both_ratio),
    ];
    Table::new(
        rows,
        columns,
        move |_| format!("Ratios against {baseline}, from the same slots:"),
        "",
    )
}

/// Returns the heading of a block: what its rows have in common.
pub(crate) fn heading(row: &Row) -> String {
    let list = |cpus: &[usize]| {
        let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
        cpus.join(",")
    };
    let (servers, clients) = (list(&row.server_cpus), list(&row.client_cpus));
    format!(
        "{}, {} connections; servers on CPU {servers}, clients on CPU {clients}",
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

/// Returns the conditions of a row: sizes, transactions, cores and idle connections.
pub(crate) fn conditions(row: &Row) -> String {
    let connections = match row.transactions {
        0 => "persistent connections".to_owned(),
        1 => "1 transaction per connection".to_owned(),
        count => format!("{count} transactions per connection"),
    };
    format!("{connections}{}, {}", beside_idle(row, ","), cores_and_sizes(row))
}

/// Returns the number of idle connections of a row, if it has any.
fn beside_idle(row: &Row, separator: &str) -> String {
    match row.idle {
        0 => String::new(),
        1 => format!("{separator} beside 1 idle connection"),
        count => format!("{separator} beside {count} idle connections"),
    }
}

/// At most three sentences that compare each server with the baseline at the most relevant point:
/// the shortest connections on the most cores, beside the most idle connections.
pub(crate) fn summarise<'a>(
    rows: impl IntoIterator<Item = &'a Row, IntoIter: Clone>,
    baseline: &str,
) -> Vec<String> {
    let shortest = |row: &&Row| if row.transactions == 0 { u32::MAX } else { row.transactions };
    let candidates = rows.into_iter().filter(|row| row.subject != baseline);
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
        row.subject,
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
    use crate::engine::slices::SliceCounts;
    use crate::exchange::Exchange;
    use crate::figures::Percentiles;
    use crate::results::{Kind, Ratios, Versus};

    fn render(rows: &[Row], baseline: &str, width: usize) -> String {
        table(rows, baseline).render(width)
    }

    /// Returns a row with plausible figures; the baseline is epoll.
    pub(crate) fn row(server: &str, transactions: u32, ratio: f64) -> Row {
        let interval = Interval { estimate: ratio, low: ratio - 0.1, high: ratio + 0.1 };
        let baseline = server == "epoll";
        let interval = Some(if baseline { Interval::ONE } else { interval });
        let exchange = Exchange::echo(64);
        Row {
            cores: 2,
            server_cpus: vec![0, 1],
            client_cpus: vec![0, 1],
            transactions,
            connections: 256,
            throughput: Some(123_456.0),
            server_cpu_us: Some(4.321),
            cpu_both_us: Some(7.654),
            system_calls: Some(6.0),
            latency_us: Some(Percentiles {
                p1: 0.5,
                p25: 1.0,
                p50: 2.0,
                p75: 3.0,
                p99: 4.0,
                p999: 5.0,
                max: 6.0,
                ..Percentiles::default()
            }),
            throughput_ratio: interval,
            cpu_ratio: interval,
            cpu_both_ratio: interval,
            p50_ratio: interval,
            p99_ratio: interval,
            bound: Some("shared".to_owned()),
            server_busy: Some(0.5),
            client_busy: Some(0.5),
            slices: Some(SliceCounts { clean: 50, delayed: 2, ..SliceCounts::default() }),
            pairs: Some(10),
            ..Row::empty(server, exchange.workload(), Kind::Closed, exchange)
        }
    }

    #[test]
    fn wide_tables_show_everything() {
        let text = render(&[row("epoll", 1, 1.0), row("other", 1, 1.5)], "epoll", 200);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("2 cores, 64-byte messages, 256 connections"), "{text}");
        let nothing_in = ["GB/s", "s/GiB", "idle", "B/idle"];
        for column in columns() {
            let shown = lines[1].contains(column.heading());
            assert_eq!(shown, !nothing_in.contains(&column.heading()), "{text}");
        }
        assert!(lines[3].contains("123.5") && lines[3].contains("1.50 [1.40, 1.60]"), "{text}");
        assert!(lines[2].ends_with("50/2"), "{text}");
    }

    /// Returns a row beside idle connections.
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

    fn render_against(rows: &[Row]) -> String {
        let ratios = |row: &Row| Ratios {
            throughput_ratio: row.throughput_ratio,
            cpu_ratio: row.cpu_ratio,
            cpu_both_ratio: row.cpu_both_ratio,
            p50_ratio: row.p50_ratio,
            p99_ratio: row.p99_ratio,
            valid: row.valid,
        };
        let versus =
            Versus { baseline: "megapipe".to_owned(), results: rows.iter().map(ratios).collect() };
        against(&versus.of(rows), &versus.baseline).render(200)
    }

    #[test]
    fn every_row_has_a_line_against_further_baselines() {
        let mut bad = row("mtcp/mtcp", 0, 0.3);
        bad.valid = false;
        let text = render_against(&[row("epoll", 1, 1.0), bad]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("against megapipe"), "{text}");
        assert!(lines[2].starts_with("epoll"), "{text}");
        assert!(lines[3].contains("persist") && lines[3].ends_with("INVALID"), "{text}");
        assert!(!text.contains("idle"), "{text}");
    }

    #[test]
    fn idle_connections_have_a_column_there_too() {
        let text = render_against(&[row("epoll", 1, 1.0), row_beside("epoll", 200, 1.0)]);
        let words: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0][..4], ["server", "trans", "idle", "bytes"], "{text}");
        assert_eq!(words[1][..4], ["epoll", "1", "0", "64/64"], "{text}");
        assert_eq!(words[2][..4], ["epoll", "1", "200", "64/64"], "{text}");
    }
}
