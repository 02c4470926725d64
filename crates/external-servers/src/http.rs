//! `iobench-external http`: the servers of `iobench http`, one axum application on each of several
//! runtimes.
//!
//! Each server is written as a user of its runtime would write it: tokio by `axum::serve`, compio
//! by `cyper_axum::serve`, monoio by hyper-util over the traits of monoio-compat, and megapipe-rt
//! by its `http::serve`, also over user-level TCP. All of them serve HTTP/1 and, if the client
//! begins with its preface, HTTP/2.

#[cfg(feature = "http")]
mod app;
#[cfg(feature = "http-compio")]
mod on_compio;
#[cfg(feature = "http")]
mod on_megapipe_rt;
#[cfg(feature = "http-monoio")]
mod on_monoio;
#[cfg(feature = "http")]
mod on_tokio;

use std::net::{SocketAddr, TcpListener};

use clap::{Args, ValueEnum};

#[cfg(not(all(feature = "http-compio", feature = "http-monoio")))]
use crate::error::Error;
use crate::error::Result;
use crate::listener::Bind;
use crate::sys;
use crate::workers::{self, Ready, one_each};

const EXAMPLES: &str = "\
GET /BYTES answers with that many bytes, up to 1 MiB. One line says when the server is ready;
SIGINT, SIGTERM or SIGHUP ends it.

Examples:
  iobench-external http tokio --bind 127.0.0.1:7000 --cpus 0,1
  MTCP_CONFIG=mtcp.toml iobench-external http megapipe-rt-mtcp --bind 10.10.0.2:7000
  curl --http2-prior-knowledge http://127.0.0.1:7000/64";

/// Options of `http`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HttpArguments {
    /// Print the servers that this program was built with, each with the versions of its
    /// libraries, and nothing else
    #[arg(long, exclusive = true)]
    list: bool,

    /// Runtime of the server
    #[arg(required = true)]
    server: Option<Server>,

    /// Address and port; port 0 for a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7000")]
    bind: SocketAddr,

    /// CPUs for server threads, one thread each [default: the first CPU of the process]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Option<Vec<usize>>,
}

/// The application on one runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Server {
    /// tokio, a multi-thread runtime with a worker for each CPU and one listening socket (epoll)
    Tokio,
    /// tokio, a current-thread runtime and a listening socket on each CPU (epoll)
    TokioPerCore,
    /// compio with cyper-axum, a runtime and a listening socket on each CPU (io_uring)
    Compio,
    /// monoio with hyper, a runtime and a listening socket on each CPU (io_uring)
    Monoio,
    /// megapipe-rt, this repository's own, a runtime with a core on each CPU, over io_uring
    MegapipeRt,
    /// The same over epoll
    MegapipeRtEpoll,
    /// The same over TCP in user space (mtcp), configured by the file that MTCP_CONFIG names, with
    /// engine.cores as the number of CPUs
    MegapipeRtMtcp,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Server::Tokio => "tokio",
            Server::TokioPerCore => "tokio-per-core",
            Server::Compio => "compio",
            Server::Monoio => "monoio",
            Server::MegapipeRt => "megapipe-rt",
            Server::MegapipeRtEpoll => "megapipe-rt-epoll",
            Server::MegapipeRtMtcp => "megapipe-rt-mtcp",
        }
    }

    /// Returns whether this program was built with the server.
    fn is_built(self) -> bool {
        let features = [cfg!(feature = "http"), cfg!(feature = "http-compio")];
        match self {
            Server::Compio => features[1],
            Server::Monoio => cfg!(feature = "http-monoio"),
            _ => features[0],
        }
    }

    /// Returns the libraries of the server with their versions.
    fn versions(self) -> String {
        let runtime: &[&str] = match self {
            Server::Tokio | Server::TokioPerCore => &["tokio"],
            Server::Compio => &["cyper-axum", "compio"],
            Server::Monoio => &["monoio"],
            Server::MegapipeRt | Server::MegapipeRtEpoll => &["megapipe-rt"],
            Server::MegapipeRtMtcp => &["megapipe-rt", "mtcp"],
        };
        let is_used = |name: &str| ["axum", "hyper"].contains(&name) || runtime.contains(&name);
        let versions = env!("IOBENCH_EXTERNAL_VERSIONS").split(", ");
        let used = versions.filter(|text| text.split(' ').next().is_some_and(is_used));
        used.collect::<Vec<_>>().join(", ")
    }

    /// Returns whether one thread or one runtime uses all CPUs, with one listening socket.
    fn spans_cpus(self) -> bool {
        !matches!(self, Server::TokioPerCore | Server::Compio | Server::Monoio)
    }

    /// Serves on the calling thread, which is bound to `cpus` CPUs, until the process ends; returns
    /// only an error.
    #[cfg(feature = "http")]
    fn serve(self, listener: TcpListener, cpus: usize, ready: Ready) -> Result<()> {
        use megapipe::DriverChoice::{Epoll, Uring};
        match self {
            Server::Tokio => on_tokio::serve(listener, cpus, ready),
            Server::TokioPerCore => on_tokio::serve_alone(listener, ready),
            Server::MegapipeRt => on_megapipe_rt::serve(listener, cpus, Uring, ready),
            Server::MegapipeRtEpoll => on_megapipe_rt::serve(listener, cpus, Epoll, ready),
            Server::MegapipeRtMtcp => on_megapipe_rt::serve_over_mtcp(listener, cpus, ready),
            #[cfg(feature = "http-compio")]
            Server::Compio => on_compio::serve(listener, ready),
            #[cfg(not(feature = "http-compio"))]
            Server::Compio => {
                Err(not_built("build with `--features iobench-external/http-compio`"))
            }
            #[cfg(feature = "http-monoio")]
            Server::Monoio => on_monoio::serve(listener, ready),
            #[cfg(not(feature = "http-monoio"))]
            Server::Monoio => {
                Err(not_built("build with `--features iobench-external/http-monoio`"))
            }
        }
    }

    #[cfg(not(feature = "http"))]
    fn serve(self, _: TcpListener, _: usize, _: Ready) -> Result<()> {
        Err(not_built("build with `--features iobench-external/http`"))
    }
}

/// Serves until a signal, or prints the list of servers.
pub(crate) fn run(arguments: &HttpArguments) -> Result<()> {
    if arguments.list {
        let built = Server::value_variants().iter().filter(|server| server.is_built());
        let lines = built.map(|server| format!("{}: {}\n", server.name(), server.versions()));
        return workers::print(&lines.collect::<String>());
    }
    let Some(server) = arguments.server else { return Ok(()) };
    let cpus = sys::chosen_cpus(arguments.cpus.as_deref())?;
    let sets = if server.spans_cpus() { vec![cpus.clone()] } else { one_each(&cpus) };
    let (name, count) = (server.name(), cpus.len());
    let serve = move |listener, ready| server.serve(listener, count, ready);
    let bind = Bind { address: arguments.bind, may_be_of_stack: server == Server::MegapipeRtMtcp };
    workers::run(name, bind, &sets, serve, |address| {
        format!("{name} serves http://{address}/ on CPU {cpus:?}")
    })
}

#[cfg(not(all(feature = "http-compio", feature = "http-monoio")))]
fn not_built(remedy: &'static str) -> Error {
    Error::Setup { cause: "this iobench-external was built without that server".to_owned(), remedy }
}
