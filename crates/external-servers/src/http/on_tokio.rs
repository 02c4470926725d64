//! tokio with `axum::serve`: one runtime for all CPUs, or one for each.

use std::net::TcpListener;

use tokio::runtime::{Builder, Runtime};

use super::app::app;
use crate::error::{Context, Result};
use crate::workers::Ready;

const REMEDY: &str = "raise the limit of open files (ulimit -n)";

/// Serves forever with a multi-thread runtime; `#[tokio::main]` makes the same.
pub(super) fn serve(listener: TcpListener, workers: usize, ready: Ready) -> Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    accept(runtime.context("start tokio", REMEDY)?, listener, ready)
}

/// Serves forever on the calling thread alone.
pub(super) fn serve_alone(listener: TcpListener, ready: Ready) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build();
    accept(runtime.context("start tokio", REMEDY)?, listener, ready)
}

fn accept(runtime: Runtime, listener: TcpListener, ready: Ready) -> Result<()> {
    runtime.block_on(async move {
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener))
            .context("hand the listening socket to tokio", REMEDY)?;
        ready.tell();
        axum::serve(listener, app()).await.context("serve", REMEDY)
    })
}
