//! `fable run PROGRAM [ARGUMENTS]`: a program whose TCP connections on this host go through memory.
//!
//! What does the work is a library, `libfable_preload.so`, which the dynamic loader puts under the
//! program (LD_PRELOAD, ld.so(8)). A program that the library cannot help is run as it is, and
//! standard error says why.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use preload::launch::{self, Library};
pub use preload::launch::{LibraryError, Obstacle, obstacle};

const LIBRARY: Library =
    Library { file: "libfable_preload.so", variable: "FABLE_PRELOAD", package: "fable-preload" };

/// What `fable run` takes from its command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Say what is done, and with which library.
    #[arg(short, long)]
    pub verbose: bool,

    /// Bytes of shared memory for each direction of a connection, rounded up to a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10,
          value_parser = clap::value_parser!(u64).range(4096..=16 << 20))]
    pub ring_bytes: u64,

    /// The longest time to look at shared memory before sleeping, in nanoseconds; 0 never looks.
    #[arg(long, value_name = "NANOSECONDS", default_value_t = 50_000,
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub spin_ns: u32,

    /// How many connections of a process may go through shared memory at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub connections: u32,

    /// When a process ends, write one line about its connections: how many went through shared
    /// memory, and how many came back to TCP for which reason. To standard error, or appended to
    /// FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          default_missing_value = "-")]
    pub statistics: Option<PathBuf>,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Why a program could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program is not in the search path, or may not be executed.
    #[error("{program}: {source}")]
    Execute {
        /// The name as it was given.
        program: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The library was not found.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The file for the statistics cannot be written.
    #[error("{file}: {source}; --statistics needs a file that can be written, or none")]
    Statistics {
        /// The file as it was given.
        file: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// No program was named.
    #[error("no program was named; say which one to run")]
    NoProgram,
}

impl RunError {
    /// Whether the program is not there, as opposed to one that cannot be executed.
    pub fn is_not_found(&self) -> bool {
        let RunError::Execute { source, .. } = self else { return false };
        source.kind() == std::io::ErrorKind::NotFound
    }
}

/// Executes the program in place of this process; returns only if that fails.
///
/// A program that cannot be helped (see [`Obstacle`]) is executed all the same, without the
/// library.
///
/// # Errors
/// [`RunError`], if the library or the program is not there.
pub fn run(options: &Options) -> Result<std::convert::Infallible, RunError> {
    let (name, arguments) = options.command.split_first().ok_or(RunError::NoProgram)?;
    let program = name.to_string_lossy().into_owned();
    let mut command = Command::new(name);
    command.args(arguments);
    match launch::find(name).as_deref().and_then(obstacle) {
        Some(obstacle) => eprintln!("fable: {program}: {obstacle}; it runs without shared memory"),
        None => prepare(options, &mut command)?,
    }
    Err(RunError::Execute { program, source: command.exec() })
}

/// Tells the loader and the library what to do.
fn prepare(options: &Options, command: &mut Command) -> Result<(), RunError> {
    let library = LIBRARY.find()?;
    if options.verbose {
        eprintln!("fable: {} goes under the program", library.display());
    }
    launch::preload(command, library);
    command.env("FABLE_RING_BYTES", options.ring_bytes.to_string());
    command.env("FABLE_SPIN_NS", options.spin_ns.to_string());
    command.env("FABLE_CONNECTIONS", options.connections.to_string());
    if let Some(file) = &options.statistics {
        // The program may change its directory before the line is written.
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        let to_error = file.as_os_str() == "-";
        if !to_error {
            let opened = File::options().create(true).append(true).open(&absolute);
            opened.map_err(|source| RunError::Statistics {
                file: file.display().to_string(),
                source,
            })?;
        }
        let target = if to_error { file } else { &absolute };
        command.env("FABLE_STATISTICS", target);
    }
    Ok(())
}
