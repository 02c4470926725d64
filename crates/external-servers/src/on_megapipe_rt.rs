//! megapipe-rt, this repository's own runtime: a runtime of one core on each CPU.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use megapipe_rt::{Bound, Runtime, TcpStream, spawn_local};

use crate::error::{Context, Result};
use crate::listener::accept_failed;
use crate::service::{Framer, Service};

/// Serves forever.
pub(crate) fn serve(listener: TcpListener, service: Arc<Service>, ready: impl Fn()) -> Result<()> {
    const REMEDY: &str = "run `iobench doctor`, which names what this machine lacks";
    let exchange = match &*service {
        Service::Echo => None,
        // All writes share the response, which none of them copies.
        Service::Exchange { request_bytes, response } => {
            Some((*request_bytes, Arc::from(&response[..])))
        }
    };
    let runtime = Runtime::builder().cores(1).pinned(false).build();
    runtime.context("start megapipe-rt", REMEDY)?.block_on(async move {
        let mut listener = Bound::from(listener).listen().context("listen", REMEDY)?;
        ready();
        loop {
            match listener.accept().await {
                // A failed connection has ended; the server continues.
                Ok(stream) => drop(spawn_local(converse(stream, exchange.clone()))),
                Err(error) => accept_failed(error)?,
            }
        }
    })
}

async fn converse(mut stream: TcpStream, exchange: Option<(usize, Arc<[u8]>)>) -> io::Result<()> {
    let mut framer = Framer::default();
    while let Some(message) = stream.read().await? {
        let Some((request_bytes, response)) = &exchange else {
            stream.write(message).await?;
            continue;
        };
        let requests = framer.completed(message.len(), *request_bytes);
        // The buffer is free for other connections while this one waits.
        drop(message);
        for _ in 0..requests {
            stream.write(Arc::clone(response)).await?;
        }
    }
    Ok(())
}
