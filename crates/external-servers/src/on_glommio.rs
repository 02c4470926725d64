//! glommio: an executor with its rings on each CPU, a task for each connection.

use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::Arc;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::TcpStream;
use glommio::{GlommioError, LocalExecutorBuilder, Placement, spawn_local};

use crate::error::{Context, Result};
use crate::listener::accept_failed;
use crate::service::{BUFFER_BYTES, Framer, Service};

/// Serves forever.
pub(crate) fn serve(listener: TcpListener, service: Arc<Service>, ready: impl Fn()) -> Result<()> {
    const REMEDY: &str = "it needs io_uring (sysctl kernel.io_uring_disabled) and 512 KiB of \
                          locked memory (ulimit -l)";
    // The thread is pinned already.
    let executor = LocalExecutorBuilder::new(Placement::Unbound)
        .make()
        .map_err(io::Error::from)
        .context("start glommio", REMEDY)?;
    executor.run(async move {
        // SAFETY: the descriptor is open, listens, and has no other owner from here on.
        let listener = unsafe { glommio::net::TcpListener::from_raw_fd(listener.into_raw_fd()) };
        ready();
        loop {
            match listener.accept().await {
                // A failed connection has ended; the server continues.
                Ok(stream) => drop(spawn_local(converse(stream, Arc::clone(&service))).detach()),
                Err(GlommioError::IoError(error)) => accept_failed(error)?,
                Err(error) => accept_failed(error.into())?,
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
