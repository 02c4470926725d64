//! Bars of throughput: a picture for every placement, size and batch, a bar for every transport.

use std::fmt::Write;

use crate::ipc::row::Row;
use crate::report::ipc::{Figure, distinct, names};
use crate::report::number;
use crate::report::plot::{colour, escape};

const WIDTH: f64 = 560.0;
const LEFT: f64 = 165.0;
/// Behind the longest bar, for its figure.
const RIGHT: f64 = 90.0;
const LINE: f64 = 22.0;
const TOP: f64 = 26.0;
/// A machine with many pairs of CPUs has them in the heat map and in the table.
const FIGURES_MAX: usize = 24;

/// One figure for every placement and size.
pub(super) fn figures(rows: &[Row]) -> Vec<Figure> {
    let all_names = names(rows);
    // One pair of CPUs stands for its placement.
    let placements = distinct(rows, |row| row.placement.name());
    let stands = |name: &str| rows.iter().find(|row| row.placement.name() == name);
    let pairs: Vec<[usize; 2]> = placements.iter().filter_map(|n| Some(stands(n)?.cpus)).collect();
    let keys = distinct(rows, |row| (row.cpus, row.message_bytes));
    let shown = keys.into_iter().filter(|(cpus, _)| pairs.contains(cpus)).take(FIGURES_MAX);
    let of_key = |(cpus, bytes): ([usize; 2], usize)| {
        let rows: Vec<&Row> = rows
            .iter()
            .filter(|row| (row.cpus, row.message_bytes) == (cpus, bytes))
            .filter(|row| row.throughput_mb_s.is_some())
            .collect();
        let mut batches: Vec<u32> = rows.iter().map(|row| row.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        let high = rows.iter().filter_map(|row| row.throughput_mb_s).fold(0.0, f64::max);
        let picture = |batch: u32| {
            let rows: Vec<&Row> = rows.iter().filter(|row| row.batch == batch).copied().collect();
            bars(&rows, batch, high, &all_names)
        };
        let placement = rows.first().map_or("", |row| row.placement.name());
        let size = number::bytes(bytes);
        let title = format!("Throughput, {placement}, CPU {} and {}, {size}", cpus[0], cpus[1]);
        Figure { title, pictures: batches.into_iter().map(picture).collect() }
    };
    shown.map(of_key).filter(|figure| !figure.pictures.is_empty()).collect()
}

fn bars(rows: &[&Row], batch: u32, high: f64, all_names: &[String]) -> String {
    let at = |value: f64| LEFT + value / high.max(f64::MIN_POSITIVE) * (WIDTH - LEFT - RIGHT);
    let mut body = String::new();
    let mut sentences = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let Some(rate) = row.throughput_mb_s else { continue };
        let (name, y) = (row.name(), TOP + LINE * index as f64);
        let series = all_names.iter().position(|other| *other == name).unwrap_or(0);
        let validity = if row.valid { "" } else { " invalid" };
        let figure = format!("{} MB/s", number::plain(rate));
        let middle = y + LINE / 2.0 - 2.0;
        let mut end = at(rate);
        let _ = write!(
            body,
            "<g class='s{}'><text class='tick' x='{}' y='{:.1}' text-anchor='end'>{}</text>\
             <rect class='bar{validity}' x='{LEFT}' y='{y:.1}' width='{:.1}' height='{}' \
             data-mb-s='{rate}'><title>{}: {figure}</title></rect>",
            colour(series),
            LEFT - 8.0,
            middle + 4.0,
            escape(&name),
            (end - LEFT).max(0.5),
            LINE - 5.0,
            escape(&name)
        );
        if let Some(interval) = row.throughput_interval_mb_s {
            let (low, up) = (at(interval.low), at(interval.high.min(high)));
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
    let title = match batch {
        1 => "every message by itself".to_owned(),
        batch => format!("the reader is told after {batch} messages"),
    };
    format!(
        "<svg class='plot bars' viewBox='0 0 {WIDTH} {:.0}' role='img' aria-label='Throughput, \
         {title}'><desc>{}</desc><text class='label' x='{LEFT}' y='16'>{title}</text>{body}</svg>",
        TOP + LINE * rows.len() as f64 + 4.0,
        escape(&sentences.join("; "))
    )
}
