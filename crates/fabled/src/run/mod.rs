//! `fable run PROGRAM [ARGUMENTS]`: runs a program whose TCP connections on this host go through
//! shared memory.
//!
//! The dynamic loader loads the library `libfable_preload.so` into the program (LD_PRELOAD,
//! ld.so(8)). A program that the library does not support runs without it, and standard error says
//! why.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use preload::launch::{self, Library};
pub use preload::launch::{LibraryError, Obstacle, obstacle};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, SocketType, socket};
use sys::output::STDERR;

const LIBRARY: Library =
    Library { file: "libfable_preload.so", variable: "FABLE_PRELOAD", package: "fable-preload" };

/// What `fable run` takes from its command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print the path of the preload library to standard error.
    #[arg(short, long)]
    pub verbose: bool,

    /// Shared memory for each direction of a connection, in bytes, 4096 to 16777216, rounded up to
    /// a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10,
          value_parser = clap::value_parser!(u64).range(4096..=16 << 20))]
    pub ring_bytes: u64,

    /// Longest time to poll shared memory before a call sleeps, in nanoseconds, 0 to 1000000; 0
    /// never polls.
    #[arg(long, value_name = "NANOSECONDS", default_value_t = 50_000,
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub spin_ns: u32,

    /// Limit of a process's simultaneous connections over shared memory, 1 to 1048576; further ones
    /// use TCP.
    #[arg(long, value_name = "COUNT", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub connections: u32,

    /// File to which each process appends a line at its end, such as fable.log: connections over
    /// shared memory, and those that returned to TCP, by reason [default without FILE: standard
    /// error].
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          default_missing_value = "-")]
    pub statistics: Option<PathBuf>,

    /// Program to run, with its arguments, such as redis-server --port 6379.
    #[arg(required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Why a program could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program is not in the search path, or may not be executed.
    #[error("cannot execute {program}: {source}; {}", launch::execute_remedy(source))]
    Execute {
        /// The program, as given.
        program: String,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The library was not found.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The file for the statistics cannot be written.
    #[error(
        "cannot write the statistics to {file}: {source}; name a file in a directory that exists \
         and is writable, or use --statistics without a file"
    )]
    Statistics {
        /// The file, as given.
        file: String,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// No program was named.
    #[error("no program was named; add it, as in `fable run redis-server --port 6379`")]
    NoProgram,
}

impl RunError {
    /// Returns whether the program does not exist, as opposed to not being executable.
    pub fn is_not_found(&self) -> bool {
        let RunError::Execute { source, .. } = self else { return false };
        source.kind() == std::io::ErrorKind::NotFound
    }
}

/// Executes the program in place of this process; returns only if that fails.
///
/// A program that the library does not support (see [`Obstacle`]) is executed without the library.
///
/// # Errors
/// [`RunError`], if the library or the program is missing.
pub fn run(options: &Options) -> Result<std::convert::Infallible, RunError> {
    let (name, arguments) = options.command.split_first().ok_or(RunError::NoProgram)?;
    let program = name.to_string_lossy().into_owned();
    let mut command = Command::new(name);
    command.args(arguments);
    match launch::find(name).as_deref().and_then(obstacle) {
        Some(obstacle) => {
            let effect = "it runs over TCP, without shared memory";
            STDERR.line(format_args!("fable: {program} {obstacle}; {effect}"));
        }
        None => {
            prepare(options, &mut command)?;
            let needs = [
                ("opens", "memfd_create(2) or its seals", make_memory()),
                ("accepts", "netlink(7) sockets for sock_diag(7)", open_diagnosis()),
            ];
            for (verb, call, result) in needs {
                let Err(error) = result else { continue };
                STDERR.line(format_args!(
                    "fable: connections that {program} {verb} stay in TCP, because {call} are \
                     refused: {error}; permit them in the sandbox"
                ));
            }
        }
    }
    Err(RunError::Execute { program, source: command.exec() })
}

/// Makes shared memory as the library does in the program, which has the same system calls.
fn make_memory() -> std::io::Result<()> {
    let file = memfd_create("fable", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    Ok(fcntl_add_seals(file, SealFlags::SEAL)?)
}

/// Opens the socket with which the library finds out who has connected.
fn open_diagnosis() -> std::io::Result<()> {
    Ok(socket(AddressFamily::NETLINK, SocketType::RAW, Some(SOCK_DIAG)).map(drop)?)
}

/// Sets the environment for the loader and the library.
fn prepare(options: &Options, command: &mut Command) -> Result<(), RunError> {
    let library = LIBRARY.find()?;
    if options.verbose {
        STDERR.line(format_args!("fable: the preload library is {}", library.display()));
    }
    launch::preload(command, library);
    command.env("FABLE_RING_BYTES", options.ring_bytes.to_string());
    command.env("FABLE_SPIN_NS", options.spin_ns.to_string());
    command.env("FABLE_CONNECTIONS", options.connections.to_string());
    if let Some(file) = &options.statistics {
        // The program may change its directory before the statistics are written.
        let target = sys::output_file::prepare_log(file)
            .map_err(|source| RunError::Statistics { file: file.display().to_string(), source })?;
        command.env("FABLE_STATISTICS", target);
    }
    Ok(())
}
