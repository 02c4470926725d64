//! Publishes the results of a measuring command: on standard output and in files.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::engine::whole_file::{self, WholeFile};
use crate::error::{Error, Result};
use crate::output;
use crate::results::csv::csv;
use crate::results::{Document, PARTIAL};

/// Output of results: options of every measuring command.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// File for the result document, JSON as docs/results.schema.json describes it; `report` and
    /// `diff` read it; `-` prints it in place of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// File for the rows as CSV, one line each; `-` prints them in place of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Exit with status 3 if a result is not valid, for scripts [default: report it, with status 0]
    #[arg(long)]
    pub(crate) strict: bool,
}

/// The files that were requested; checked to be writable before anything is measured.
pub(crate) struct ResultFiles {
    json: Option<WholeFile>,
    csv: Option<WholeFile>,
    /// A file is standard output, so that no table may be there.
    prints_file: bool,
}

impl ResultFiles {
    pub(crate) fn prepare(output: &OutputArgs) -> Result<ResultFiles> {
        let mut files = ResultFiles { json: None, csv: None, prints_file: false };
        for (path, file) in [(&output.json, &mut files.json), (&output.csv, &mut files.csv)] {
            let Some(path) = path else { continue };
            let prepared = WholeFile::prepare(path)?;
            files.prints_file = claim(files.prints_file, prepared.is_standard_output())?;
            *file = Some(prepared);
        }
        Ok(files)
    }

    /// Takes into account another file that the command writes while it measures.
    pub(crate) fn beside(mut self, path: Option<&Path>) -> Result<ResultFiles> {
        if let Some(path) = path {
            let prints = whole_file::prepare(path)?.is_standard_output();
            self.prints_file = claim(self.prints_file, prints)?;
        }
        Ok(self)
    }

    /// Returns whether the document is a regular file, beside which a journal can be.
    pub(crate) fn has_regular_json(&self) -> bool {
        self.json.as_ref().is_some_and(WholeFile::is_regular)
    }

    /// Prints the text, unless a file is printed instead, and writes all files. If the text cannot
    /// be printed, the files are written all the same. Fails if the run was interrupted.
    pub(crate) fn publish(self, text: &str, document: &Document) -> Result<()> {
        let mark =
            if document.interrupted { format!("PARTIAL: {PARTIAL}\n") } else { String::new() };
        let printed =
            if self.prints_file { Ok(()) } else { output::print(&(text.to_owned() + &mark)) };
        if let Some(file) = self.json {
            file.write(document)?;
        }
        if let Some(file) = self.csv {
            file.write_bytes(csv(&document.results)?.as_bytes())?;
        }
        printed?;
        match document.interrupted {
            true => Err(Error::Partial("the results are partial".to_owned())),
            false => Ok(()),
        }
    }
}

/// Returns whether a file is standard output by now; fails if a second one is.
fn claim(is_claimed: bool, claims: bool) -> Result<bool> {
    if is_claimed && claims {
        return Err(Error::setup(
            "two results cannot both be on standard output",
            "name a file for all but one of --json, --csv and --log",
        ));
    }
    Ok(is_claimed || claims)
}
