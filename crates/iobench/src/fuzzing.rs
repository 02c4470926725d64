//! Checks properties of the parsers of files that hold for all bytes; fuzz targets call it.

use std::path::Path;

use crate::diff::{self, Outcome};
use crate::experiment::file::{Experiment, Scale};
use crate::experiment::points::{MOST_POINTS, expand};
use crate::report::section::Section;
use crate::report::{input, render};
use crate::results::csv::csv;

/// CPUs of the machine for which experiments are expanded.
const CPUS: [usize; 4] = [0, 1, 2, 3];
/// Scripts of a page about one file: the page's own, and the data of the file.
const SCRIPTS: usize = 2;

/// Reads the bytes as a result file, compares it with itself, and makes its page.
///
/// # Panics
/// If a property does not hold.
pub fn result_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(saved) = input::checked(text.to_owned(), Path::new("results.json")) else { return };
    assert!(csv(&saved.document.results).is_ok());
    let diff = diff::compare(&saved, &saved, diff::Bounds { threshold: 0.05, drift: 0.05 });
    assert_ne!(diff.outcome, Outcome::Regression, "a file is worse than itself");
    let table = diff::table(&diff);
    let escapes = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    assert!(!table.contains(escapes), "a command for the terminal: {table:?}");
    let page = match render(&Section::all(vec![saved])) {
        Ok(page) => page,
        // Histograms are read when they are drawn.
        Err(error) => {
            let error = error.to_string();
            return assert!(error.starts_with("cannot read a histogram"), "{error}");
        }
    };
    for tag in ["<script", "</script>"] {
        assert_eq!(page.matches(tag).count(), SCRIPTS, "the file has added a script");
    }
}

/// Reads the bytes behind the first one as an experiment, and expands its points.
///
/// # Panics
/// If a property does not hold.
pub fn experiment(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let scale = [Scale::Default, Scale::Quick, Scale::Paper][usize::from(choice) % 3];
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(experiment) = Experiment::parse(text, scale) else { return };
    let Ok(points) = expand(&experiment, &CPUS) else { return };
    assert!(points.len() <= MOST_POINTS);
    for point in points {
        assert!(point.connections > 0 && point.exchange.request_bytes > 0, "{point:?}");
    }
}
