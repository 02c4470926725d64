//! From slots to tables and to a file that `report` and `diff` read.

use std::fmt::Write;

use crate::apps::App;
use crate::apps::campaign::Station;
use crate::apps::wrk::Printed;
use crate::cli::apps::LoadShape;
use crate::compare::convert::convert;
use crate::compare::report::{self, Rounds, Row};
use crate::compare::table;
use crate::engine::environment::Environment;
use crate::engine::statistics::median;
use crate::engine::table::{ratio, stdout_width};
use crate::error::Result;
use crate::results::{Document, ExperimentRecord};

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
    /// What no column says, by row.
    told: Vec<Vec<String>>,
}

pub(crate) struct Summary<'a> {
    app: &'a dyn App,
    shape: &'a LoadShape,
    baseline: String,
    blocks: Vec<Block<'a>>,
}

impl<'a> Summary<'a> {
    pub(crate) fn of(
        app: &'a dyn App,
        shape: &'a LoadShape,
        baseline: usize,
        measured: &'a [Measured<'a>],
    ) -> Result<Summary<'a>> {
        let labels = app.labels();
        let names: Vec<&str> = labels.iter().map(String::as_str).collect();
        let mut blocks = Vec::new();
        for cell in measured {
            let (station, outcomes) = (cell.station, &cell.outcomes);
            let rows_against = |baseline: usize| {
                let connections = shape.connections;
                report::rows(&station.cell, connections, &names, baseline, outcomes)
            };
            let mut rows = rows_against(baseline)?;
            rows.iter_mut().for_each(report::note_sharing);
            let mut told: Vec<Vec<String>> = outcomes
                .iter()
                .zip(&cell.printed)
                .map(|(rounds, printed)| {
                    note_threads(rounds).into_iter().chain(note_wrk(printed)).collect()
                })
                .collect();
            // The last variant is ours; how it stands to every other one is always told.
            let ours = names.len() - 1;
            for other in (0..ours).filter(|&other| other != baseline && ours != baseline) {
                told[ours].push(compare(&rows_against(other)?[ours], names[other]));
            }
            blocks.push(Block { measured: cell, rows, told });
        }
        Ok(Summary { app, shape, baseline: labels[baseline].clone(), blocks })
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.rows().all(|row| row.valid)
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.blocks.iter().flat_map(|block| &block.rows)
    }

    /// The environment with what the connections used, for people.
    pub(crate) fn describe(&self, environment: &Environment) -> String {
        report::describe(environment, self.rows())
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
            let what = describe(block.measured.station);
            for (row, told) in block.rows.iter().zip(&block.told).filter(|(_, t)| !t.is_empty()) {
                let _ = writeln!(text, "{what}, {}: {}", row.server, told.join("; "));
            }
        }
        text.push('\n');
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
            let parts = block.rows.iter().zip(&block.told).zip(&block.measured.outcomes);
            for ((row, told), rounds) in parts {
                let mut row = row.clone();
                row.notes.extend(told.iter().cloned());
                let workload = format!("{}{by_wrk}", self.app.load());
                rows.push(convert(row, &workload, None, "none".to_owned(), rounds, &[])?);
            }
        }
        let name = self.app.name();
        let experiment = ExperimentRecord {
            name: format!("apps-{name}"),
            title: format!("{name}, {}", self.app.load()),
            source: None,
            scale: if self.shape.measure.quick { "quick" } else { "default" }.to_owned(),
            file: format!("{}\nnetwork: {network}\n", self.app.settings()),
        };
        Ok(Document::new(environment, experiment, elapsed_s, self.baseline.clone(), rows))
    }
}

fn describe(station: &Station) -> String {
    let plural = if station.cell.cores == 1 { "" } else { "s" };
    let client = if station.wrk_path.is_some() { ", wrk" } else { "" };
    format!("{} core{plural}, {}{client}", station.cell.cores, station.requests)
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
    Some(format!("its workers were busy {}", busy.join(", ")))
}

/// wrk tells percentiles only, which do not add up to a histogram.
fn note_wrk(printed: &[Printed]) -> Option<String> {
    let middle =
        |figure: fn(&Printed) -> f64| median(&printed.iter().map(figure).collect::<Vec<_>>());
    let (p50, p99) = middle(|p| p.p50_us).zip(middle(|p| p.p99_us))?;
    Some(format!("wrk itself told latencies of {p50:.0} us (p50) and {p99:.0} us (p99)"))
}

/// One variant against another than the baseline.
fn compare(row: &Row, other: &str) -> String {
    format!(
        "against {other}: throughput x{}, CPU per request x{}",
        ratio(row.throughput_ratio),
        ratio(row.cpu_ratio)
    )
}
