//! From slots to tables and to a file that `report` and `diff` read.

use std::fmt::Write;

use crate::apps::App;
use crate::apps::campaign::Station;
use crate::apps::wrk::Printed;
use crate::cli::apps::LoadShape;
use crate::compare::environment::Environment;
use crate::compare::report::{self, Rounds, Row};
use crate::compare::stats::median;
use crate::compare::table::{self, ratio, stdout_width};
use crate::error::Result;
use crate::experiment::convert;
use crate::results::{self, Document, ExperimentRecord};

/// What all rounds of one cell left behind.
pub(crate) struct Measured<'a> {
    pub(crate) station: &'a Station,
    /// By variant.
    pub(crate) outcomes: Vec<Rounds>,
    /// What wrk said, by variant; empty where it was not the client.
    pub(crate) printed: Vec<Vec<Printed>>,
}

impl<'a> Measured<'a> {
    pub(crate) fn new(station: &'a Station, variants: usize) -> Measured<'a> {
        Measured {
            station,
            outcomes: vec![Rounds::new(); variants],
            printed: vec![Vec::new(); variants],
        }
    }
}

/// A cell's rows, in the order of the variants.
struct Block<'a> {
    measured: &'a Measured<'a>,
    rows: Vec<Row>,
}

pub(crate) struct Summary<'a> {
    app: &'a dyn App,
    shape: &'a LoadShape,
    baseline: String,
    blocks: Vec<Block<'a>>,
    /// How the variants did against the other baselines.
    comparisons: Vec<String>,
}

impl<'a> Summary<'a> {
    pub(crate) fn of(
        app: &'a dyn App,
        shape: &'a LoadShape,
        baseline: usize,
        seed: u64,
        measured: &'a [Measured<'a>],
    ) -> Result<Summary<'a>> {
        let labels = app.labels();
        let names: Vec<&str> = labels.iter().map(String::as_str).collect();
        let mut blocks = Vec::new();
        let mut comparisons = Vec::new();
        for cell in measured {
            let (station, outcomes) = (cell.station, &cell.outcomes);
            let rows_against = |baseline: usize| {
                let connections = shape.connections;
                report::rows(&station.cell, connections, &names, baseline, outcomes, seed)
            };
            let mut rows = rows_against(baseline)?;
            rows.iter_mut().for_each(report::note_sharing);
            for (row, rounds) in rows.iter_mut().zip(outcomes) {
                row.notes.extend(note_threads(rounds));
            }
            for (row, printed) in rows.iter_mut().zip(&cell.printed) {
                row.notes.extend(note_wrk(printed));
            }
            // The last variant is ours; how it stands to every other one is always told.
            let ours = names.len() - 1;
            for other in (0..ours).filter(|&other| other != baseline && ours != baseline) {
                let against = &rows_against(other)?[ours];
                let sentence = compare(against, names[other]);
                comparisons.push(format!("{}: {sentence}", describe(station)));
                rows[ours].notes.push(sentence);
            }
            blocks.push(Block { measured: cell, rows });
        }
        Ok(Summary { app, shape, baseline: labels[baseline].clone(), blocks, comparisons })
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.rows().all(|row| row.valid)
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.blocks.iter().flat_map(|block| &block.rows)
    }

    /// Everything for people.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}\n\n", self.app.settings());
        let rows_of = |by_wrk: bool| -> Vec<Row> {
            let wanted = self
                .blocks
                .iter()
                .filter(|block| block.measured.station.wrk_path.is_some() == by_wrk);
            wanted.flat_map(|block| block.rows.clone()).collect()
        };
        let (ours, theirs) = (rows_of(false), rows_of(true));
        text.push_str(&table::render(&ours, &self.baseline, stdout_width()));
        if let Some(path) = self.blocks.iter().find_map(|b| b.measured.station.wrk_path.as_deref())
        {
            let _ = write!(text, "\nwrk, {path} only, which is as long as the mean:\n");
            text.push_str(&table::render(&theirs, &self.baseline, stdout_width()));
        }
        text.push('\n');
        for block in &self.blocks {
            for row in &block.rows {
                let what = describe(block.measured.station);
                for note in row.notes.iter().filter(|note| is_told(note)) {
                    let _ = writeln!(text, "{what}, {}: {note}", row.server);
                }
            }
        }
        for sentence in &self.comparisons {
            let _ = writeln!(text, "{sentence}");
        }
        for sentence in table::summarise(&ours, &self.baseline) {
            let _ = writeln!(text, "{sentence}");
        }
        text
    }

    /// The result file, in the form of `run`.
    pub(crate) fn document(
        &self,
        environment: Environment,
        network: &str,
        elapsed_s: f64,
    ) -> Result<Document> {
        let mut rows = Vec::new();
        for block in &self.blocks {
            let by_wrk = if block.measured.station.wrk_path.is_some() { " by wrk" } else { "" };
            for (row, rounds) in block.rows.iter().zip(&block.measured.outcomes) {
                let load = format!("{}{by_wrk}", self.app.load());
                rows.push(convert(row.clone(), load, rounds, &[])?);
            }
        }
        let name = self.app.name();
        Ok(Document {
            format: results::FORMAT.to_owned(),
            version: results::VERSION,
            environment,
            experiment: ExperimentRecord {
                name: format!("apps-{name}"),
                title: format!("{name}, {}", self.app.load()),
                source: None,
                scale: if self.shape.quick { "quick" } else { "default" }.to_owned(),
                file: format!("{}\nnetwork: {network}\n", self.app.settings()),
            },
            elapsed_s,
            baseline: self.baseline.clone(),
            results: rows,
        })
    }
}

fn describe(station: &Station) -> String {
    let plural = if station.cell.cores == 1 { "" } else { "s" };
    let client = if station.wrk_path.is_some() { ", wrk" } else { "" };
    format!("{} core{plural}, {}{client}", station.cell.cores, station.requests)
}

const THREADS: &str = "its workers were busy";
const WRK: &str = "wrk itself told";

/// Notes that say something of a valid row that no column does.
fn is_told(note: &str) -> bool {
    note.starts_with(THREADS) || note.starts_with(WRK)
}

/// The busy part of each worker's time, in the median over slots.
fn note_threads(rounds: &Rounds) -> Option<String> {
    let slots: Vec<&Vec<f64>> = rounds.iter().flatten().map(|slot| &slot.thread_busy).collect();
    let threads = slots.iter().map(|busy| busy.len()).max().filter(|&count| count > 0)?;
    let busy: Vec<String> = (0..threads)
        .filter_map(|thread| {
            median(&slots.iter().filter_map(|busy| busy.get(thread).copied()).collect::<Vec<_>>())
        })
        .map(|busy| format!("{:.0} %", busy * 100.0))
        .collect();
    Some(format!("{THREADS} {}", busy.join(", ")))
}

/// wrk tells percentiles only, which do not add up to a histogram.
fn note_wrk(printed: &[Printed]) -> Option<String> {
    let middle =
        |figure: fn(&Printed) -> f64| median(&printed.iter().map(figure).collect::<Vec<_>>());
    let (p50, p99) = middle(|p| p.p50_us).zip(middle(|p| p.p99_us))?;
    Some(format!("{WRK} latencies of {p50:.0} us (p50) and {p99:.0} us (p99)"))
}

/// One variant against another than the baseline.
fn compare(row: &Row, other: &str) -> String {
    format!(
        "{} against {other}: throughput x{}, CPU per request x{}",
        row.server,
        ratio(row.throughput_ratio),
        ratio(row.cpu_ratio)
    )
}
