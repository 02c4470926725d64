//! Draws every percentile of service time above the send lag, on an axis on which each further nine
//! has the same length.

use crate::error::Result;
use crate::figures::decode;
use crate::report::axis::{Axis, tail};
use crate::report::charts::{BOTH_SCALES, Chart, Scale, Subject, whose};
use crate::report::number;
use crate::report::plot::{Plot, Point, Stroke};
use crate::report::point;
use crate::report::section::Section;
use crate::results::Row;

const HEIGHT: f64 = 400.0;
/// Points of a curve per halving of the distance to the maximum.
const DENSITY: u32 = 4;

/// A row's curves: positions on the tail axis and microseconds.
struct Curves {
    service: Vec<(f64, f64)>,
    send_lag: Vec<(f64, f64)>,
}

/// Returns the chart; `None` without histograms.
pub(crate) fn chart(section: &Section) -> Result<Option<Chart>> {
    let rows: Vec<&Row> =
        section.rows.iter().filter(|row| row.histograms.service.is_some()).collect();
    let groups = point::groups(&rows, &[]);
    let mut curves: Vec<Vec<(&Row, Curves)>> = Vec::new();
    for group in &groups {
        let of_group = group.rows.iter().map(|row| Ok((*row, Curves::of(row)?)));
        curves.push(of_group.collect::<Result<_>>()?);
    }
    let subject = Subject {
        id: format!("{}-curve", section.id),
        title: "Percentile curve".to_owned(),
        caption: "Solid: service time, from the intended send time. Dashed: send lag. Each step \
                  to the right leaves a tenth of the requests. Dotted and dash-dotted lines are \
                  not valid."
            .to_owned(),
        points: groups.iter().map(|group| group.label.clone()).collect(),
        metrics: vec!["service time and send lag"],
        scales: BOTH_SCALES,
    };
    Ok(subject.draw(|point, _, scale| {
        draw(section, curves.get(point)?, &groups.get(point)?.label, scale)
    }))
}

impl Curves {
    fn of(row: &Row) -> Result<Curves> {
        Ok(Curves {
            service: curve(row.histograms.service.as_deref())?,
            send_lag: curve(row.histograms.send_lag.as_deref())?,
        })
    }
}

fn curve(histogram: Option<&str>) -> Result<Vec<(f64, f64)>> {
    let Some(text) = histogram else { return Ok(Vec::new()) };
    let times = decode(text)?;
    if times.is_empty() {
        return Ok(Vec::new());
    }
    // With so many requests, all higher percentiles are the longest one.
    let last = 1.0 - 1.0 / times.len() as f64;
    let mut points: Vec<(f64, f64)> = times
        .iter_quantiles(DENSITY)
        .map(|step| (step.quantile_iterated_to(), step.value_iterated_to()))
        .take_while(|(quantile, _)| *quantile <= last)
        .map(|(quantile, value)| (tail(quantile), value as f64 / 1e3))
        .collect();
    points.push((tail(last), times.max() as f64 / 1e3));
    Ok(points)
}

fn draw(section: &Section, rows: &[(&Row, Curves)], label: &str, scale: Scale) -> Option<String> {
    let all = || rows.iter().flat_map(|(_, c)| c.service.iter().chain(&c.send_lag).copied());
    let nines = all().map(|(x, _)| x).fold(0.0, f64::max);
    let values: Vec<f64> = all().map(|(_, y)| y).collect();
    if values.is_empty() {
        return None;
    }
    let x = Axis::tail(nines, "percentile");
    let mut plot = Plot::new(x, scale.axis(&values, "time", number::time), HEIGHT);
    for (row, curves) in rows {
        let series = section.series(row);
        let parts = [
            (&curves.service, Stroke::Solid, "service"),
            (&curves.send_lag, Stroke::Dashed, "lag"),
        ];
        for (curve, stroke, what) in parts {
            let points: Vec<Point> = curve
                .iter()
                .map(|&(x, y)| Point {
                    x,
                    y,
                    interval: None,
                    valid: row.valid,
                    title: String::new(),
                })
                .collect();
            plot.line(series, &points, stroke, false);
            if let (Some(p), "service") = (row.latency_us, what) {
                plot.describe(&format!(
                    "{}: median {}, 99 % {}, 99.9 % {}, longest {}",
                    whose(section, row),
                    number::time(p.p50),
                    number::time(p.p99),
                    number::time(p.p999),
                    number::time(p.max)
                ));
            }
        }
    }
    let shown: Vec<&Row> = rows.iter().map(|(row, _)| *row).collect();
    let name = format!("percentiles of service time and send lag, {label}");
    Some(plot.svg(&name, &section.about(&shown)))
}
