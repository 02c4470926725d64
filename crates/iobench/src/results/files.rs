//! The files that a command that measures leaves behind.

use std::path::PathBuf;

use clap::Args;

use crate::engine::whole_file::WholeFile;
use crate::error::Result;
use crate::results::Document;
use crate::results::csv::csv;

/// What becomes of results: options of every command that measures.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Also write the result document to this file, as docs/results.schema.json says; `report` and
    /// `diff` read it
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Also write the rows to this file as CSV, one line each
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// End with status 2 if a result is not valid, for scripts [default: say so, with status 0]
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Files that are known to be writable, before anything is measured.
pub(crate) struct ResultFiles {
    json: Option<WholeFile>,
    csv: Option<WholeFile>,
}

impl ResultFiles {
    /// Nothing if no file is asked for.
    pub(crate) fn prepare(output: &OutputArgs) -> Result<Option<ResultFiles>> {
        let prepare = |file: &Option<_>| file.as_deref().map(WholeFile::prepare).transpose();
        let files = ResultFiles { json: prepare(&output.json)?, csv: prepare(&output.csv)? };
        Ok((files.json.is_some() || files.csv.is_some()).then_some(files))
    }

    /// Writes all of them.
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
