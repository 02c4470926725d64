//! compio: a runtime over io_uring on each CPU, a task for each connection.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::driver::{DriverType, ProactorBuilder};
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::TcpStream;
use compio::runtime::{Runtime, spawn};

use crate::error::{Context, Result};
use crate::listener::accept_failed;
use crate::service::{BUFFER_BYTES, Framer, Service};

pub(crate) const REMEDY: &str =
    "it needs io_uring (sysctl kernel.io_uring_disabled) and open files";

/// Makes a runtime over io_uring.
pub(crate) fn start() -> Result<Runtime> {
    let mut proactor = ProactorBuilder::new();
    // Otherwise compio would silently fall back to epoll, and that would be measured.
    proactor.driver_type(DriverType::IoUring);
    Runtime::builder().with_proactor(proactor).build().context("start compio", REMEDY)
}

/// Serves forever.
pub(crate) fn serve(listener: TcpListener, service: Arc<Service>, ready: impl Fn()) -> Result<()> {
    start()?.block_on(async move {
        let listener = compio::net::TcpListener::from_std(listener)
            .context("hand the listening socket to compio", REMEDY)?;
        ready();
        loop {
            match listener.accept().await {
                // A failed connection has ended; the server continues.
                Ok((stream, _)) => spawn(converse(stream, Arc::clone(&service))).detach(),
                Err(error) => accept_failed(error)?,
            }
        }
    })
}

async fn converse(mut stream: TcpStream, service: Arc<Service>) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut framer = Framer::default();
    // The kernel needs a buffer that it owns, so the response is passed to it and returned.
    let (request_bytes, mut response) = match &*service {
        Service::Echo => (0, Vec::new()),
        Service::Exchange { request_bytes, response } => (*request_bytes, response.clone()),
    };
    loop {
        buffer.clear();
        let BufResult(count, filled) = stream.read(buffer).await;
        let count = count?;
        if count == 0 {
            return Ok(());
        }
        if request_bytes == 0 {
            let BufResult(written, slice) = stream.write_all(filled.slice(..count)).await;
            written?;
            buffer = slice.into_inner();
            continue;
        }
        buffer = filled;
        for _ in 0..framer.completed(count, request_bytes) {
            let BufResult(written, lent) = stream.write_all(response).await;
            written?;
            response = lent;
        }
    }
}
