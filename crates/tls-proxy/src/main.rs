//! Implements `tls-proxy`, a reverse proxy that terminates TLS with rustls in front of plain TCP
//! servers.
//!
//! It uses the channel of `megapipe`, so the same program runs over io_uring, epoll or TCP in user
//! space (`--driver mtcp`). With the driver mtcp, connections of clients and backends use the stack
//! if its interface leads to them, and otherwise the kernel.
//!
//! # Modules
//!
//! - [`relay`]: one connection, without I/O.
//! - [`event_loop`]: the event loop of a thread, with a channel and counts of its own.
//! - [`run`]: starts the threads, handles signals, and prints the counts at the end.
//! - `arguments`, `certificates`, `placement`: the command line, TLS keys, drivers and CPUs.
//! - `listeners`, `backends`: listening sockets of each thread, and the servers behind the proxy.
//! - `proxy_protocol`: the header that tells backends the client's address.
//! - `sandbox`: what the threads may do when the proxy is set up.
//! - `tally`: what the threads count.
//! - `error`: errors with their remedies.
//!
//! It has the role of SSLShader, one of the programs that mTCP's authors have ported (Jeong et al.,
//! NSDI 2014), with TLS on the CPU instead of a GPU.

#![forbid(unsafe_code)]

mod arguments;
mod backends;
mod certificates;
mod error;
mod event_loop;
mod listeners;
mod placement;
mod proxy_protocol;
mod relay;
mod run;
mod sandbox;
mod tally;

use std::process::ExitCode;

const MANUAL: [cli::Section<'_>; 1] = [(
    "EXIT STATUS",
    &[
        ("0", "Ended by SIGTERM or SIGINT, after --drain seconds at most."),
        ("1", "It could not start, or a thread failed; standard error has the reason."),
        ("2", "The command line is wrong."),
    ],
)];

fn main() -> ExitCode {
    let arguments: arguments::Arguments = match cli::parse(&MANUAL) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    cli::status("tls-proxy", run::run(&arguments))
}
