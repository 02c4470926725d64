//! Writes the result files of a measuring command.

use std::path::PathBuf;

use clap::Args;

use crate::engine::whole_file::WholeFile;
use crate::error::Result;
use crate::results::Document;
use crate::results::csv::csv;

/// Output of results: options of every measuring command.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// File for the result document, JSON as docs/results.schema.json describes it; `report` and
    /// `diff` read it
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// File for the rows as CSV, one line each
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
}

impl ResultFiles {
    /// Prepares the files; `None` if the user named no file.
    pub(crate) fn prepare(output: &OutputArgs) -> Result<Option<ResultFiles>> {
        let prepare = |file: &Option<_>| file.as_deref().map(WholeFile::prepare).transpose();
        let files = ResultFiles { json: prepare(&output.json)?, csv: prepare(&output.csv)? };
        Ok((files.json.is_some() || files.csv.is_some()).then_some(files))
    }

    /// Writes all files.
    pub(crate) fn write(self, document: &Document) -> Result<()> {
        if let Some(file) = self.json {
            file.write(document)?;
        }
        match self.csv {
            Some(file) => file.write_bytes(csv(&document.results)?.as_bytes()),
            None => Ok(()),
        }
    }
}
