//! quinn's names, for its tests, which are a module of its crate.
//!
//! quinn creates endpoints on the runtime that it detects, and detects tokio's only. So these
//! constructors pass ours.

pub use megapipe_rt::quinn::QuicRuntime;
pub use quinn::*;
pub use std::time::{Duration, Instant};

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Runtimes.
pub mod runtime {
    pub use megapipe_rt::quinn::QuicRuntime as TokioRuntime;
}

/// An endpoint of megapipe-rt.
#[derive(Clone, Debug)]
pub struct Endpoint(quinn::Endpoint);

impl Endpoint {
    pub fn client(address: SocketAddr) -> io::Result<Endpoint> {
        let socket = UdpSocket::bind(address)?;
        Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(QuicRuntime))
    }

    pub fn server(config: ServerConfig, address: SocketAddr) -> io::Result<Endpoint> {
        let socket = UdpSocket::bind(address)?;
        Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(QuicRuntime))
    }

    pub fn new(
        config: EndpointConfig,
        server: Option<ServerConfig>,
        socket: UdpSocket,
        runtime: Arc<dyn Runtime>,
    ) -> io::Result<Endpoint> {
        quinn::Endpoint::new(config, server, socket, runtime).map(Endpoint)
    }
}

impl Deref for Endpoint {
    type Target = quinn::Endpoint;

    fn deref(&self) -> &quinn::Endpoint {
        &self.0
    }
}

impl DerefMut for Endpoint {
    fn deref_mut(&mut self) -> &mut quinn::Endpoint {
        &mut self.0
    }
}
