//! monoio with hyper-util, over the traits of monoio-compat: a runtime on the calling thread. The
//! streams of these traits wait for readiness with io_uring and then read and write by system
//! calls.

use std::net::TcpListener;

use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use monoio::io::IntoPollIo;
use monoio::net::TcpStream;
use monoio::{IoUringDriver, RuntimeBuilder};
use monoio_compat::hyper::{MonoioExecutor, MonoioIo};

use super::app::app;
use crate::error::{Context, Result};
use crate::listener::accept_failed;
use crate::workers::Ready;

const REMEDY: &str = "it needs io_uring (sysctl kernel.io_uring_disabled) and open files";

type Service = TowerToHyperService<axum::Router>;

/// Serves forever.
pub(super) fn serve(listener: TcpListener, ready: Ready) -> Result<()> {
    let runtime = RuntimeBuilder::<IoUringDriver>::new().enable_timer().build();
    runtime.context("start monoio", REMEDY)?.block_on(async move {
        let listener = monoio::net::TcpListener::from_std(listener)
            .context("hand the listening socket to monoio", REMEDY)?;
        let service = TowerToHyperService::new(app());
        ready.tell();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(monoio::spawn(converse(stream, service.clone()))),
                Err(error) => accept_failed(error)?,
            }
        }
    })
}

async fn converse(stream: TcpStream, service: Service) {
    // A failed connection has ended; the server continues.
    if let Ok(stream) = stream.into_poll_io() {
        let builder = Builder::new(MonoioExecutor);
        let _ = builder.serve_connection(MonoioIo::new(stream), service).await;
    }
}
