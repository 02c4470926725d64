//! Draws latency against offered load, and marks the knee.

use crate::report::axis::Axis;
use crate::report::charts::{BOTH_SCALES, Chart, DOUBTFUL, Scale, Subject, interval, whose};
use crate::report::number;
use crate::report::plot::{Plot, Point, Stroke};
use crate::report::point::{self, Dimension, Group};
use crate::report::section::Section;
use crate::results::{Kind, RoundFigures, Row};

const HEIGHT: f64 = 400.0;
/// Beyond the knee a server answers less than this part of the offered requests …
const KEPT_UP: f64 = 0.98;
/// … or its 99th percentile is this many times that at the lowest load.
const STEEP: f64 = 10.0;

/// A figure against the load.
struct Metric {
    name: &'static str,
    of_row: fn(&Row) -> Option<f64>,
    of_round: fn(&RoundFigures) -> Option<f64>,
    format: fn(f64) -> String,
}

const METRICS: [Metric; 3] = [
    Metric {
        name: "99th percentile",
        of_row: |row| Some(row.latency_us?.p99),
        of_round: |round| Some(round.latency_us?.p99),
        format: number::time,
    },
    Metric {
        name: "median",
        of_row: |row| Some(row.latency_us?.p50),
        of_round: |round| Some(round.latency_us?.p50),
        format: number::time,
    },
    Metric {
        name: "answers per second",
        of_row: |row| row.throughput,
        of_round: |round| round.throughput,
        format: number::plain,
    },
];

/// Returns the chart; `None` unless the sweep has several loads.
pub(crate) fn chart(section: &Section) -> Option<Chart> {
    let rows = section.of_kinds(&[Kind::Open, Kind::Churn]);
    let rows: Vec<&Row> = rows.into_iter().filter(|row| row.request_rate.is_some()).collect();
    let mut groups = point::groups(&rows, &[Dimension::Rate]);
    groups.retain(|group| point::values(Dimension::Rate, &group.rows).len() > 1);
    let subject = Subject {
        id: format!("{}-load", section.id),
        title: "Latency against offered load".to_owned(),
        caption: format!(
            "Bands and whiskers: 95 % intervals over rounds. The knee is the highest load up to \
             which a server answers {} % of what is offered, with a 99th percentile of at most \
             {STEEP} times that at the lowest load; a server without one did not reach it. \
             {DOUBTFUL}",
            KEPT_UP * 100.0
        ),
        points: groups.iter().map(|group| group.label.clone()).collect(),
        metrics: METRICS.iter().map(|metric| metric.name).collect(),
        scales: BOTH_SCALES,
    };
    subject.draw(|point, metric, scale| draw(section, groups.get(point)?, &METRICS[metric], scale))
}

fn draw(section: &Section, group: &Group<'_>, metric: &Metric, scale: Scale) -> Option<String> {
    let lines: Vec<(usize, Vec<&Row>)> = section
        .servers
        .iter()
        .enumerate()
        .map(|(series, server)| (series, line(group, server, metric)))
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    let of_row = |row: &Row| (metric.of_row)(row).unwrap_or(f64::NAN);
    let bounds = |row: &Row| interval(row, (metric.of_row)(row), metric.of_round);
    let rows = || lines.iter().flat_map(|(_, rows)| rows.iter().copied());
    let highs = rows().filter_map(|row| Some(bounds(row)?.1));
    let lows = rows().filter_map(|row| Some(bounds(row)?.0));
    let all: Vec<f64> = rows().map(of_row).chain(highs).chain(lows).collect();
    if all.is_empty() {
        return None;
    }
    let rate = |row: &Row| row.request_rate.unwrap_or(0.0);
    let most = rows().map(rate).fold(0.0, f64::max);
    let is_churn = group.rows.iter().all(|row| row.kind == Kind::Churn);
    let offered = if is_churn { "connections" } else { "requests" };
    let x = Axis::from_zero(most, &format!("offered {offered} per second"), number::plain);
    let mut plot = Plot::new(x, scale.axis(&all, metric.name, metric.format), HEIGHT);
    for (series, rows) in &lines {
        let points: Vec<Point> = rows
            .iter()
            .map(|row| Point {
                x: rate(row),
                y: of_row(row),
                interval: bounds(row),
                valid: row.valid,
                title: format!(
                    "{}, offered {}: {} {}",
                    whose(section, row),
                    number::plain(rate(row)),
                    metric.name,
                    (metric.format)(of_row(row))
                ),
            })
            .collect();
        plot.line(*series, &points, Stroke::Solid, true);
        if let Some(knee) = knee(rows) {
            plot.flag(*series, rate(knee), of_row(knee), "knee");
        }
    }
    let name = format!("{} against offered load, {}", metric.name, group.label);
    Some(plot.svg(&name, &section.about(&group.rows)))
}

/// Returns a server's rows that have the figure, by load.
fn line<'a>(group: &Group<'a>, server: &str, metric: &Metric) -> Vec<&'a Row> {
    let mut rows: Vec<&Row> = group
        .rows
        .iter()
        .copied()
        .filter(|row| row.subject == server && (metric.of_row)(row).is_some())
        .collect();
    rows.sort_by(|a, b| Dimension::Rate.rank(a).total_cmp(&Dimension::Rate.rank(b)));
    rows
}

/// Returns the last valid row before the knee; `None` if the server has none, or has it at the
/// first row.
fn knee<'a>(rows: &[&'a Row]) -> Option<&'a Row> {
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.valid).collect();
    let first = rows.first()?.latency_us?.p99;
    let gives_way = |row: &&Row| {
        let behind = match (row.throughput, row.request_rate, row.kind) {
            (Some(achieved), Some(offered), Kind::Open | Kind::Churn) => {
                achieved < KEPT_UP * offered
            }
            _ => false,
        };
        behind || row.latency_us.is_some_and(|service| service.p99 > STEEP * first)
    };
    rows.iter().position(gives_way)?.checked_sub(1).map(|last| rows[last])
}
