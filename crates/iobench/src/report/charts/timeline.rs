//! Draws a run over time: phases, offered and achieved rate, latencies, and the server's CPU.

use crate::report::axis::{self, Axis, Format};
use crate::report::charts::{Chart, LINEAR, Scale, Subject};
use crate::report::number;
use crate::report::plot::{Plot, Point, Stroke};
use crate::report::section::Section;
use crate::results::{Moment, Row};

const HEIGHT: f64 = 190.0;
/// Most moments: more than there are pixels would only make the page large.
const MOST_MOMENTS: usize = 500;

/// A curve of a panel.
struct Curve {
    series: usize,
    stroke: Stroke,
    value: fn(&Moment) -> Option<f64>,
}

/// One of the pictures, which are one below the other.
struct Panel {
    name: &'static str,
    /// The legend of the curves.
    key: &'static str,
    format: Format,
    scale: Scale,
    curves: &'static [Curve],
}

const PANELS: [Panel; 4] = [
    Panel {
        name: "requests/s",
        key: "Rate: solid achieved, dashed offered",
        format: number::plain,
        scale: Scale::Linear,
        curves: &[
            Curve { series: 5, stroke: Stroke::Dashed, value: |m| Some(m.offered_rate) },
            Curve { series: 0, stroke: Stroke::Solid, value: |m| Some(m.throughput) },
        ],
    },
    Panel {
        name: "send lag",
        key: "Send lag: solid 99th percentile, dashed median",
        format: number::time,
        scale: Scale::Log,
        curves: &[
            Curve { series: 1, stroke: Stroke::Dashed, value: |m| m.send_lag_p50_us },
            Curve { series: 1, stroke: Stroke::Solid, value: |m| m.send_lag_p99_us },
        ],
    },
    Panel {
        name: "service time",
        key: "Service time: solid 99th percentile, dashed median",
        format: number::time,
        scale: Scale::Log,
        curves: &[
            Curve { series: 2, stroke: Stroke::Dashed, value: |m| m.service_p50_us },
            Curve { series: 2, stroke: Stroke::Solid, value: |m| m.service_p99_us },
        ],
    },
    Panel {
        name: "server CPU",
        key: "Busy part of the server's CPUs",
        format: axis::share,
        scale: Scale::Linear,
        curves: &[Curve { series: 3, stroke: Stroke::Solid, value: |m| m.server_busy }],
    },
];

/// Returns the chart, with a choice of the rows that have a timeline.
pub(crate) fn chart(section: &Section) -> Option<Chart> {
    let rows: Vec<&Row> = section.rows.iter().filter(|row| !row.timeline.is_empty()).collect();
    let subject = Subject {
        id: format!("{}-timeline", section.id),
        title: "Timeline of the first round".to_owned(),
        caption: "Only the shaded phase is measured.".to_owned(),
        points: rows.iter().map(|row| format!("{} {}", row.subject, section.place(row))).collect(),
        metrics: vec!["everything"],
        scales: LINEAR,
    };
    subject.draw(|point, _, _| draw(section, rows.get(point)?))
}

fn draw(section: &Section, row: &Row) -> Option<String> {
    let every = row.timeline.len().div_ceil(MOST_MOMENTS);
    let last = row.timeline.len() - 1;
    let moments: Vec<&Moment> = row
        .timeline
        .iter()
        .enumerate()
        .filter(|(index, _)| index % every == 0 || *index == last)
        .map(|(_, moment)| moment)
        .collect();
    let about = section.about(&[row]);
    let pictures: Vec<String> = PANELS
        .iter()
        .enumerate()
        .filter_map(|(place, panel)| picture(panel, &moments, (&row.subject, &about), place == 0))
        .collect();
    (!pictures.is_empty()).then(|| pictures.concat())
}

/// Draws a panel. The phases are named in the first picture only, where there is space.
fn picture(
    panel: &Panel,
    moments: &[&Moment],
    (server, about): (&str, &str),
    named: bool,
) -> Option<String> {
    let values: Vec<f64> = panel
        .curves
        .iter()
        .flat_map(|curve| moments.iter().filter_map(|moment| (curve.value)(moment)))
        .collect();
    if values.is_empty() {
        return None;
    }
    let end_s = moments.iter().map(|moment| moment.t_s).fold(0.0, f64::max);
    let x = Axis::exactly(end_s, "since the first connection (s)", number::plain);
    let mut plot = Plot::new(x, panel.scale.axis(&values, panel.name, panel.format), HEIGHT);
    // These series are not servers, so the switches of the servers do not apply to them.
    plot.fix();
    phases(&mut plot, moments, named);
    for curve in panel.curves {
        let points: Vec<Point> = moments
            .iter()
            .filter_map(|moment| {
                let y = (curve.value)(moment)?;
                Some(Point { x: moment.t_s, y, interval: None, valid: true, title: String::new() })
            })
            .collect();
        plot.line(curve.series, &points, curve.stroke, false);
    }
    let most = values.iter().copied().fold(0.0, f64::max);
    plot.describe(&format!("{}; at most {}", panel.key, (panel.format)(most)));
    let picture = plot.svg(&format!("{} of {server} over time", panel.name), about);
    Some(format!("<p class=\"panel\">{}</p>{picture}", panel.key))
}

/// Shades the ranges of the phases.
fn phases(plot: &mut Plot, moments: &[&Moment], named: bool) {
    let mut from_s = 0.0;
    for (index, moment) in moments.iter().enumerate() {
        let next = moments.get(index + 1);
        if next.is_none_or(|next| next.phase != moment.phase) {
            let name = if named { moment.phase.as_str() } else { "" };
            plot.region(from_s, moment.t_s, name, moment.phase == "measure");
            from_s = moment.t_s;
        }
    }
}
