//! HTTP servers of known behaviour for tests, on hyper over loopback.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::thread;

use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

use crate::http_client::Version;
use crate::http_client::connection::{HTTP1, HTTP2, LocalExecutor};
use crate::http_client::threads::runtime;

/// A body in pieces.
pub(crate) struct Body {
    pieces: VecDeque<Bytes>,
    /// The length is told in advance.
    told: bool,
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.pieces.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = self.pieces.iter().map(|piece| piece.len() as u64).sum();
        if self.told { SizeHint::with_exact(bytes) } else { SizeHint::default() }
    }
}

/// A request, and how many came before it.
pub(crate) struct Seen {
    pub(crate) path: String,
    /// To the server.
    pub(crate) before: u64,
    /// On the connection.
    pub(crate) on_connection: u64,
}

/// Returns an answer of status 200.
pub(crate) fn ok(body: &'static str) -> Response<Body> {
    let pieces = VecDeque::from([Bytes::from_static(body.as_bytes())]);
    Response::new(Body { pieces, told: true })
}

/// Returns an answer in chunks, whose length is not told in advance.
pub(crate) fn in_chunks(chunks: &[&'static str]) -> Response<Body> {
    let pieces = chunks.iter().map(|chunk| Bytes::from_static(chunk.as_bytes())).collect();
    Response::new(Body { pieces, told: false })
}

/// Returns an answer of another status.
pub(crate) fn status(status: u16, body: &'static str) -> Response<Body> {
    let mut response = ok(body);
    *response.status_mut() = status.try_into().expect("a status");
    response
}

/// Returns an answer with one more header.
pub(crate) fn with(
    mut response: Response<Body>,
    name: &'static str,
    value: &str,
) -> Response<Body> {
    response.headers_mut().insert(name, value.parse().expect("a value"));
    response
}

type Answer = dyn Fn(&Seen) -> Option<Response<Body>> + Send + Sync;

struct Server {
    version: Version,
    /// Returns the answer; without one, the connection ends.
    answer: Box<Answer>,
    served: AtomicU64,
}

/// Starts a server of HTTP/1.1 that runs as long as the test; returns its URL.
pub(crate) fn serve(
    answer: impl Fn(&Seen) -> Option<Response<Body>> + Send + Sync + 'static,
) -> String {
    start(Version::Http1, None, false, answer)
}

/// Starts a server of HTTP/1.1 on a UNIX socket.
pub(crate) fn serve_on(
    socket: &Path,
    answer: impl Fn(&Seen) -> Option<Response<Body>> + Send + Sync + 'static,
) -> String {
    start(Version::Http1, Some(socket), false, answer)
}

/// Starts a server that speaks one version, with or without TLS.
pub(crate) fn serve_version(
    version: Version,
    tls: bool,
    answer: impl Fn(&Seen) -> Option<Response<Body>> + Send + Sync + 'static,
) -> String {
    start(version, None, tls, answer)
}

fn start(
    version: Version,
    socket: Option<&Path>,
    tls: bool,
    answer: impl Fn(&Seen) -> Option<Response<Body>> + Send + Sync + 'static,
) -> String {
    let server = Arc::new(Server { version, answer: Box::new(answer), served: AtomicU64::new(0) });
    let socket = socket.map(Path::to_owned);
    let (urls, url) = channel();
    thread::spawn(move || {
        let runtime = runtime().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            if let Some(path) = socket {
                let listener = UnixListener::bind(&path).expect("a new path");
                urls.send(format!("unix:{}:/", path.display())).expect("the test waits");
                while let Ok((stream, _)) = listener.accept().await {
                    spawn_local(converse(Arc::clone(&server), stream));
                }
                return;
            }
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let scheme = if tls { "https" } else { "http" };
            urls.send(format!("{scheme}://{address}/")).expect("the test waits");
            let acceptor = tls.then(|| acceptor(version));
            while let Ok((stream, _)) = listener.accept().await {
                let (server, acceptor) = (Arc::clone(&server), acceptor.clone());
                spawn_local(async move {
                    let Some(acceptor) = acceptor else { return converse(server, stream).await };
                    // It fails if the client does not trust the certificate.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        converse(server, stream).await;
                    }
                });
            }
        });
    });
    url.recv().expect("the server listens")
}

fn acceptor(version: Version) -> TlsAcceptor {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("a key that fits");
    config.alpn_protocols = match version {
        Version::Http1 => vec![HTTP1.into()],
        Version::Http2 => vec![HTTP2.into(), HTTP1.into()],
    };
    TlsAcceptor::from(Arc::new(config))
}

/// Serves one connection.
async fn converse<S>(server: Arc<Server>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let version = server.version;
    let on_connection = AtomicU64::new(0);
    let service = service_fn(move |request: Request<Incoming>| {
        let seen = Seen {
            path: request.uri().path().to_owned(),
            before: server.served.fetch_add(1, Ordering::Relaxed),
            on_connection: on_connection.fetch_add(1, Ordering::Relaxed),
        };
        let answer = (server.answer)(&seen);
        async move { answer.ok_or_else(|| io::Error::other("the connection ends here")) }
    });
    let stream = TokioIo::new(stream);
    // How a connection ends is the client's matter.
    let _ = match version {
        Version::Http1 => http1::Builder::new().serve_connection(stream, service).await,
        Version::Http2 => {
            http2::Builder::new(LocalExecutor).serve_connection(stream, service).await
        }
    };
}
