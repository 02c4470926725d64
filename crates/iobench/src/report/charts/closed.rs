//! Draws closed loops: throughput and CPU by transactions per connection, message size, or cores,
//! as in Figures 2.1, 5.1 and 5.2 and Table 5.1 of the MegaPipe report.

use crate::engine::statistics::Interval;
use crate::report::axis::Axis;
use crate::report::charts::{Chart, DOUBTFUL, LINEAR, Subject, interval, is_transport, whose};
use crate::report::number;
use crate::report::plot::{Plot, Point, Stroke};
use crate::report::point::{self, Dimension, Group};
use crate::report::section::Section;
use crate::results::{Kind, RoundFigures, Row};

const HEIGHT: f64 = 380.0;
const AXES: [Dimension; 5] = [
    Dimension::Transactions,
    Dimension::Idle,
    Dimension::RequestBytes,
    Dimension::Cores,
    Dimension::Connections,
];

/// A figure and, if known, its interval.
type Value = (f64, Option<(f64, f64)>);

/// A figure of a row.
struct Metric {
    name: &'static str,
    value: fn(&Row) -> Option<Value>,
    format: fn(f64) -> String,
    is_ratio: bool,
}

const METRICS: [Metric; 5] = [
    Metric {
        name: "transactions per second",
        value: |row| of_rounds(row, row.throughput, |round| round.throughput),
        format: number::plain,
        is_ratio: false,
    },
    Metric {
        name: "throughput against the baseline",
        value: |row| of_ratio(row.throughput_ratio),
        format: times,
        is_ratio: true,
    },
    Metric {
        name: "server CPU per transaction",
        value: |row| of_rounds(row, row.server_cpu_us, |round| round.server_cpu_us),
        format: number::time,
        is_ratio: false,
    },
    Metric {
        name: "server CPU against the baseline",
        value: |row| of_ratio(row.cpu_ratio),
        format: times,
        is_ratio: true,
    },
    Metric {
        name: "transactions per second and core",
        value: |row| {
            let cores = row.cores.max(1) as f64;
            let (value, bounds) = of_rounds(row, row.throughput, |round| round.throughput)?;
            Some((value / cores, bounds.map(|(low, high)| (low / cores, high / cores))))
        },
        format: number::plain,
        is_ratio: false,
    },
];

fn times(value: f64) -> String {
    format!("×{}", number::plain(value))
}

fn of_rounds(
    row: &Row,
    figure: Option<f64>,
    of_round: fn(&RoundFigures) -> Option<f64>,
) -> Option<Value> {
    Some((figure?, interval(row, figure, of_round)))
}

fn of_ratio(ratio: Option<Interval>) -> Option<Value> {
    ratio.map(|ratio| (ratio.estimate, Some((ratio.low, ratio.high))))
}

/// Returns a chart for each axis that varies in the sweep; for a single point, one over
/// connections.
pub(crate) fn charts(section: &Section) -> Vec<Chart> {
    let mut rows = section.of_kinds(&[Kind::Closed]);
    rows.retain(|row| !is_transport(row));
    let moves = |axis: &Dimension| point::values(*axis, &rows).len() > 1;
    let mut axes: Vec<Dimension> = AXES.into_iter().filter(moves).collect();
    if axes.is_empty() {
        axes.push(Dimension::Connections);
    }
    axes.into_iter().filter_map(|axis| chart(section, &rows, axis)).collect()
}

fn chart(section: &Section, rows: &[&Row], axis: Dimension) -> Option<Chart> {
    // Responses grow with requests in a sweep of sizes, so they must not split the groups.
    let left_out = match axis {
        Dimension::RequestBytes => vec![axis, Dimension::ResponseBytes],
        _ => vec![axis],
    };
    let mut groups = point::groups(rows, &left_out);
    if groups.iter().any(|group| point::values(axis, &group.rows).len() > 1) {
        groups.retain(|group| point::values(axis, &group.rows).len() > 1);
    }
    let per_core = axis == Dimension::Cores;
    let metrics = &METRICS[..if per_core { METRICS.len() } else { METRICS.len() - 1 }];
    let subject = Subject {
        id: format!("{}-closed-{}", section.id, axis.name().replace(' ', "-")),
        title: format!("Throughput and CPU by {}", axis.name()),
        caption: format!(
            "The baseline is {}. Whiskers and bands: 95 % intervals over rounds. {DOUBTFUL}",
            section.baseline
        ),
        points: groups.iter().map(|group| group.label.clone()).collect(),
        metrics: metrics.iter().map(|metric| metric.name).collect(),
        scales: LINEAR,
    };
    subject.draw(|point, metric, _| draw(section, groups.get(point)?, axis, &metrics[metric]))
}

fn draw(section: &Section, group: &Group<'_>, axis: Dimension, metric: &Metric) -> Option<String> {
    let names: Vec<String> =
        point::values(axis, &group.rows).into_iter().map(|(_, text)| text).collect();
    let found: Vec<f64> = group
        .rows
        .iter()
        .filter_map(|row| (metric.value)(row))
        .map(|(value, bounds)| bounds.map_or(value, |(_, high)| high.max(value)))
        .collect();
    if found.is_empty() {
        return None;
    }
    let high = found.iter().copied().fold(if metric.is_ratio { 1.0 } else { 0.0 }, f64::max);
    let x = Axis::categories(&names, axis.name());
    let label = if metric.is_ratio { " (ratio)" } else { "" };
    let y = Axis::from_zero(high, &format!("{}{label}", metric.name), metric.format);
    let mut plot = Plot::new(x, y, HEIGHT);
    let as_lines = !metric.is_ratio && names.len() > 2;
    let slot = 0.84 / section.servers.len() as f64;
    for (series, server) in section.servers.iter().enumerate() {
        let mut points: Vec<Point> = group
            .rows
            .iter()
            .filter(|row| row.subject == *server)
            .filter_map(|row| mark(section, row, &names, axis, metric))
            .collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        if as_lines {
            plot.line(series, &points, Stroke::Solid, true);
            continue;
        }
        for mut point in points {
            point.x += 0.08 - 0.5 + (series as f64 + 0.5) * slot;
            plot.bar(series, (slot * 0.82).min(0.2), &point);
        }
    }
    if metric.is_ratio {
        plot.reference(1.0);
    }
    let name = format!("{} by {}, {}", metric.name, axis.name(), group.label);
    Some(plot.svg(&name, &section.about(&group.rows)))
}

/// Returns a row's mark at the centre of its category.
fn mark(
    section: &Section,
    row: &Row,
    names: &[String],
    axis: Dimension,
    metric: &Metric,
) -> Option<Point> {
    let (y, interval) = (metric.value)(row)?;
    let category = names.iter().position(|name| *name == axis.value(row))?;
    let bounds = match interval {
        Some((low, high)) => format!(" [{}, {}]", (metric.format)(low), (metric.format)(high)),
        None => String::new(),
    };
    Some(Point {
        x: category as f64 + 0.5,
        y,
        interval,
        valid: row.valid,
        title: format!("{}: {} {}{bounds}", whose(section, row), metric.name, (metric.format)(y)),
    })
}
