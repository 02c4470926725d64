//! Groups result files into sections: one experiment, from one file or from several.

use crate::report::input::Saved;
use crate::report::point::{self, Dimension};
use crate::results::{Kind, Row};

/// Separates a server's name from the file's in an overlay.
const SEPARATOR: &str = " · ";

/// One experiment's results.
pub(crate) struct Section {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) baseline: String,
    /// In the order of first appearance; the index is the series' number.
    pub(crate) servers: Vec<String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) varying: Vec<Dimension>,
    pub(crate) files: Vec<Saved>,
}

impl Section {
    /// Groups files of the same experiment, so that they are drawn in the same charts.
    pub(crate) fn all(files: Vec<Saved>) -> Vec<Section> {
        let mut together: Vec<Vec<Saved>> = Vec::new();
        for file in files {
            let same = together.iter_mut().find(|others| is_same(&others[0], &file));
            match same {
                Some(others) => others.push(file),
                None => together.push(vec![file]),
            }
        }
        let numbered = together.into_iter().enumerate();
        numbered.map(|(index, files)| Section::new(format!("e{}", index + 1), files)).collect()
    }

    fn new(id: String, files: Vec<Saved>) -> Section {
        let overlay = files.len() > 1;
        let mut rows = Vec::new();
        for (index, file) in files.iter().enumerate() {
            rows.extend(file.document.results.iter().cloned().map(|mut row| {
                if overlay {
                    row.subject = name_in_overlay(&row.subject, index, &file.label);
                }
                row
            }));
        }
        let mut servers: Vec<String> = Vec::new();
        for row in &rows {
            if !servers.contains(&row.subject) {
                servers.push(row.subject.clone());
            }
        }
        // In an overlay the same server of all files is shown side by side.
        let bases: Vec<String> = servers.iter().map(|name| base(name).to_owned()).collect();
        servers.sort_by_key(|name| bases.iter().position(|other| other == base(name)));
        let first = &files[0].document;
        let title = match first.experiment.title.as_str() {
            "" => first.experiment.name.clone(),
            title => title.to_owned(),
        };
        let varying = point::varying(&rows);
        Section { id, title, baseline: first.baseline.clone(), servers, rows, varying, files }
    }

    /// Rows of a kind, or of several.
    pub(crate) fn of_kinds(&self, kinds: &[Kind]) -> Vec<&Row> {
        self.rows.iter().filter(|row| kinds.contains(&row.kind)).collect()
    }

    /// Returns what is measured as the service time in this section.
    pub(crate) fn service_time(&self) -> &'static str {
        if self.rows.iter().all(|row| matches!(row.kind, Kind::Closed | Kind::OneWay)) {
            "From sending a request to the complete answer. In a closed loop a slow answer delays \
             the next request, so what would have waited meanwhile is not seen."
        } else {
            "From the intended send time to the complete answer, so that waiting counts."
        }
    }

    /// Returns the number of a server's series.
    pub(crate) fn series(&self, row: &Row) -> usize {
        self.servers.iter().position(|server| *server == row.subject).unwrap_or(0)
    }

    /// Returns whether the row is of the baseline.
    pub(crate) fn is_baseline(&self, row: &Row) -> bool {
        // In an overlay every file has its own baseline, whose name contains the file's.
        row.subject == self.baseline || base(&row.subject) == self.baseline
    }

    /// Returns the server and workload of the rows, for the title of a picture.
    pub(crate) fn about(&self, rows: &[&Row]) -> String {
        let mut workloads: Vec<String> = Vec::new();
        for row in rows {
            let workload = format!("{} ({})", row.workload, Dimension::Kind.phrase(row));
            if !workloads.contains(&workload) {
                workloads.push(workload);
            }
        }
        let is_shown = |name: &&String| rows.iter().any(|row| row.subject == **name);
        let subjects: Vec<&str> =
            self.servers.iter().filter(is_shown).map(String::as_str).collect();
        format!("{}: {}", workloads.join(", "), subjects.join(", "))
    }

    /// Returns a row with its dimensions, such as `epoll at 400 connections and 8,000 requests/s`.
    pub(crate) fn place(&self, row: &Row) -> String {
        let phrases: Vec<String> =
            self.varying.iter().map(|dimension| dimension.phrase(row)).collect();
        let phrases = match phrases.as_slice() {
            [] if row.request_rate.is_some() => {
                vec![Dimension::Connections.phrase(row), Dimension::Rate.phrase(row)]
            }
            [] => vec![Dimension::Connections.phrase(row)],
            _ => phrases,
        };
        match phrases.split_last() {
            Some((last, [])) => format!("at {last}"),
            Some((last, others)) => format!("at {} and {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

fn is_same(one: &Saved, other: &Saved) -> bool {
    let (one, other) = (&one.document, &other.document);
    one.experiment.name == other.experiment.name
        && one.experiment.file == other.experiment.file
        && one.experiment.scale == other.experiment.scale
}

/// Returns a server's name without the file's.
fn base(name: &str) -> &str {
    name.split_once(SEPARATOR).map_or(name, |(base, _)| base)
}

/// Returns the server's name with the file's number and name, because files in different
/// directories may have the same name.
fn name_in_overlay(server: &str, index: usize, label: &str) -> String {
    format!("{server}{SEPARATOR}{}: {label}", index + 1)
}
