//! The results for people: a block per point that servers are compared at, then the notes.

use std::fmt::Write;

use crate::engine::table::{figure, ratio};
use crate::figures::Percentiles;
use crate::results::{Document, Kind, Row};

/// The whole report.
pub(crate) fn render(document: &Document) -> String {
    let mut text = format!(
        "{}\n\n{} ({})\n",
        document.environment.describe(),
        document.experiment.title,
        document.experiment.scale
    );
    let mut notes: Vec<&str> = Vec::new();
    let mut heading = String::new();
    for row in &document.results {
        let own = heading_of(row);
        if own != heading {
            let _ = writeln!(text, "\n{own}\n{}", columns(row.kind));
            heading = own;
        }
        let marks = marks(row, &mut notes);
        let _ = writeln!(text, "{}{marks}", line(row));
    }
    let _ = writeln!(
        text,
        "\ntimes in us: service time from the intended send time; lag: send lag, recv: receive \
         lag at the median, both part of it; CPU: server CPU per request; \
         ratios to {}, mean [95 % interval] over rounds",
        document.baseline
    );
    for (number, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "{}) {note}", number + 1);
    }
    let invalid = document.results.iter().filter(|row| !row.valid).count();
    let _ = match invalid {
        0 => writeln!(text, "all {} rows are valid", document.results.len()),
        _ => writeln!(text, "{invalid} of {} rows are INVALID", document.results.len()),
    };
    text
}

/// What the rows of a block have in common.
fn heading_of(row: &Row) -> String {
    let cores = if row.cores == 1 { "core" } else { "cores" };
    let mut text = match (row.kind, row.request_rate) {
        (Kind::Open, Some(rate)) => format!("{} connections, {rate} requests/s", row.connections),
        (Kind::Churn, Some(rate)) => {
            format!("{rate} connections/s, {} each", requests(row.transactions))
        }
        _ if row.transactions == 0 => format!("{} persistent connections", row.connections),
        _ => format!("{} connections, {} each", row.connections, requests(row.transactions)),
    };
    let _ = write!(
        text,
        ", {} B there and {} B back, {} server {cores}",
        row.request_bytes, row.response_bytes, row.cores
    );
    if row.work != "none" {
        let _ = write!(text, ", work {}", row.work);
    }
    if let Some(network) = &row.network {
        let _ = write!(text, ", {network}");
    }
    text
}

fn requests(count: u32) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}

/// What a block's last columns are: for a closed loop there is no send lag, but a limit.
fn columns(kind: Kind) -> String {
    let ([first, second, third], ratio) = match kind {
        Kind::Closed => (["bound", "", ""], "throughput ratio"),
        _ => (["lag p50", "p99", "recv"], "p50 ratio"),
    };
    laid_out(
        ["server", "k/s", "p1", "p25", "p50", "p75", "p99", "CPU", first, second, third],
        ratio,
        "CPU ratio",
    )
}

fn line(row: &Row) -> String {
    let at = |percentiles: Option<Percentiles>, pick: fn(&Percentiles) -> f64| {
        percentiles.as_ref().map(pick)
    };
    let service = row.latency_us;
    let rate = row.throughput.map(|rate| rate / 1e3);
    let lag = match &row.bound {
        Some(bound) => [bound.clone(), String::new(), String::new()],
        None => [
            figure(at(row.send_lag_us, |p| p.p50), 1),
            figure(at(row.send_lag_us, |p| p.p99), 1),
            figure(at(row.receive_lag_us, |p| p.p50), 1),
        ],
    };
    let cells = [
        row.subject.as_str(),
        &figure(rate, 2),
        &figure(at(service, |p| p.p1), 0),
        &figure(at(service, |p| p.p25), 0),
        &figure(at(service, |p| p.p50), 0),
        &figure(at(service, |p| p.p75), 0),
        &figure(at(service, |p| p.p99), 0),
        &figure(row.server_cpu_us, 2),
        &lag[0],
        &lag[1],
        &lag[2],
    ];
    let first = if row.kind == Kind::Closed { row.throughput_ratio } else { row.p50_ratio };
    laid_out(cells, &ratio(first), &ratio(row.cpu_ratio))
}

/// A line of the table: the server's name, ten figures, two ratios.
fn laid_out(cells: [&str; 11], first: &str, second: &str) -> String {
    let mut text = format!("{:18} {:>8}", cells[0], cells[1]);
    for cell in &cells[2..] {
        let _ = write!(text, " {cell:>7}");
    }
    let _ = write!(text, "  {first:19} {second:19}");
    text.trim_end().to_owned()
}

/// The row's verdict and the numbers of its notes.
fn marks<'a>(row: &'a Row, notes: &mut Vec<&'a str>) -> String {
    let mut text = if row.valid { String::new() } else { " INVALID".to_owned() };
    for note in &row.notes {
        let number = notes.iter().position(|known| known == note).unwrap_or_else(|| {
            notes.push(note);
            notes.len() - 1
        });
        let _ = write!(text, " {})", number + 1);
    }
    text
}
