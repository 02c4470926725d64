//! Heat maps: the median round trip by CPU of one process and CPU of the other.

use std::fmt::Write;

use crate::ipc::row::Row;
use crate::report::ipc::{Figure, distinct, names};
use crate::report::number;
use crate::report::plot::escape;

/// Side of a cell that has room for its figure; larger machines get smaller cells without.
const CELL: f64 = 62.0;
const SMALL_CELL: f64 = 14.0;
const CPUS_WITH_FIGURES: usize = 12;
/// Room for the numbers of the CPUs and for the name.
const LEFT: f64 = 34.0;
const TOP: f64 = 44.0;
/// The least and the most opacity, so that the fastest cell is seen and the slowest can be read.
const FAINT: f64 = 0.06;
const STRONG: f64 = 0.72;

/// One figure for every message size, with a map for every transport.
pub(super) fn figures(rows: &[Row]) -> Vec<Figure> {
    let of_size = |bytes: usize| {
        let rows: Vec<&Row> = rows
            .iter()
            .filter(|row| row.message_bytes == bytes && row.latency_ns.is_some())
            .collect();
        let mut cpus: Vec<usize> = rows.iter().flat_map(|row| row.cpus).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let medians = rows.iter().filter_map(|row| Some(row.latency_ns?.p50 / 1e3));
        let shades = Shades::of(medians);
        let of_name = |name: &String| {
            let own: Vec<&Row> = rows.iter().filter(|row| row.name() == *name).copied().collect();
            (!own.is_empty()).then(|| map(name, bytes, &own, &cpus, &shades))
        };
        let pictures: Vec<String> = names_of(&rows).iter().filter_map(of_name).collect();
        let title = format!("Round trip by pair of CPUs, {} messages", number::bytes(bytes));
        (!pictures.is_empty()).then_some(Figure { title, pictures })
    };
    let mut sizes = distinct(rows, |row| row.message_bytes);
    sizes.sort_unstable();
    sizes.into_iter().filter_map(of_size).collect()
}

fn names_of(rows: &[&Row]) -> Vec<String> {
    names(&rows.iter().map(|row| (*row).clone()).collect::<Vec<Row>>())
}

/// How dark a time is among the others of its figure, by its logarithm.
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

fn map(name: &str, bytes: usize, rows: &[&Row], cpus: &[usize], shades: &Shades) -> String {
    let with_figures = cpus.len() <= CPUS_WITH_FIGURES;
    let cell = if with_figures { CELL } else { SMALL_CELL };
    let side = cell * cpus.len() as f64;
    // A wide name over a small map still has to fit.
    let width = (LEFT + side + 4.0).max(LEFT + 8.0 * name.chars().count() as f64);
    let mut body = String::new();
    let mut sentences = Vec::new();
    for (line, second) in cpus.iter().enumerate() {
        for (column, first) in cpus.iter().enumerate() {
            let (x, y) = (LEFT + cell * column as f64, TOP + cell * line as f64);
            let pair = [*first, *second];
            // A pair that was measured one way round stands for the other as well.
            let row = rows
                .iter()
                .find(|row| row.cpus == pair)
                .or_else(|| rows.iter().find(|row| row.cpus == [*second, *first]));
            let Some((row, latency)) = row.and_then(|row| Some((row, row.latency_ns?))) else {
                let _ = write!(
                    body,
                    "<rect class='cell none' x='{x}' y='{y}' \
                                      width='{cell}' height='{cell}'/>"
                );
                continue;
            };
            let time = number::time(latency.p50 / 1e3);
            let validity = if row.valid { "" } else { " invalid" };
            let sentence = format!("CPU {first} and {second}: {time}");
            let _ = write!(
                body,
                "<rect class='cell{validity}' x='{x}' y='{y}' width='{cell}' height='{cell}' \
                 fill-opacity='{:.3}' data-ns='{}'><title>{}</title></rect>",
                shades.opacity(latency.p50 / 1e3),
                latency.p50,
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
    }
    let labels = if with_figures { labels(cpus, cell) } else { String::new() };
    format!(
        "<svg class='heat' viewBox='0 0 {width:.0} {:.0}' width='{width:.0}' role='img' \
         aria-label='{}, {bytes} bytes: median round trip'><desc>{}</desc>\
         <text class='label' x='{LEFT}' y='16'>{}</text>{labels}{body}</svg>",
        TOP + side + 4.0,
        escape(name),
        escape(&sentences.join("; ")),
        escape(name)
    )
}

/// The numbers of the CPUs along two edges.
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
