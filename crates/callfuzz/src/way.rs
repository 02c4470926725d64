//! How the agents are run: plainly, or with a library under them.

use launch::{Library, LibraryError};
use std::path::{Path, PathBuf};
use std::process::Command;

const FABLE: Library =
    Library { file: "libfable_preload.so", variable: "FABLE_PRELOAD", package: "fable-preload" };

/// How the agents are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// As they are.
    Plain,
    /// With a library under them, which writes its statistics to a file.
    Fable {
        /// The library.
        library: PathBuf,
        /// Where the line of each process goes.
        statistics: PathBuf,
    },
}

impl Way {
    /// As `fable run` does it.
    ///
    /// # Errors
    /// The library is not there.
    pub fn fable(statistics: PathBuf) -> Result<Way, LibraryError> {
        Ok(Way::Fable { library: FABLE.find()?, statistics })
    }

    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Way::Plain => "plain",
            Way::Fable { .. } => "fable",
        }
    }

    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("agent").env_remove("LD_PRELOAD");
        if let Way::Fable { library, statistics } = self {
            launch::preload(&mut command, library.clone());
            command.env("FABLE_STATISTICS", statistics);
        }
        command
    }
}
