//! The options that the programs of this package share, and their output.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::operations::Extent;

/// Options of a command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Run the short form, as the tests do
    #[arg(long)]
    quick: bool,
    /// Run only what has this in its name
    #[arg(long, default_value = "", hide_default_value = true)]
    pub only: String,
    /// Write the result to this file, too
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Options {
    /// Returns how much is run.
    pub fn extent(&self) -> Extent {
        if self.quick { Extent::Quick } else { Extent::Full }
    }
}

/// Prints the table and writes the file; returns the exit status.
pub fn finish(options: &Options, text: &str, json: &str, is_good: bool) -> ExitCode {
    print!("{text}");
    if let Some(path) = &options.json
        && let Err(error) = fs::write(path, json)
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
