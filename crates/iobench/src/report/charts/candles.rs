//! Draws distributions as candlesticks, as in Figures 6, 8, 10 and 11 of Kawai and Yamaguchi.

use crate::figures::Percentiles;
use crate::report::axis::Axis;
use crate::report::charts::{
    BOTH_SCALES, Chart, DOUBTFUL, Scale, Subject, five, is_transport, whose,
};
use crate::report::number;
use crate::report::plot::{Candle, Plot};
use crate::report::point::{self, Dimension, Group};
use crate::report::section::Section;
use crate::results::Row;

const HEIGHT: f64 = 400.0;
const EXPLANATION: &str = "Box: 25 % to 75 %, line: median, whiskers: 1 % and 99 %.";

type Figure = fn(&Row) -> Option<Percentiles>;

/// Latency against connections.
pub(crate) fn service(section: &Section) -> Option<Chart> {
    let title = "Latency against connections";
    chart(section, "latency", title, section.service_time(), "service time", |row| row.latency_us)
}

/// Returns the send lag of the generator.
pub(crate) fn send_lag(section: &Section) -> Option<Chart> {
    let title = "Send lag";
    let caption = "From the intended to the actual send time: the generator's own lateness, which \
                   is part of the service time above.";
    chart(section, "lag", title, caption, "send lag", |row| row.send_lag_us)
}

/// Returns the receive lag of the generator.
pub(crate) fn receive_lag(section: &Section) -> Option<Chart> {
    let title = "Receive lag";
    let caption = "From the kernel's receive timestamp of a reply to when the generator had read \
                   it, of a sample: the generator's own time, which is part of the service time \
                   above.";
    chart(section, "receive-lag", title, caption, "receive lag", |row| row.receive_lag_us)
}

/// Returns the time until the first answer on new connections.
pub(crate) fn accept(section: &Section) -> Option<Chart> {
    let title = "Accept latency";
    let caption = "From the intended time of the connection to its first answer.";
    chart(section, "accept", title, caption, "accept latency", |row| row.accept_us)
}

fn chart(
    section: &Section,
    id: &str,
    title: &str,
    caption: &str,
    what: &str,
    figure: Figure,
) -> Option<Chart> {
    let is_shown = |row: &&Row| figure(row).is_some() && !is_transport(row);
    let rows: Vec<&Row> = section.rows.iter().filter(is_shown).collect();
    let groups = point::groups(&rows, &[Dimension::Connections]);
    let subject = Subject {
        id: format!("{}-{id}", section.id),
        title: title.to_owned(),
        caption: format!("{caption} {EXPLANATION} {DOUBTFUL}"),
        points: groups.iter().map(|group| group.label.clone()).collect(),
        metrics: vec![what],
        scales: BOTH_SCALES,
    };
    subject.draw(|point, _, scale| draw(section, groups.get(point)?, what, figure, scale))
}

fn draw(
    section: &Section,
    group: &Group<'_>,
    what: &str,
    figure: Figure,
    scale: Scale,
) -> Option<String> {
    let categories = point::values(Dimension::Connections, &group.rows);
    let names: Vec<String> = categories.iter().map(|(_, text)| text.clone()).collect();
    let all: Vec<f64> =
        group.rows.iter().filter_map(|row| figure(row)).flat_map(|p| five(&p)).collect();
    let x = Axis::categories(&names, Dimension::Connections.name());
    let mut plot = Plot::new(x, scale.axis(&all, what, number::time), HEIGHT);
    // Every server has its place, even if other servers have no figures.
    let slot = 0.84 / section.servers.len() as f64;
    for row in &group.rows {
        let percentiles = figure(row)?;
        let category = names.iter().position(|n| *n == Dimension::Connections.value(row))?;
        let series = section.series(row);
        let [p1, p25, p50, p75, p99] = five(&percentiles).map(number::time);
        plot.candle(
            series,
            &Candle {
                x: category as f64 + 0.08 + (series as f64 + 0.5) * slot,
                width: (slot * 0.72).min(0.16),
                values: five(&percentiles),
                valid: row.valid,
                title: format!(
                    "{}: {what} 1 % {p1}, 25 % {p25}, median {p50}, 75 % {p75}, 99 % {p99}",
                    whose(section, row)
                ),
            },
        );
    }
    let name = format!("{what} against connections, {}", group.label);
    Some(plot.svg(&name, &section.about(&group.rows)))
}
