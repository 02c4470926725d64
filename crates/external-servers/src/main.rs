//! `iobench-external`: the echo server of `iobench` on other runtimes (tokio, compio, glommio,
//! megapipe-rt), the HTTP servers of `iobench http`, and the ends of `iobench ipc` on other
//! libraries (iceoryx2, ZeroMQ).
//!
//! `iobench compare --peer` compares these servers with its own without depending on their
//! runtimes. Each runtime is one file with one function, `serve`; the rest is shared.
//!
//! # Modules
//!
//! - `on_tokio`, `on_compio`, `on_glommio`, `on_megapipe_rt`: one runtime each.
//! - `listener`, `service`: listening sockets, and the server's response to what it receives.
//! - `workers`: the threads of a server, until a signal.
//! - `http`: an axum application on each of several runtimes.
//! - `ipc`: the ends of `iobench ipc`.
//! - `error`, `sys`: errors with their remedies, pinning, limits and signals.

mod error;
mod http;
mod ipc;
mod listener;
mod on_compio;
mod on_glommio;
mod on_megapipe_rt;
mod on_tokio;
mod service;
mod sys;
mod workers;

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand, ValueEnum};

use crate::error::Result;
use crate::service::Service;
use crate::workers::{Ready, one_each};

/// Largest size of a request and of a response.
const MOST_MESSAGE_BYTES: u64 = 1 << 20;

const EXAMPLES: &str = "\
Each CPU has one thread that is pinned to it, with a runtime and a listening socket of its own; the
sockets share the port (SO_REUSEPORT) and the kernel spreads the connections over them. One line
says when the server is ready; SIGINT, SIGTERM or SIGHUP ends it.

Examples:
  iobench-external tokio --bind 127.0.0.1:7000
  iobench compare --peer 'tokio=iobench-external tokio --bind 127.0.0.1:{port} --cpus {cpus}'";

/// The echo server of iobench on other runtimes.
#[derive(Debug, Parser)]
#[command(name = "iobench-external", version, about, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    /// Runtime of the server
    #[arg(required = true)]
    runtime: Option<Runtime>,

    /// Address and port; port 0 for a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7000")]
    bind: SocketAddr,

    /// CPUs for server threads, one thread each [default: the first CPU of the process]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Option<Vec<usize>>,

    /// Bytes of a request, 1 to 1048576; without them every byte is sent back as it arrives
    #[arg(long, value_name = "N", requires = "response_bytes",
          value_parser = clap::value_parser!(u64).range(1..=MOST_MESSAGE_BYTES))]
    request_bytes: Option<u64>,

    /// Bytes of the answer to each request; an HTTP response if it is large enough for one, and an
    /// echo if it has the size of the request
    #[arg(long, value_name = "N", requires = "request_bytes",
          value_parser = clap::value_parser!(u64).range(1..=MOST_MESSAGE_BYTES))]
    response_bytes: Option<u64>,
}

/// The program's other commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Serve an axum application for `iobench http`, over HTTP/1 and HTTP/2 without TLS.
    Http(http::HttpArguments),
    /// Make one measurement of `iobench ipc` over another library; prints lines of JSON.
    Ipc(ipc::IpcArguments),
}

/// The runtime of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Runtime {
    /// tokio, a current-thread runtime on each CPU (epoll)
    Tokio,
    /// compio (io_uring)
    Compio,
    /// glommio (io_uring)
    Glommio,
    /// megapipe-rt, this repository's own (io_uring, or epoll by MEGAPIPE_DRIVER=epoll)
    MegapipeRt,
}

impl Runtime {
    fn name(self) -> &'static str {
        match self {
            Runtime::Tokio => "tokio",
            Runtime::Compio => "compio",
            Runtime::Glommio => "glommio",
            Runtime::MegapipeRt => "megapipe-rt",
        }
    }

    /// Returns whether one runtime uses all CPUs, with one listening socket.
    fn spans_cpus(self) -> bool {
        self == Runtime::MegapipeRt
    }

    /// Serves on the calling thread, which is bound to `cpus` CPUs, until the process ends; returns
    /// only an error.
    fn serve(
        self,
        listener: TcpListener,
        cpus: usize,
        service: Arc<Service>,
        ready: Ready,
    ) -> Result<()> {
        match self {
            Runtime::Tokio => on_tokio::serve(listener, service, || ready.tell()),
            Runtime::Compio => on_compio::serve(listener, service, || ready.tell()),
            Runtime::Glommio => on_glommio::serve(listener, service, || ready.tell()),
            Runtime::MegapipeRt => on_megapipe_rt::serve(listener, cpus, service, ready),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Arguments = match cli::parse_commands() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let outcome = match (&arguments.command, arguments.runtime) {
        (Some(Command::Http(arguments)), _) => http::run(arguments),
        (Some(Command::Ipc(arguments)), _) => ipc::run(arguments),
        (None, Some(runtime)) => run(&arguments, runtime),
        (None, None) => Ok(()),
    };
    cli::status("iobench-external", outcome)
}

/// Echoes until a signal.
fn run(arguments: &Arguments, runtime: Runtime) -> Result<()> {
    let cpus = sys::chosen_cpus(arguments.cpus.as_deref())?;
    let sizes = arguments.request_bytes.zip(arguments.response_bytes);
    let sizes = sizes.map(|(request, response)| (request as usize, response as usize));
    let service = Arc::new(Service::new(sizes));
    let sets = if runtime.spans_cpus() { vec![cpus.clone()] } else { one_each(&cpus) };
    let (name, count) = (runtime.name(), cpus.len());
    let serve = move |listener, ready| runtime.serve(listener, count, Arc::clone(&service), ready);
    workers::run(name, arguments.bind.into(), &sets, serve, |address| {
        format!("{name} echoes on {address} with a thread on each of CPU {cpus:?}")
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
