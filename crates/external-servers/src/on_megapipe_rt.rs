//! megapipe-rt, this repository's own runtime: a runtime with a core on each CPU of the calling
//! thread. Each core has an accept queue of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use megapipe_rt::{Bound, Runtime, TcpListener, TcpStream, spawn_local};

use crate::error::{Context, Result};
use crate::listener::accept_failed;
use crate::service::{Framer, Service};
use crate::workers::Ready;

/// A bound port on which all cores listen.
#[derive(Clone)]
pub(crate) struct Port {
    bound: Bound,
    /// The number of cores that do not listen yet, and what is told when none is left.
    waited_for: Arc<AtomicUsize>,
    ready: Arc<Ready>,
}

impl Port {
    pub(crate) fn new(listener: std::net::TcpListener, cores: usize, ready: Ready) -> Port {
        let waited_for = Arc::new(AtomicUsize::new(cores));
        Port { bound: Bound::from(listener), waited_for, ready: Arc::new(ready) }
    }

    /// Listens on the calling core, once.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        let listener = self.bound.listen()?;
        if self.waited_for.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.ready.tell();
        }
        Ok(listener)
    }
}

/// Serves forever.
pub(crate) fn serve(
    listener: std::net::TcpListener,
    cores: usize,
    service: Arc<Service>,
    ready: Ready,
) -> Result<()> {
    const REMEDY: &str = "run `iobench doctor`, which names what this machine lacks";
    let runtime = Runtime::builder().cores(cores).build().context("start megapipe-rt", REMEDY)?;
    let port = Port::new(listener, cores, ready);
    runtime.run(move || {
        let (port, service) = (port.clone(), Arc::clone(&service));
        async move {
            let exchange = match &*service {
                Service::Echo => None,
                // All writes of a core share the response, which none of them copies.
                Service::Exchange { request_bytes, response } => {
                    Some((*request_bytes, Arc::from(&response[..])))
                }
            };
            let mut listener = port.listen().context("listen", REMEDY)?;
            loop {
                match listener.accept().await {
                    // A failed connection has ended; the server continues.
                    Ok(stream) => drop(spawn_local(converse(stream, exchange.clone()))),
                    Err(error) => accept_failed(error)?,
                }
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
