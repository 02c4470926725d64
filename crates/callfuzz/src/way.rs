//! How the agents are run: plainly, or with a library under them.

use crate::hosts::{self, Hosts};
use preload::launch::{self, Library, LibraryError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const FABLE: Library =
    Library { file: "libfable_preload.so", variable: "FABLE_PRELOAD", package: "fable-preload" };

const MTCP: Library =
    Library { file: "libmtcp_preload.so", variable: "MTCP_PRELOAD", package: "mtcp-preload" };
const LAUNCHER: Library = Library { file: "mtcp", variable: "MTCP_LAUNCHER", package: "mtcp" };

/// How the agents are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// As they are.
    Plain,
    /// As they are, each in a network namespace of its own, which a veth pair joins.
    Veth,
    /// One of them on a user-level stack behind a TAP device, whose other end is its peer's kernel.
    Mtcp {
        /// The program that has `mtcp run`.
        launcher: PathBuf,
        /// Its library.
        library: PathBuf,
        /// Which of the two processes has the stack.
        tested: usize,
    },
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

    /// As `mtcp run` does it, with the programs beside this one.
    ///
    /// # Errors
    /// The library or the program is not there.
    pub fn mtcp() -> Result<Way, LibraryError> {
        let (launcher, library) = (LAUNCHER.find()?, MTCP.find()?);
        Ok(Way::Mtcp { launcher, library, tested: 0 })
    }

    /// The ways that are compared with [`Way::reference`]: of a stack, either process has it.
    pub(crate) fn all(&self) -> Vec<Way> {
        let Way::Mtcp { launcher, library, .. } = self else { return vec![self.clone()] };
        let of =
            |tested| Way::Mtcp { launcher: launcher.clone(), library: library.clone(), tested };
        vec![of(0), of(1)]
    }

    /// How the processes are run with which they are compared.
    pub(crate) fn reference(&self) -> Way {
        if self.has_hosts() { Way::Veth } else { Way::Plain }
    }

    /// Whether the processes have addresses of their own.
    pub(crate) fn has_hosts(&self) -> bool {
        matches!(self, Way::Veth | Way::Mtcp { .. })
    }

    /// Whether both processes are plain ones.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Way::Plain | Way::Veth)
    }

    /// The process that has a user-level stack.
    pub(crate) fn tested(&self) -> Option<usize> {
        match self {
            Way::Mtcp { tested, .. } => Some(*tested),
            _ => None,
        }
    }

    /// The network that the processes need.
    pub(crate) fn hosts(&self) -> io::Result<Option<Hosts>> {
        match self {
            Way::Veth => Hosts::veth().map(Some),
            Way::Mtcp { tested, .. } => Hosts::tap(*tested).map(Some),
            _ => Ok(None),
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Way::Plain | Way::Veth => "plain",
            Way::Mtcp { tested: 0, .. } => "mtcp connecting",
            Way::Mtcp { .. } => "mtcp accepting",
            Way::Fable { .. } => "fable",
        }
    }

    /// What starts a process; `settings` is where those of a stack are.
    pub(crate) fn command(&self, program: &Path, process: usize, settings: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("agent").env_remove("LD_PRELOAD");
        if let Way::Mtcp { launcher, library, tested } = self
            && *tested == process
        {
            launch::preload(&mut command, library.clone());
            // As `mtcp run` does it, which looks for obstacles in the program each time.
            command.env("MTCP_CONFIG", settings).env("MTCP_RUN_LAUNCHER", launcher);
        }
        if let Way::Fable { library, statistics } = self {
            launch::preload(&mut command, library.clone());
            command.env("FABLE_STATISTICS", statistics);
        }
        command
    }

    /// The settings of the stack.
    pub(crate) fn settings(&self) -> Option<String> {
        let [four, six] = hosts::addresses(self.tested()? + 1);
        Some(format!(
            "[device]\nkind = \"tap\"\ninterface = \"{}\"\n\
             [address]\nlist = [\"{four}\", \"{six}\"]\n[stat]\nenabled = false\n",
            hosts::INTERFACE
        ))
    }
}
