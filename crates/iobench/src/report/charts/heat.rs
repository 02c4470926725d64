//! Draws heat maps of the median round trip between two processes, by the CPUs of both, as in
//! Figure 3 of the FABLE paper: a map for every transport.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::report::axis::with_units;
use crate::report::charts::{Chart, Scale, Subject, cpu_pair, is_transport};
use crate::report::number;
use crate::report::plot::{escape, validity};
use crate::report::point::{self, Dimension};
use crate::report::section::Section;
use crate::results::Row;

/// Side of a cell with a figure; maps of larger machines have smaller cells without figures.
const CELL: f64 = 62.0;
const SMALL_CELL: f64 = 14.0;
const CPUS_WITH_FIGURES: usize = 12;
/// Space for the numbers of the CPUs, the axes' names and the title.
const LEFT: f64 = 54.0;
const TOP: f64 = 82.0;
/// Opacity of the fastest and of the slowest cell, so that the first is visible and the last
/// readable.
const FAINT: f64 = 0.06;
const STRONG: f64 = 0.72;

/// Returns the chart, with a point for every message size; `None` without round trips.
pub(crate) fn chart(section: &Section) -> Option<Chart> {
    let has_figure = |row: &&Row| is_transport(row) && row.p50_us().is_some();
    let rows: Vec<&Row> = section.rows.iter().filter(has_figure).collect();
    let sizes = point::values(Dimension::RequestBytes, &rows);
    let subject = Subject {
        id: format!("{}-round-trip", section.id),
        title: "Round trip by pair of CPUs".to_owned(),
        caption: "Median of the round trip of a ping-pong. Darker is slower, on a logarithmic \
                  scale over all maps of one size; pairs were measured one way round; empty cells \
                  were not. Dashed frames are not valid."
            .to_owned(),
        points: sizes.iter().map(|(_, size)| format!("{size} messages")).collect(),
        metrics: vec!["median round trip"],
        scales: &[Scale::Log],
    };
    subject.draw(|point, _, _| {
        let (_, size) = sizes.get(point)?;
        let of_size = |row: &&&Row| Dimension::RequestBytes.value(row) == *size;
        Some(maps(section, &rows.iter().filter(of_size).copied().collect::<Vec<&Row>>()))
    })
}

fn maps(section: &Section, rows: &[&Row]) -> String {
    let mut cpus: Vec<usize> = rows.iter().filter_map(|row| cpu_pair(row)).flatten().collect();
    cpus.sort_unstable();
    cpus.dedup();
    let shades = Shades::of(rows.iter().filter_map(|row| row.p50_us()));
    let mut by_series: BTreeMap<usize, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        by_series.entry(section.series(row)).or_default().push(row);
    }
    let all = by_series.iter().map(|(series, rows)| map(section, *series, rows, &cpus, &shades));
    format!("<div class='maps'>{}</div>", all.collect::<String>())
}

/// The shade of a time among the others of its figure, by its logarithm.
struct Shades {
    low: f64,
    high: f64,
}

impl Shades {
    fn of(times: impl Iterator<Item = f64>) -> Shades {
        let begin = Shades { low: f64::INFINITY, high: 0.0 };
        times.fold(begin, |shades, time| Shades {
            low: shades.low.min(time),
            high: shades.high.max(time),
        })
    }

    fn opacity(&self, time: f64) -> f64 {
        let span = (self.high / self.low).ln();
        let part = if span > 0.0 { (time / self.low).ln() / span } else { 0.0 };
        FAINT + (STRONG - FAINT) * part.clamp(0.0, 1.0)
    }
}

fn map(section: &Section, series: usize, rows: &[&Row], cpus: &[usize], shades: &Shades) -> String {
    let name = &rows[0].subject;
    let with_figures = cpus.len() <= CPUS_WITH_FIGURES;
    let cell = if with_figures { CELL } else { SMALL_CELL };
    let side = cell * cpus.len() as f64;
    let times: Vec<String> = rows.iter().filter_map(|row| row.p50_us().map(number::time)).collect();
    let title = with_units("median round trip", times.iter().map(String::as_str));
    let title = format!("{title}, messages of {}", Dimension::RequestBytes.value(rows[0]));
    let about = section.about(rows);
    // The picture must be wide enough for the title, even if the map is small.
    let longest = title.chars().count().max(about.chars().count()) as f64;
    let width = (LEFT + side + 4.0).max(8.0 + 7.2 * longest);
    let mut body =
        format!("<rect class='cell none' x='{LEFT}' y='{TOP}' width='{side}' height='{side}'/>");
    let mut sentences = Vec::new();
    for ([first, second], (row, us)) in &cells(rows) {
        let place = |cpu: &usize| cpus.binary_search(cpu).unwrap_or(0) as f64;
        let (x, y) = (LEFT + cell * place(first), TOP + cell * place(second));
        let time = number::time(*us);
        let validity = validity(row.valid);
        let sentence = format!("CPU {first} and {second}: {time}");
        let _ = write!(
            body,
            "<rect class='cell{validity}' x='{x}' y='{y}' width='{cell}' height='{cell}' \
             fill-opacity='{:.3}' data-us='{us}'><title>{}</title></rect>",
            shades.opacity(*us),
            escape(&sentence)
        );
        if with_figures {
            let _ = write!(
                body,
                "<text class='cell-figure' x='{:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
                x + cell / 2.0,
                y + cell / 2.0 + 4.0,
                escape(&time)
            );
        }
        if first <= second {
            sentences.push(sentence);
        }
    }
    let numbers = if with_figures { labels(cpus, cell) } else { String::new() };
    let middle = side / 2.0;
    let axes = format!(
        "<text class='label' x='{:.1}' y='{}' text-anchor='middle'>CPU of one end (number)</text>\
         <text class='label' transform='translate(14 {:.1}) rotate(-90)' text-anchor='middle'>CPU \
         of the other (number)</text>",
        LEFT + middle.max(50.0),
        TOP - 26.0,
        TOP + middle.max(85.0)
    );
    format!(
        "<svg class='heat' data-series='{series}' viewBox='0 0 {width:.0} {:.0}' \
         width='{width:.0}' role='img' aria-label='{}: median round trip'><desc>{}</desc>\
         <text class='name' x='8' y='16'>{}</text><text class='about' x='8' y='34'>{}</text>\
         {axes}{numbers}{body}</svg>",
        TOP + side.max(170.0) + 4.0,
        escape(name),
        escape(&sentences.join("; ")),
        escape(&title),
        escape(&about)
    )
}

/// Returns the row and its figure for every pair of CPUs; a pair that was measured in one order is
/// used for both.
fn cells<'a>(rows: &[&'a Row]) -> BTreeMap<[usize; 2], (&'a Row, f64)> {
    let measured = || rows.iter().filter_map(|row| Some((cpu_pair(row)?, (*row, row.p50_us()?))));
    let reversed = measured().map(|([first, second], figure)| ([second, first], figure));
    reversed.chain(measured()).collect()
}

/// Returns the numbers of the CPUs at two edges.
fn labels(cpus: &[usize], cell: f64) -> String {
    let mut labels = String::new();
    for (index, cpu) in cpus.iter().enumerate() {
        let middle = cell * (index as f64 + 0.5);
        let _ = write!(
            labels,
            "<text class='tick' x='{:.1}' y='{}' text-anchor='middle'>{cpu}</text>\
             <text class='tick' x='{}' y='{:.1}' text-anchor='end'>{cpu}</text>",
            LEFT + middle,
            TOP - 8.0,
            LEFT - 8.0,
            TOP + middle + 4.0
        );
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_is_darker_by_its_logarithm() {
        let shades = Shades::of([1.0, 10.0, 100.0].into_iter());
        let [fast, middle, slow] = [1.0, 10.0, 100.0].map(|time| shades.opacity(time));
        assert!((fast - FAINT).abs() < 1e-9 && (slow - STRONG).abs() < 1e-9);
        assert!((middle - (FAINT + STRONG) / 2.0).abs() < 1e-9);
        assert_eq!(Shades::of([5.0].into_iter()).opacity(5.0), FAINT);
    }
}
