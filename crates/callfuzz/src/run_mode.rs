//! Defines how the agents are run: plainly, or with a library under them.

use crate::hosts::{self, Hosts};
use preload::launch::{self, Library, LibraryError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const FABLE: Library =
    Library { file: "libfable_preload.so", variable: "FABLE_PRELOAD", package: "fable-preload" };

const MTCP: Library =
    Library { file: "libmtcp_preload.so", variable: "MTCP_PRELOAD", package: "mtcp-preload" };
const LAUNCHER: Library = Library { file: "mtcp", variable: "MTCP_LAUNCHER", package: "mtcp-cli" };

/// How the agents are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunMode {
    /// Without a library.
    Plain,
    /// Without a library, each in a network namespace of its own, which a veth pair joins.
    Veth,
    /// One of them on a user-level stack behind a TAP device, whose other end is its peer's kernel.
    Mtcp {
        /// The program that has `mtcp run`.
        launcher: PathBuf,
        /// Its library.
        library: PathBuf,
        /// The process (0 or 1) on the stack.
        tested: usize,
    },
    /// With a preload library, which writes its statistics to a file.
    Fable {
        /// The library.
        library: PathBuf,
        /// The file to which each process appends a line.
        statistics: PathBuf,
    },
}

impl RunMode {
    /// Returns the way that `fable run` uses.
    ///
    /// # Errors
    /// The library does not exist.
    pub fn fable(statistics: PathBuf) -> Result<RunMode, LibraryError> {
        Ok(RunMode::Fable { library: FABLE.find()?, statistics })
    }

    /// Returns the way that `mtcp run` uses, with the programs in this one's directory.
    ///
    /// # Errors
    /// The library or the program does not exist.
    pub fn mtcp() -> Result<RunMode, LibraryError> {
        let (launcher, library) = (LAUNCHER.find()?, MTCP.find()?);
        Ok(RunMode::Mtcp { launcher, library, tested: 0 })
    }

    /// Returns the ways that are compared with [`RunMode::reference`]: for a stack, each of the two
    /// processes has it once.
    pub(crate) fn all(&self) -> Vec<RunMode> {
        let RunMode::Mtcp { launcher, library, .. } = self else { return vec![self.clone()] };
        let of =
            |tested| RunMode::Mtcp { launcher: launcher.clone(), library: library.clone(), tested };
        vec![of(0), of(1)]
    }

    /// Returns the way of the reference.
    pub(crate) fn reference(&self) -> RunMode {
        if self.has_hosts() { RunMode::Veth } else { RunMode::Plain }
    }

    /// Returns whether the processes have addresses of their own.
    pub(crate) fn has_hosts(&self) -> bool {
        matches!(self, RunMode::Veth | RunMode::Mtcp { .. })
    }

    /// Returns whether both processes are plain ones.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, RunMode::Plain | RunMode::Veth)
    }

    /// Returns the process that has a user-level stack.
    pub(crate) fn tested(&self) -> Option<usize> {
        match self {
            RunMode::Mtcp { tested, .. } => Some(*tested),
            _ => None,
        }
    }

    /// Sets up the network that the processes need.
    pub(crate) fn hosts(&self) -> io::Result<Option<Hosts>> {
        match self {
            RunMode::Veth => Hosts::veth().map(Some),
            RunMode::Mtcp { tested, .. } => Hosts::tap(*tested).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            RunMode::Plain | RunMode::Veth => "plain",
            RunMode::Mtcp { tested: 0, .. } => "mtcp connecting",
            RunMode::Mtcp { .. } => "mtcp accepting",
            RunMode::Fable { .. } => "fable",
        }
    }

    /// Returns the command that starts a process; `settings` is the path of a stack's settings.
    pub(crate) fn command(&self, program: &Path, process: usize, settings: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("agent").env_remove("LD_PRELOAD");
        if let RunMode::Mtcp { launcher, library, tested } = self
            && *tested == process
        {
            launch::preload(&mut command, library.clone());
            // Like `mtcp run`, which checks the program for obstacles each time.
            command.env("MTCP_CONFIG", settings).env("MTCP_RUN_LAUNCHER", launcher);
        }
        if let RunMode::Fable { library, statistics } = self {
            launch::preload(&mut command, library.clone());
            command.env("FABLE_STATISTICS", statistics);
        }
        command
    }

    /// Returns the settings of the stack.
    pub(crate) fn settings(&self) -> Option<String> {
        let [four, six] = hosts::addresses(self.tested()? + 1);
        Some(format!(
            "[device]\nkind = \"tap\"\ninterface = \"{}\"\n\
             [address]\nlist = [\"{four}\", \"{six}\"]\n[stat]\nenabled = false\n",
            hosts::INTERFACE
        ))
    }
}
