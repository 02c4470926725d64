//! A reverse proxy that ends TLS: the third of the programs that mTCP's paper ports (SSLShader;
//! Jeong et al., NSDI 2014, section 4), with rustls on the CPU in the place of its GPU.
//!
//! It is written on the channel of `megapipe`, so the same program runs over io_uring, epoll or
//! TCP in user space (`--driver mtcp`), clients and backends each on whichever road leads there.
//!
//! - [`relay`]: one connection, without I/O.
//! - [`event_loop`]: that of a thread, which owns a channel and nothing that others write.
//! - [`run`]: the whole, from the command line to the line of counts at the end.

#![forbid(unsafe_code)]

mod arguments;
mod backends;
mod certificates;
mod error;
mod event_loop;
mod listeners;
mod orders;
mod placement;
mod relay;
mod run;
mod tally;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run::run(&arguments::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tls-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}
