//! Turns slots into tables and into a result file that `report` and `diff` read.

use std::fmt::Write;

use crate::apps::App;
use crate::apps::app_cell::Measured;
use crate::cli::apps::LoadShape;
use crate::compare::report::{self, Rounds};
use crate::compare::table;
use crate::engine::environment::Environment;
use crate::engine::statistics::median;
use crate::error::Result;
use crate::results::table::ratio;
use crate::results::{Document, ExperimentRecord, Ratios, Row};

/// The rows of all cells, with the notes that no column shows.
pub(crate) struct Summary<'a> {
    app: &'a dyn App,
    shape: &'a LoadShape,
    labels: Vec<String>,
    baseline: String,
    measured: &'a [Measured<'a>],
    /// By cell, then by variant.
    rows: Vec<Row>,
    /// Notes that no column shows, by row.
    told: Vec<Vec<String>>,
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
        let (mut rows, mut told) = (Vec::new(), Vec::new());
        for Measured { app_cell, outcomes } in measured {
            let of_cell =
                report::rows(&app_cell.cell, shape.connections, &names, baseline, outcomes)?;
            rows.extend(of_cell.into_iter().map(|mut row| {
                report::note_sharing(&mut row);
                row.workload = app.load();
                row
            }));
            let notes = |rounds: &Rounds| note_threads(rounds).into_iter().collect::<Vec<_>>();
            told.extend(outcomes.iter().map(notes));
            // The last variant is MegaPipe's; its ratio to every other one is always shown.
            let ours = names.len() - 1;
            let others = (0..ours).filter(|&other| other != baseline && ours != baseline);
            let compared =
                others.map(|other| compare(&report::ratios(outcomes, ours, other), names[other]));
            told.last_mut().into_iter().for_each(|notes| notes.extend(compared.clone()));
        }
        let baseline = labels[baseline].clone();
        Ok(Summary { app, shape, labels, baseline, measured, rows, told })
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.rows.iter().all(|row| row.valid)
    }

    /// Returns all tables and notes as text.
    pub(crate) fn render(&self) -> String {
        let table = table::table(&self.rows, &self.baseline);
        let mut text = format!("{}\n\n{table}\n", self.app.settings());
        let app_cells = self.measured.iter().flat_map(|m| self.labels.iter().map(|_| m.app_cell));
        for ((row, told), app_cell) in self.rows.iter().zip(&self.told).zip(app_cells) {
            if !told.is_empty() {
                let what = app_cell.describe();
                let _ = writeln!(text, "{what}, {}: {}", row.subject, told.join("; "));
            }
        }
        text.push('\n');
        for sentence in table::summarise(self.rows.iter(), &self.baseline) {
            let _ = writeln!(text, "{sentence}");
        }
        text
    }

    /// Returns the result document, in the form of `run`.
    pub(crate) fn document(
        &self,
        environment: Environment,
        network: &str,
        elapsed_s: f64,
    ) -> Document {
        let with_told = |(row, told): (&Row, &Vec<String>)| Row {
            notes: [&row.notes[..], told].concat(),
            ..row.clone()
        };
        let rows = self.rows.iter().zip(&self.told).map(with_told).collect();
        let name = self.app.name();
        let experiment = ExperimentRecord {
            name: format!("apps-{name}"),
            title: format!("{name}, {}", self.app.load()),
            source: None,
            scale: if self.shape.measure.quick { "quick" } else { "default" }.to_owned(),
            file: format!("{}\nnetwork: {network}\n", self.app.settings()),
        };
        Document::new(environment, experiment, elapsed_s, self.baseline.clone(), rows)
    }
}

/// Returns the busy part of each worker's time, in the median over slots.
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

/// Returns the ratios of one variant to a variant other than the baseline.
fn compare(ratios: &Ratios, other: &str) -> String {
    format!(
        "against {other}: throughput x{}, CPU per request x{}",
        ratio(ratios.throughput_ratio),
        ratio(ratios.cpu_ratio)
    )
}
