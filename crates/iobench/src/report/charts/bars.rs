//! Draws bars of one-way throughput between two processes, one for each transport, as in Figure 4
//! of the FABLE paper: a picture for every batch size.

use std::fmt::Write;

use crate::report::charts::{Chart, LINEAR, Subject, interval, is_transport};
use crate::report::number;
use crate::report::plot::{colour, cut, escape, validity};
use crate::report::point::{self, Dimension};
use crate::report::section::Section;
use crate::results::{Kind, Row};

const WIDTH: f64 = 560.0;
/// Width of the names: per character, and at most.
const CHARACTER: f64 = 7.2;
const LEFT_MAX: f64 = 300.0;
/// Width behind the longest bar, for its figure.
const RIGHT: f64 = 90.0;
const LINE: f64 = 22.0;
/// Height of the title, and of the axis's label.
const TOP: f64 = 44.0;
const BOTTOM: f64 = 26.0;

/// Returns the chart; `None` without one-way rows.
pub(crate) fn chart(section: &Section) -> Option<Chart> {
    let mut rows = section.of_kinds(&[Kind::OneWay]);
    rows.retain(|row| is_transport(row) && row.gigabytes_per_s.is_some());
    let groups = point::groups(&rows, &[Dimension::Batch]);
    let subject = Subject {
        id: format!("{}-one-way", section.id),
        title: "Throughput of transports".to_owned(),
        caption: "Payload one way, median over rounds; lines: 95 % intervals. Hollow bars are not \
                  valid."
            .to_owned(),
        points: groups.iter().map(|group| group.label.clone()).collect(),
        metrics: vec!["payload per second"],
        scales: LINEAR,
    };
    subject.draw(|point, _, _| Some(pictures(section, &groups.get(point)?.rows)))
}

/// Returns a picture for every batch size, all with the same scale.
fn pictures(section: &Section, rows: &[&Row]) -> String {
    let high = rows.iter().filter_map(|row| row.gigabytes_per_s).fold(0.0, f64::max);
    let picture = |batch: String| {
        let of_batch = rows.iter().filter(|row| Dimension::Batch.value(row) == batch);
        bars(section, &of_batch.copied().collect::<Vec<&Row>>(), high * 1e3)
    };
    let batches = point::values(Dimension::Batch, rows).into_iter().map(|(_, batch)| batch);
    format!("<div class='maps'>{}</div>", batches.map(picture).collect::<String>())
}

fn bars(section: &Section, rows: &[&Row], high: f64) -> String {
    let characters = rows.iter().map(|row| row.subject.chars().count()).max().unwrap_or(0);
    let left = (16.0 + CHARACTER * characters as f64).min(LEFT_MAX);
    let at = |value: f64| left + value / high.max(f64::MIN_POSITIVE) * (WIDTH - left - RIGHT);
    let mut body = String::new();
    let mut sentences = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let Some(rate) = row.gigabytes_per_s.map(|rate| rate * 1e3) else { continue };
        let (name, series) = (&row.subject, section.series(row));
        let y = TOP + LINE * index as f64;
        let validity = validity(row.valid);
        let figure = format!("{} MB/s", number::plain(rate));
        let middle = y + LINE / 2.0 - 2.0;
        let mut end = at(rate);
        let _ = write!(
            body,
            "<g class='s{}' data-series='{series}'>\
             <text class='tick' x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>\
             <rect class='bar{validity}' x='{left:.1}' y='{y:.1}' width='{:.1}' height='{}' \
             data-mb-s='{rate}'><title>{}: {figure}</title></rect>",
            colour(series),
            left - 8.0,
            middle + 4.0,
            escape(name),
            (end - left).max(0.5),
            LINE - 5.0,
            escape(name)
        );
        // The rounds count messages, which all have one size.
        let scale =
            row.throughput.filter(|messages| *messages > 0.0).map(|messages| rate / messages);
        let bounds = interval(row, row.throughput, |round| round.throughput).zip(scale);
        if let Some(((low, up), scale)) = bounds {
            let (low, up) = (at(low * scale), at((up * scale).min(high)));
            let _ = write!(body, "<path class='whisker' d='M{low:.1},{middle:.1}H{up:.1}'/>");
            end = end.max(up);
        }
        let _ = write!(
            body,
            "<text class='tick' x='{:.1}' y='{:.1}'>{}</text></g>",
            end + 6.0,
            middle + 4.0,
            escape(&figure)
        );
        sentences.push(format!("{name}: {figure}"));
    }
    let (about, axis) = (section.about(rows), TOP + LINE * rows.len() as f64 + BOTTOM - 8.0);
    let title = match rows.first().map_or(1, |row| row.batch) {
        1 => "every message by itself".to_owned(),
        batch => format!("the reader is told after {batch} messages"),
    };
    format!(
        "<svg class='plot bars' viewBox='0 0 {WIDTH} {:.0}' role='img' aria-label='Throughput, \
         {title}'><desc>{}</desc><text class='name' x='8' y='16'>payload per second, {title}</text>\
         <text class='about' x='8' y='34'>{}</text>{body}<text class='label' x='8' y='{axis:.1}'>\
         transport</text><text class='label' x='{left:.1}' y='{axis:.1}'>payload per second (MB/s)\
         </text></svg>",
        TOP + LINE * rows.len() as f64 + BOTTOM,
        escape(&sentences.join("; ")),
        escape(&cut(&about, WIDTH)),
    )
}
