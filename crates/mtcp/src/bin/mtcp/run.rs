//! `mtcp run PROGRAM [ARGUMENTS]`: an unmodified program whose TCP goes through the stack, by a
//! library that the dynamic loader puts under it.

use mtcp::config::{Config, ConfigError, ENVIRONMENT};
use preload::launch::{self, Library, LibraryError, Obstacle};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const LIBRARY: Library =
    Library { file: "libmtcp_preload.so", variable: "MTCP_PRELOAD", package: "mtcp-preload" };

/// What `mtcp run` takes from its command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The settings of the stack; without it, the file that MTCP_CONFIG names.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// No thread for the stack: it moves only while the program waits or calls. Cheaper on one
    /// processor, for programs that come back to their event loop within milliseconds.
    #[arg(long)]
    complete: bool,

    /// Write what the library does not understand to standard error, or append it to FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          default_missing_value = "-")]
    log: Option<PathBuf>,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Why a program could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The settings are not good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The library was not found.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// It would use the kernel's TCP without anybody noticing.
    #[error("{program} {obstacle}: the library cannot stand under it, and it was not started")]
    Obstacle {
        /// Its name.
        program: String,
        /// What is in the way.
        obstacle: Obstacle,
    },
    /// The program is not in the search path, or may not be executed.
    #[error("{program}: {source}")]
    Execute {
        /// The name as it was given.
        program: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// No program was named.
    #[error("no program was named; say which one to run")]
    NoProgram,
}

impl RunError {
    /// What shells say of a command that is not there, and of one that cannot be executed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            RunError::Execute { source, .. } if source.kind() == ErrorKind::NotFound => 127,
            RunError::Execute { .. } | RunError::Obstacle { .. } => 126,
            RunError::Config(_) | RunError::Library(_) | RunError::NoProgram => 1,
        }
    }
}

/// Executes the program in place of this process; returns only if that fails.
pub(crate) fn run(options: &Options) -> Result<std::convert::Infallible, RunError> {
    let (name, arguments) = options.command.split_first().ok_or(RunError::NoProgram)?;
    let program = name.to_string_lossy().into_owned();
    if let Some(obstacle) = launch::find(name).as_deref().and_then(launch::obstacle) {
        return Err(RunError::Obstacle { program, obstacle });
    }
    let mut command = Command::new(name);
    command.args(arguments);
    match &options.config {
        Some(path) => {
            Config::load(path)?;
            // The program may change its directory before it uses the stack.
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            command.env(ENVIRONMENT, absolute);
        }
        None => drop(Config::from_environment()?),
    }
    if options.complete {
        command.env("MTCP_RUN_COMPLETE", "1");
    }
    if let Some(file) = &options.log {
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        command.env("MTCP_LOG", if file.as_os_str() == "-" { file } else { &absolute });
    }
    // If the program is killed, `mtcp reset-peers` resets its connections.
    if let Ok(this) = std::env::current_exe() {
        command.env("MTCP_RUN_LAUNCHER", this);
    }
    launch::preload(&mut command, LIBRARY.find()?);
    Err(RunError::Execute { program, source: command.exec() })
}
