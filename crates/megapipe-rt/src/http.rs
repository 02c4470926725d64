//! A server for HTTP/1 and HTTP/2, by the feature `http`, on hyper.
//!
//! [`serve`] runs any `tower` service, such as an axum `Router`. Each connection is a task of the
//! core that accepted it. Not included: upgrades (WebSocket by axum), for which hyper requires
//! streams that are `Send`. For TLS, [`serve_connection`] takes the streams of tokio-rustls. For
//! other settings of hyper use its builders with the traits in [`crate::hyper`].
//!
//! A connection of HTTP/1 that waits for its next request gives up hyper's state and buffers, about
//! 18 KiB, after a second, and at once if many wait on the core. So an idle connection costs little
//! more than its task and its stream.
//!
//! Until a connection of [`serve`] has moved 8 MiB, it receives one piece at a time while output
//! waits: clients that pipeline requests and read no answers cost less.
//!
//! [`Limits`] bound what clients cost that send or read slowly, or not at all.

mod account;
mod answer;
mod connections;
mod limits;
mod progress;
mod request;
mod rewound;
mod stall;
mod version2;

pub use self::limits::Limits;
pub use self::request::RequestBody;

use crate::net::{Listener, is_shutdown};
use crate::shutdown::{ShutdownRequested, shutdown_requested};
use crate::spawn::spawn_local;
use crate::time::{Elapsed, Sleep, sleep, timeout};
use ::hyper::body::Body;
use ::hyper::rt::{Read, Write};
use ::hyper::server::conn::http1;
use ::hyper::{Request, Response};
use account::Account;
use answer::Limited;
use connections::Connections;
use progress::{HeaderTimer, Progress};
use rewound::Rewound;
use stall::Stalls;
use std::cell::Cell;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower_service::Service;

/// How long a connection keeps hyper's state while it waits for its next request.
const WARM_TIME: Duration = Duration::from_secs(1);
/// Most connections of a core that keep it, with about 9 MiB.
const WARM_MAX: usize = 512;
/// The client's preface of HTTP/2 (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Effectively no time limit (10 years), for hyper, which needs one.
const NO_LIMIT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

type BoxError = Box<dyn Error + Send + Sync>;

/// Accepts connections, over TCP or UNIX sockets, and serves each with a clone of the service, over
/// HTTP/1 or, if the client begins with its preface, HTTP/2 without TLS. The usual [`Limits`]
/// apply; [`serve_with`] takes others.
///
/// Returns `Ok` when the shutdown of the runtime is requested. The connections end by themselves,
/// after the requests in progress; [`Runtime::shutdown`](crate::Runtime::shutdown) waits for them.
/// A failed accept, for example for lack of descriptors, is logged (`tracing`) and accepting goes
/// on.
///
/// ```no_run
/// use megapipe_rt::{Bound, Runtime, http};
/// # use hyper::{Request, Response};
/// # use megapipe_rt::http::RequestBody;
/// # fn serve<S>(app: S) -> std::io::Result<()>
/// # where
/// #     S: tower_service::Service<Request<RequestBody>, Response = Response<String>,
/// #         Error = std::io::Error>
/// #         + Clone + Send + Sync + 'static,
/// #     S::Future: 'static,
/// # {
///
/// // `app` is a `Router` of axum, for example.
/// let port = Bound::tcp("127.0.0.1:8080")?;
/// Runtime::new()?.run(move || {
///     let (port, app) = (port.clone(), app.clone());
///     async move { http::serve(port.listen()?, app).await }
/// })
/// # }
/// ```
pub async fn serve<L, S, B>(listener: L, service: S) -> io::Result<()>
where
    L: Listener,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    serve_with(listener, service, Limits::default()).await
}

/// Does the same as [`serve`], with other limits.
///
/// ```no_run
/// # use hyper::{Request, Response};
/// # use megapipe_rt::http::RequestBody;
/// # async fn serve<S>(listener: megapipe_rt::TcpListener, app: S) -> std::io::Result<()>
/// # where
/// #     S: tower_service::Service<Request<RequestBody>, Response = Response<String>,
/// #         Error = std::io::Error>
/// #         + Clone + 'static,
/// #     S::Future: 'static,
/// # {
/// use megapipe_rt::http::{self, Limits};
/// use std::time::Duration;
///
/// // Behind a load balancer that keeps its connections for ten minutes.
/// let limits = Limits { idle: Some(Duration::from_secs(620)), ..Limits::default() };
/// http::serve_with(listener, app, limits).await
/// # }
/// ```
pub async fn serve_with<L, S, B>(mut listener: L, service: S, limits: Limits) -> io::Result<()>
where
    L: Listener,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    listener.send_at_once()?;
    let (connections, mut shutdown) = (Connections::new(limits.connections), shutdown_requested());
    loop {
        let Some(place) = connections.enter(&mut shutdown).await else { return Ok(()) };
        match listener.accept().await {
            Ok(stream) => {
                let service = service.clone();
                spawn_local(async move {
                    let connection = Rc::clone(&stream.connection);
                    connection.hold_little();
                    let account = Account::open(limits, Some(connection.queue()));
                    if let Err(error) = serve_stream(stream, service, limits, &account).await {
                        tracing::debug!("an HTTP connection failed: {error}");
                    }
                    if account.is_ended() {
                        connection.abort();
                    }
                    drop(place);
                });
            }
            Err(error) if is_shutdown(&error) => return Ok(()),
            Err(error) => tracing::warn!("cannot accept a connection: {error}"),
        }
    }
}

/// Serves one connection to its end: a [`TcpStream`](crate::TcpStream), or another stream with
/// hyper's traits, such as one of TLS (`examples/https.rs`). At the shutdown of the runtime it ends
/// after the requests in progress. The usual [`Limits`] apply; [`serve_connection_with`] takes
/// others.
///
/// Fails as hyper does: with an error of the connection, of the protocol or of the service; with
/// [`Elapsed`] if the client begins no request in time. A connection that ends because it
/// was idle for too long is no failure.
pub async fn serve_connection<I, S, B>(stream: I, service: S) -> Result<(), BoxError>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    serve_connection_with(stream, service, Limits::default()).await
}

/// Does the same as [`serve_connection`], with other limits.
///
/// Fails as [`serve_connection`] does.
pub async fn serve_connection_with<I, S, B>(
    stream: I,
    service: S,
    limits: Limits,
) -> Result<(), BoxError>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    serve_stream(stream, service, limits, &Account::open(limits, None)).await
}

async fn serve_stream<I, S, B>(
    stream: I,
    service: S,
    limits: Limits,
    account: &Rc<Account>,
) -> Result<(), BoxError>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let (mut stream, mut shutdown) = (Rewound::new(stream), shutdown_requested());
    let (service, begun) = (Limited::new(service, Rc::clone(account), limits.body), Instant::now());
    loop {
        let limit = limits.header.map(|limit| limit.saturating_sub(begun.elapsed()));
        // As long as it could be the preface, but is not all of it.
        match await_bytes(&mut stream, limit, &mut shutdown).await? {
            Waited::Bytes if stream.unread().starts_with(HTTP2_PREFACE) => {
                return version2::serve(stream, service, limits, account, shutdown).await;
            }
            Waited::Bytes if HTTP2_PREFACE.starts_with(stream.unread()) => {}
            Waited::Bytes => return serve_http1(stream, service, limits, account, shutdown).await,
            Waited::End | Waited::Shutdown => return finish(stream, limits).await,
            Waited::Elapsed => return Err(Elapsed(begun.elapsed()).into()),
        }
    }
}

/// Serves a connection whose first bytes were read.
async fn serve_http1<I, S, B>(
    mut stream: Rewound<I>,
    mut service: Limited<S>,
    limits: Limits,
    account: &Account,
    mut shutdown: ShutdownRequested,
) -> Result<(), BoxError>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    loop {
        let mut builder = http1::Builder::new();
        builder.timer(HeaderTimer).header_read_timeout(limits.header.unwrap_or(NO_LIMIT));
        // Boxed, so that this future is small while the connection is idle.
        let mut connection = Box::new(builder.serve_connection(stream, service));
        drop(builder);
        let (mut idle, mut ending) = (Idle::new(limits.idle), false);
        let mut stalls = Stalls::new(limits.send);
        let ended = poll_fn(|context| {
            let mut connection = Pin::new(&mut *connection);
            if !ending && Pin::new(&mut shutdown).poll(context).is_ready() {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            if let Poll::Ready(result) = idle.progress.watch(|| connection.poll(context)) {
                return Poll::Ready(Some(result.map_err(BoxError::from)));
            }
            if let Poll::Ready(error) = stalls.poll(idle.progress, account, context) {
                return Poll::Ready(Some(Err(error)));
            }
            if ending { Poll::Pending } else { idle.poll_cold(context).map(|()| None) }
        });
        if let Some(result) = ended.await {
            return result;
        }
        let limit = limits.idle.map(|limit| limit.saturating_sub(idle.time()));
        let parts = connection.into_parts();
        (stream, service) = (parts.io, parts.service);
        // A part of a request that came with the one before.
        if !parts.read_buf.is_empty() {
            stream.put_back(&parts.read_buf);
            continue;
        }
        drop(parts.read_buf);
        match await_bytes(&mut stream, limit, &mut shutdown).await? {
            Waited::Bytes => {}
            Waited::End | Waited::Shutdown | Waited::Elapsed => {
                return finish(stream, limits).await;
            }
        }
    }
}

/// How a wait for bytes ended.
enum Waited {
    Bytes,
    /// The client has closed.
    End,
    /// The shutdown of the runtime is requested.
    Shutdown,
    /// The time limit is over.
    Elapsed,
}

/// Waits for more bytes, which remain to be read.
async fn await_bytes<I: Read + Write + Unpin>(
    stream: &mut Rewound<I>,
    limit: Option<Duration>,
    shutdown: &mut ShutdownRequested,
) -> io::Result<Waited> {
    let mut timer = limit.map(sleep);
    poll_fn(|context| {
        if let Poll::Ready(count) = stream.poll_more(context)? {
            return Poll::Ready(Ok(if count > 0 { Waited::Bytes } else { Waited::End }));
        }
        if Pin::new(&mut *shutdown).poll(context).is_ready() {
            return Poll::Ready(Ok(Waited::Shutdown));
        }
        match timer.as_mut().map(|timer| Pin::new(timer).poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(Ok(Waited::Elapsed)),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Ends a connection without a request. The client may still have to take answers; if it takes too
/// long, the channel decides how long the rest is kept (`Config::close_timeout`).
async fn finish<I: Read + Write + Unpin>(
    mut stream: Rewound<I>,
    limits: Limits,
) -> Result<(), BoxError> {
    let end = pin!(poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)));
    match limits.send {
        Some(limit) => timeout(limit, end).await??,
        None => end.await?,
    }
    Ok(())
}

/// Decides when an idle connection gives up hyper's state.
struct Idle {
    progress: Progress,
    /// Since when the connection is idle.
    since: Option<Instant>,
    /// Whether it is counted among those of the core that keep their state.
    warm: Option<Warm>,
    /// Fires at the earliest time to decide again; not moved at each request.
    timer: Sleep,
    is_timer_set: bool,
    longest: Duration,
}

impl Idle {
    fn new(limit: Option<Duration>) -> Idle {
        let longest = WARM_TIME.min(limit.unwrap_or(WARM_TIME));
        Idle {
            progress: Progress::NEW,
            since: None,
            warm: None,
            timer: sleep(longest),
            is_timer_set: false,
            longest,
        }
    }

    /// Returns for how long the connection has been idle.
    fn time(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits until the state should be given up; called after each poll of the connection.
    fn poll_cold(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.progress.is_idle() {
            (self.since, self.warm) = (None, None);
            return Poll::Pending;
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if self.warm.is_none() {
            self.warm = Warm::enter();
        }
        if self.warm.is_none() || now >= since + self.longest {
            return Poll::Ready(());
        }
        if now >= self.timer.deadline() {
            self.timer.reset(since + self.longest);
            self.is_timer_set = false;
        }
        if !self.is_timer_set {
            self.is_timer_set = true;
            // It is not over yet; if it is meanwhile, the task is polled again.
            if Pin::new(&mut self.timer).poll(context).is_ready() {
                self.is_timer_set = false;
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

thread_local! {
    static WARM: Cell<usize> = const { Cell::new(0) };
}

/// One of the core's idle connections that keep hyper's state.
struct Warm;

impl Warm {
    /// Returns `None` if there are as many as may be.
    fn enter() -> Option<Warm> {
        let count = WARM.get();
        (count < WARM_MAX).then(|| {
            WARM.set(count + 1);
            Warm
        })
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        // At the end of the runtime it may be dropped by another thread.
        WARM.set(WARM.get().saturating_sub(1));
    }
}
