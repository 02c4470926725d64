//! A server for HTTP/1 and HTTP/2, by the feature `http`: hyper, with hyper-util's choice of the
//! version.
//!
//! [`serve`] runs any `tower` service, such as an axum `Router`. Each connection is a task of the
//! core that accepted it. Not included: upgrades (WebSocket by axum), for which hyper requires
//! streams that are `Send`. For TLS, [`serve_connection`] takes the streams of tokio-rustls. For
//! other settings of hyper use its builders with the traits in [`crate::hyper`].

use crate::hyper::{LocalExecutor, Timer};
use crate::net::{Listener, is_shutdown};
use crate::shutdown::shutdown_requested;
use crate::spawn::spawn_local;
use ::hyper::body::{Body, Incoming};
use ::hyper::rt::{Read, Write};
use ::hyper::{Request, Response};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::time::Duration;
use tower_service::Service;

/// Longest wait for the rest of a request's header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

type BoxError = Box<dyn Error + Send + Sync>;

/// Accepts connections, over TCP or UNIX sockets, and serves each with a clone of the service, over
/// HTTP/1 or, if the client begins with its preface, HTTP/2 without TLS.
///
/// Returns `Ok` when the shutdown of the runtime is requested. The connections end by themselves,
/// after the requests in progress; [`Runtime::shutdown`](crate::Runtime::shutdown) waits for them.
/// A failed accept, for example for lack of descriptors, is logged (`tracing`) and accepting goes
/// on. A connection whose next request's header is not complete after 30 s is closed, also one that
/// was idle so long.
///
/// ```no_run
/// use axum::{Router, routing::get};
/// use megapipe_rt::{Bound, Runtime, http};
///
/// fn main() -> std::io::Result<()> {
///     let app = Router::new().route("/", get(|| async { "hello\n" }));
///     let port = Bound::tcp("127.0.0.1:8080")?;
///     Runtime::new()?.run(move || {
///         let (port, app) = (port.clone(), app.clone());
///         async move { http::serve(port.listen()?, app).await }
///     })
/// }
/// ```
pub async fn serve<L, S, B>(mut listener: L, service: S) -> io::Result<()>
where
    L: Listener,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    listener.send_at_once()?;
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let service = service.clone();
                spawn_local(async move {
                    if let Err(error) = serve_connection(stream, service).await {
                        tracing::debug!("an HTTP connection failed: {error}");
                    }
                });
            }
            Err(error) if is_shutdown(&error) => return Ok(()),
            Err(error) => tracing::warn!("cannot accept a connection: {error}"),
        }
    }
}

/// Serves one connection to its end: a [`TcpStream`](crate::TcpStream), or another stream with
/// hyper's traits, such as one of TLS (`examples/https.rs`). At the shutdown of the runtime it ends
/// after the requests in progress.
///
/// Fails as hyper does: with an error of the connection, of the protocol or of the service.
pub async fn serve_connection<I, S, B>(stream: I, service: S) -> Result<(), BoxError>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let mut builder = Builder::new(LocalExecutor);
    builder.http1().timer(Timer).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(Timer);
    let service = TowerToHyperService::new(service);
    let mut connection = pin!(builder.serve_connection(stream, service));
    let mut shutdown = pin!(shutdown_requested());
    let mut ending = false;
    poll_fn(|context| {
        if !ending && shutdown.as_mut().poll(context).is_ready() {
            ending = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    })
    .await
}
