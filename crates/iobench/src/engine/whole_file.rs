//! Writes the files that options name; `-` is standard output.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sys::output_file::OutputFile;

use crate::error::{Context, Error, Result};
use crate::output;

/// A file whose content is written at once, as [`OutputFile`] does.
pub(crate) struct WholeFile {
    file: OutputFile,
    shown: String,
}

impl WholeFile {
    /// Checks before the run that the file can be written.
    pub(crate) fn prepare(path: &Path) -> Result<WholeFile> {
        Ok(WholeFile { file: prepare(path)?, shown: path.display().to_string() })
    }

    pub(crate) fn is_standard_output(&self) -> bool {
        self.file.is_standard_output()
    }

    /// Returns whether other files can be beside it.
    pub(crate) fn is_regular(&self) -> bool {
        self.file.is_regular()
    }

    /// Refuses a file that is read as well: its content would be lost.
    pub(crate) fn check_is_no_input(&self, inputs: &[PathBuf]) -> Result<()> {
        match inputs.iter().find(|input| self.file.is(input)) {
            None => Ok(()),
            Some(_) => Err(Error::setup(
                format!("{} is an input, and would be replaced by the output", self.shown),
                "choose another file for the output",
            )),
        }
    }

    /// Writes a value as JSON.
    pub(crate) fn write(self, value: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(value)
            .map_err(std::io::Error::from)
            .context("encode the results", "report this as a bug")?;
        text.push(b'\n');
        self.write_bytes(&text)
    }

    /// Writes bytes.
    pub(crate) fn write_bytes(self, bytes: &[u8]) -> Result<()> {
        if self.is_standard_output() {
            return output::print_with(|out| out.write_all(bytes));
        }
        let action = format!("write {}", self.shown);
        self.file.write(bytes).context(action, "free some space, or choose another file")
    }
}

/// Finds the file that an option names.
pub(crate) fn prepare(path: &Path) -> Result<OutputFile> {
    const REMEDY: &str = "choose a file in a directory that exists and is writable";
    OutputFile::prepare(path).context(format!("write {}", path.display()), REMEDY)
}
