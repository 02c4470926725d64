//! tokio: a current-thread runtime on each CPU, a task for each connection.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

use crate::error::{Context, Result};
use crate::listener::accept_failed;
use crate::service::{BUFFER_BYTES, Framer, Service};

/// Serves forever.
pub(crate) fn serve(listener: TcpListener, service: Arc<Service>, ready: impl Fn()) -> Result<()> {
    const REMEDY: &str = "raise the limit of open files (ulimit -n)";
    let runtime =
        Builder::new_current_thread().enable_io().build().context("start tokio", REMEDY)?;
    LocalSet::new().block_on(&runtime, async move {
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener))
            .context("hand the listening socket to tokio", REMEDY)?;
        ready();
        loop {
            match listener.accept().await {
                // A failed connection has ended; the server continues.
                Ok((stream, _)) => drop(spawn_local(converse(stream, Arc::clone(&service)))),
                Err(error) => accept_failed(error)?,
            }
        }
    })
}

async fn converse(mut stream: TcpStream, service: Arc<Service>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut framer = Framer::default();
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        match &*service {
            Service::Echo => stream.write_all(&buffer[..count]).await?,
            Service::Exchange { request_bytes, response } => {
                for _ in 0..framer.completed(count, *request_bytes) {
                    stream.write_all(response).await?;
                }
            }
        }
    }
}
