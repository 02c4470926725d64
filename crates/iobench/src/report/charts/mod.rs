//! Selects the charts of a section. Each is drawn once for every combination of a reader's choices,
//! so that the page only has to show one picture and hide the others.

mod bars;
mod candles;
mod closed;
mod curve;
mod heat;
mod load;

use serde::Serialize;

use crate::engine::statistics::ratio_interval;
use crate::error::Result;
use crate::figures::Percentiles;
use crate::report::axis::{Axis, Format};
use crate::report::section::Section;
use crate::results::{RoundFigures, Row};

/// End of the captions of charts with marks.
const DOUBTFUL: &str = "Hollow marks and dotted lines are not valid.";
/// Most points of a sweep among which a chart offers a choice.
const MOST_POINTS: usize = 60;
/// A chart with its choices for the reader.
#[derive(Debug, Serialize)]
pub(crate) struct Chart {
    pub(crate) id: String,
    title: String,
    caption: String,
    choices: Vec<Choice>,
    views: Vec<View>,
}

/// One choice for the reader.
#[derive(Debug, Serialize)]
struct Choice {
    name: &'static str,
    label: &'static str,
    options: Vec<String>,
    chosen: usize,
}

/// The picture, or pictures one below the other, for one combination of choices.
#[derive(Debug, Serialize)]
struct View {
    /// The indices of the chosen options, joined by dashes.
    key: String,
    svg: String,
    shown: bool,
}

/// The content of a chart.
struct Subject<'a> {
    id: String,
    title: String,
    caption: String,
    points: Vec<String>,
    metrics: Vec<&'a str>,
    scales: &'static [Scale],
}

/// The scale of the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    Log,
}

impl Scale {
    fn name(self) -> &'static str {
        match self {
            Scale::Linear => "linear",
            Scale::Log => "logarithmic",
        }
    }

    /// Returns an axis for the values; the logarithmic one ignores zeros.
    fn axis(self, values: &[f64], label: &str, format: Format) -> Axis {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let high = finite().fold(0.0, f64::max);
        match self {
            Scale::Linear => Axis::from_zero(high, label, format),
            Scale::Log => {
                let low = finite().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
                Axis::log(if low.is_finite() { low } else { 1.0 }, high, label, format)
            }
        }
    }
}

const BOTH_SCALES: &[Scale] = &[Scale::Log, Scale::Linear];
const LINEAR: &[Scale] = &[Scale::Linear];

impl Subject<'_> {
    /// Draws every combination; `None` if none has figures.
    fn draw(mut self, draw: impl Fn(usize, usize, Scale) -> Option<String>) -> Option<Chart> {
        let all = self.points.len();
        if all > MOST_POINTS {
            self.points.truncate(MOST_POINTS);
            self.caption.push_str(&format!(
                " Of {all} points the first {MOST_POINTS} can be chosen; all are in the table."
            ));
        }
        let mut views = Vec::new();
        for point in 0..self.points.len() {
            for metric in 0..self.metrics.len() {
                for (place, scale) in self.scales.iter().enumerate() {
                    if let Some(svg) = draw(point, metric, *scale) {
                        let key = format!("{point}-{metric}-{place}");
                        views.push(View { key, svg, shown: false });
                    }
                }
            }
        }
        let first = views.first_mut()?;
        first.shown = true;
        let chosen: Vec<usize> =
            first.key.split('-').filter_map(|part| part.parse().ok()).collect();
        let scales = self.scales.iter().map(|scale| scale.name().to_owned()).collect();
        let metrics = self.metrics.iter().map(|metric| (*metric).to_owned()).collect();
        let choices = [("point", "Point", self.points), ("metric", "Figure", metrics)]
            .into_iter()
            .chain([("scale", "Scale", scales)])
            .zip(chosen)
            .map(|((name, label, options), chosen)| Choice { name, label, options, chosen })
            .collect();
        Some(Chart { id: self.id, title: self.title, caption: self.caption, choices, views })
    }
}

/// Returns all charts of a section that are not empty, in the order of the page.
pub(crate) fn all(section: &Section) -> Result<Vec<Chart>> {
    let mut charts = Vec::new();
    charts.extend(heat::chart(section));
    charts.extend(bars::chart(section));
    charts.extend(load::chart(section));
    charts.extend(candles::service(section));
    charts.extend(curve::chart(section)?);
    charts.extend(candles::send_lag(section));
    charts.extend(candles::receive_lag(section));
    charts.extend(candles::accept(section));
    charts.extend(closed::charts(section));
    Ok(charts)
}

/// Returns whether the row is of a transport between two processes, which has no connections and
/// has other charts.
fn is_transport(row: &Row) -> bool {
    row.placement.is_some()
}

/// Returns the CPU of the client and that of the server of a transport.
fn cpu_pair(row: &Row) -> Option<[usize; 2]> {
    Some([*row.client_cpus.first()?, *row.server_cpus.first()?])
}

/// Returns the 95 % interval of the rounds' median, widened to contain the row's own figure, which
/// is computed from all rounds together.
fn interval(
    row: &Row,
    figure: Option<f64>,
    of_round: fn(&RoundFigures) -> Option<f64>,
) -> Option<(f64, f64)> {
    let figure = figure?;
    let values: Vec<Vec<f64>> = row
        .rounds
        .iter()
        .filter(|round| round.valid == row.valid)
        .filter_map(of_round)
        .filter(|value| *value > 0.0)
        .map(|value| vec![value])
        .collect();
    let interval = ratio_interval(&values)?;
    Some((interval.low.min(figure), interval.high.max(figure)))
}

/// Returns the beginning of a mark's tooltip: subject and point; rows that are not valid are marked
/// first.
fn whose(section: &Section, row: &Row) -> String {
    let invalid = if row.valid { "" } else { "INVALID: " };
    format!("{invalid}{} {}", row.subject, section.place(row))
}

/// Returns the values of percentiles from the lowest whisker to the highest.
fn five(percentiles: &Percentiles) -> [f64; 5] {
    let Percentiles { p1, p25, p50, p75, p99, .. } = *percentiles;
    [p1, p25, p50, p75, p99]
}
