//! Implements `mtcp run PROGRAM [ARGUMENTS]`: runs an unmodified program whose TCP uses the stack,
//! through a preload library.

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
    /// Configuration file of the stack, such as mtcp.toml [default: $MTCP_CONFIG].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Run the stack in the program's own threads, while they wait or call, instead of a thread of
    /// its own. This costs less CPU time if the program calls the socket API every few
    /// milliseconds.
    #[arg(long)]
    complete: bool,

    /// Run without the filter of system calls (seccomp(2)) of the stack's own threads, for programs
    /// that give all their threads a filter.
    #[arg(long)]
    no_seccomp: bool,

    /// File to which calls are logged that the library does not support, such as mtcp.log [default
    /// without FILE: standard error].
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          default_missing_value = "-")]
    log: Option<PathBuf>,

    /// Program to run, with its arguments, such as lighttpd -D -f lighttpd.conf.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// The reason why a program could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The library was not found.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// It would use the kernel's TCP without anybody noticing.
    #[error(
        "cannot run {program} on the stack: it {obstacle}; start it without `mtcp run`, or use a \
         dynamically linked program that calls the C library for its sockets"
    )]
    Obstacle {
        /// The name of the program.
        program: String,
        /// The reason why the library does not support it.
        obstacle: Obstacle,
    },
    /// The program is not in the search path, or may not be executed.
    #[error("cannot execute {program}: {source}; {}", preload::launch::execute_remedy(source))]
    Execute {
        /// The name as given.
        program: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file of `--log` cannot be written.
    #[error("cannot write {}: {source}; choose another file for --log", file.display())]
    Log {
        /// The file as given.
        file: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No program was given.
    #[error("no program was named; add it, as in `mtcp run lighttpd -D -f lighttpd.conf`")]
    NoProgram,
}

impl RunError {
    /// The exit codes of shells for a command that does not exist, and for one that cannot be
    /// executed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            RunError::Execute { source, .. } if source.kind() == ErrorKind::NotFound => 127,
            RunError::Execute { .. } | RunError::Obstacle { .. } | RunError::Log { .. } => 126,
            RunError::Config(_) | RunError::Library(_) | RunError::NoProgram => 1,
        }
    }
}

/// Executes the program in this process; returns only if that fails.
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
            // The program may change its working directory before it uses the stack.
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            command.env(ENVIRONMENT, absolute);
        }
        None => drop(Config::from_environment()?),
    }
    if options.complete {
        command.env("MTCP_RUN_COMPLETE", "1");
    }
    if options.no_seccomp {
        command.env("MTCP_RUN_NO_SECCOMP", "1");
    }
    if let Some(file) = &options.log {
        let target = sys::output_file::prepare_log(file)
            .map_err(|source| RunError::Log { file: file.clone(), source })?;
        command.env("MTCP_LOG", target);
    }
    // If the program is killed, `mtcp reset-peers` resets its connections.
    if let Ok(this) = std::env::current_exe() {
        command.env("MTCP_RUN_LAUNCHER", this);
    }
    launch::preload(&mut command, LIBRARY.find()?);
    Err(RunError::Execute { program, source: command.exec() })
}
