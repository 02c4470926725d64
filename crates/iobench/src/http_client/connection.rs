//! Connections to one server: opens them, sends requests, reads answers, and opens a connection
//! again when the server has ended it.
//!
//! A server may end a kept-alive connection after any answer (RFC 9112, section 9.6), so a request
//! that finds its connection ended is sent once more on a new one. That is counted, and it is an
//! error only if a new connection ends as well, or if the answer had begun.

use std::cell::{Cell, RefCell};
use std::error::Error as _;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::LOCATION;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::error::{Context, Error, Result};
use crate::http_client::Version;
use crate::http_client::address::{Place, Url};
use crate::http_client::answer::{Answer, Digesting, Failure};
use crate::http_client::request::Template;
use crate::http_client::tls::{Trust, connector};
use crate::sys::socket::connect_remedy;

/// Longest time for the first connection, with its TLS handshake.
const FIRST_CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Times that a request is sent, each on another connection.
const MOST_ATTEMPTS: u32 = 3;
/// Names of the protocols in ALPN.
pub(crate) const HTTP1: &str = "http/1.1";
pub(crate) const HTTP2: &str = "h2";

/// A stream of bytes to the server.
trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}
type Bytestream = Pin<Box<dyn Stream>>;

/// Where a server accepts connections.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// How to reach one server. Threads share it.
#[derive(Clone)]
pub(crate) struct Server {
    address: Address,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(crate) version: Version,
}

impl Server {
    /// Finds the address of the URL's host and the version that the server speaks: the one that was
    /// asked for, else the one that it chooses by ALPN, else HTTP/1.1.
    pub(crate) async fn reach(url: &Url, asked: Option<Version>, trust: &Trust) -> Result<Server> {
        let addresses = addresses(url)?;
        let tls = tls(url, asked, trust)?;
        let mut server =
            Server { address: addresses[0].clone(), tls, version: asked.unwrap_or(Version::Http1) };
        let mut outcome = server.connect_in_time().await;
        for address in &addresses[1..] {
            if outcome.is_err() {
                server.address = address.clone();
                outcome = server.connect_in_time().await;
            }
        }
        let cannot = format!("connect to {url}");
        let chosen = match outcome {
            Ok((_, chosen)) => chosen,
            Err(error) if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
                let remedy = "check host and port; for a certificate that no known authority \
                              signed, use --ca FILE or --insecure";
                return Err(error).context(cannot, remedy);
            }
            Err(error) => {
                let usual = "start the server, or check host, port and scheme of the URL";
                let remedy = connect_remedy(&error, usual);
                return Err(error).context(cannot, remedy);
            }
        };
        if server.tls.is_some() {
            match (asked, chosen) {
                (Some(Version::Http2), Version::Http1) => {
                    let cause = format!("{url} does not offer HTTP/2 by ALPN");
                    return Err(Error::setup(cause, "leave out --http2, or enable it there"));
                }
                (None, Version::Http2) => {
                    server.tls = self::tls(url, Some(Version::Http2), trust)?;
                    server.version = Version::Http2;
                }
                _ => {}
            }
        }
        Ok(server)
    }

    async fn connect_in_time(&self) -> io::Result<(Bytestream, Version)> {
        timeout(FIRST_CONNECTION_LIMIT, self.connect()).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "no connection within 10 s"))
        })
    }

    /// Opens a connection; returns the version that TLS has settled with it.
    async fn connect(&self) -> io::Result<(Bytestream, Version)> {
        let stream: Bytestream = match &self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::pin(stream)
            }
            Address::Unix(path) => Box::pin(UnixStream::connect(path).await?),
        };
        let Some((connector, name)) = &self.tls else { return Ok((stream, self.version)) };
        let stream = connector.connect(name.clone(), stream).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2.as_bytes());
        let version = if is_http2 { Version::Http2 } else { Version::Http1 };
        Ok((Box::pin(stream), version))
    }
}

/// Returns the addresses of the URL's server; at least one.
fn addresses(url: &Url) -> Result<Vec<Address>> {
    match &url.place {
        Place::Unix(path) => Ok(vec![Address::Unix(path.clone())]),
        Place::Host { name, port, .. } => {
            let found = (name.as_str(), *port).to_socket_addrs();
            let action = format!("find the address of {name}");
            let found = found.context(action, "check the name, or use an address instead")?;
            let addresses: Vec<Address> = found.map(Address::Tcp).collect();
            if addresses.is_empty() {
                let cause = format!("{name} has no address");
                return Err(Error::setup(cause, "check the name, or use an address instead"));
            }
            Ok(addresses)
        }
    }
}

type Tls = Option<(TlsConnector, ServerName<'static>)>;

fn tls(url: &Url, asked: Option<Version>, trust: &Trust) -> Result<Tls> {
    let Place::Host { name, tls: true, .. } = &url.place else { return Ok(None) };
    let protocols: &[&str] = match asked {
        Some(Version::Http1) => &[HTTP1],
        Some(Version::Http2) => &[HTTP2],
        None => &[HTTP2, HTTP1],
    };
    let server = ServerName::try_from(name.clone()).map_err(|error| {
        Error::setup(format!("`{name}` cannot be in a certificate: {error}"), "correct the URL")
    })?;
    Ok(Some((connector(trust, protocols)?, server)))
}

/// Counts of one thread's connections.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    opened: Cell<u64>,
    reopened: Cell<u64>,
    resent: Cell<u64>,
    body_bytes: Cell<u64>,
}

impl Counters {
    pub(crate) fn read(&self) -> Totals {
        Totals {
            opened: self.opened.get(),
            reopened: self.reopened.get(),
            resent: self.resent.get(),
            body_bytes: self.body_bytes.get(),
        }
    }
}

/// Counts of all connections of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) opened: u64,
    /// Connections that had ended when they were needed again.
    pub(crate) reopened: u64,
    /// Requests that were sent again, because their connection had ended.
    pub(crate) resent: u64,
    /// Bytes of all bodies that were read.
    pub(crate) body_bytes: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Totals) {
        self.opened += other.opened;
        self.reopened += other.reopened;
        self.resent += other.resent;
        self.body_bytes += other.body_bytes;
    }
}

fn increase(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get() + by);
}

/// An open connection of HTTP/2.
#[derive(Clone)]
pub(crate) struct Http2Sender {
    sender: http2::SendRequest<Full<Bytes>>,
    has_answered: Rc<Cell<bool>>,
}

struct Http1Sender {
    sender: http1::SendRequest<Full<Bytes>>,
    has_answered: bool,
}

enum Sender {
    Http1(Http1Sender),
    Http2(Http2Sender),
}

impl Sender {
    fn has_answered(&self) -> bool {
        match self {
            Sender::Http1(sender) => sender.has_answered,
            Sender::Http2(sender) => sender.has_answered.get(),
        }
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        match self {
            Sender::Http1(sender) => sender.sender.try_send_request(request).await,
            Sender::Http2(sender) => sender.sender.try_send_request(request).await,
        }
    }
}

/// Runs the tasks of HTTP/2 connections on the thread.
#[derive(Clone, Copy)]
pub(crate) struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        spawn_local(async {
            task.await;
        });
    }
}

/// The connection that several streams of HTTP/2 share.
pub(crate) type SharedLink = Rc<Mutex<Option<Http2Sender>>>;

/// One request at a time: a connection of HTTP/1.1, or a stream of a connection of HTTP/2.
pub(crate) struct Slot {
    server: Rc<Server>,
    counters: Rc<Counters>,
    own: Option<Http1Sender>,
    shared: SharedLink,
    was_open: bool,
}

impl Slot {
    /// Makes a slot; slots of one HTTP/2 connection have the same `shared`.
    pub(crate) fn new(server: Rc<Server>, counters: Rc<Counters>, shared: SharedLink) -> Slot {
        Slot { server, counters, own: None, shared, was_open: false }
    }

    /// Sends a request and reads its answer; computes the digest if `digested`.
    pub(crate) async fn exchange(
        &mut self,
        template: &Template,
        digested: bool,
    ) -> Result<Answer, Failure> {
        for _ in 0..MOST_ATTEMPTS {
            let mut sender = self.sender().await.map_err(|error| unconnected(&error))?;
            let could_have_ended = sender.has_answered();
            match sender.send(template.make(self.server.version)).await {
                Ok(response) => {
                    let answer = read(response, digested, &self.counters).await;
                    self.keep(sender, answer.is_ok());
                    return answer;
                }
                Err(mut refused) => {
                    let unsent = refused.take_message().is_some();
                    let error = refused.into_error();
                    if error.is_parse() {
                        return Err(Failure::Invalid(explain(&error)));
                    }
                    let ended = has_ended(&error);
                    let safe = unsent || (ended && template.is_idempotent());
                    if !(could_have_ended && safe) {
                        return Err(Failure::Ended);
                    }
                    increase(&self.counters.resent, 1);
                }
            }
        }
        Err(Failure::Ended)
    }

    /// Opens the connection, so that the first request need not wait for it.
    pub(crate) async fn open(&mut self) -> io::Result<()> {
        let sender = self.sender().await?;
        if let Sender::Http1(sender) = sender {
            self.own = Some(sender);
        }
        Ok(())
    }

    /// Returns the connection; opens one if there is none or if it has ended.
    async fn sender(&mut self) -> io::Result<Sender> {
        match self.server.version {
            Version::Http1 => {
                if let Some(mut own) = self.own.take()
                    && own.sender.ready().await.is_ok()
                {
                    return Ok(Sender::Http1(own));
                }
                let stream = self.connect().await?;
                let handshake = http1::handshake(TokioIo::new(stream)).await;
                let (sender, connection) = handshake.map_err(io::Error::other)?;
                spawn_local(connection);
                Ok(Sender::Http1(Http1Sender { sender, has_answered: false }))
            }
            Version::Http2 => {
                let shared = Rc::clone(&self.shared);
                let mut link = shared.lock().await;
                if let Some(open) = &mut *link
                    && open.sender.ready().await.is_ok()
                {
                    return Ok(Sender::Http2(open.clone()));
                }
                self.was_open = link.take().is_some();
                let stream = self.connect().await?;
                let handshake = http2::handshake(LocalExecutor, TokioIo::new(stream)).await;
                let (sender, connection) = handshake.map_err(io::Error::other)?;
                spawn_local(connection);
                let sender = Http2Sender { sender, has_answered: Rc::default() };
                *link = Some(sender.clone());
                Ok(Sender::Http2(sender))
            }
        }
    }

    async fn connect(&mut self) -> io::Result<Bytestream> {
        let (stream, _) = self.server.connect().await?;
        increase(&self.counters.opened, 1);
        if std::mem::replace(&mut self.was_open, true) {
            increase(&self.counters.reopened, 1);
        }
        Ok(stream)
    }

    fn keep(&mut self, sender: Sender, answered: bool) {
        match sender {
            // After half an answer the connection is of no use.
            Sender::Http1(sender) if answered => {
                self.own = Some(Http1Sender { has_answered: true, ..sender });
            }
            Sender::Http1(_) => {}
            Sender::Http2(sender) => sender.has_answered.set(sender.has_answered.get() || answered),
        }
    }
}

/// Returns whether the error means that the server did not process the request: it has ended
/// the connection, or refused the stream.
fn has_ended(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_none_or(|cause| {
        let refused = cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        cause.is_go_away() || cause.is_io() || refused
    })
}

/// Reads the rest of an answer.
async fn read(
    response: Response<Incoming>,
    digested: bool,
    counters: &Counters,
) -> Result<Answer, Failure> {
    let (head, mut body) = response.into_parts();
    let mut digesting = digested.then(Digesting::new);
    let mut body_bytes = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                let Some(piece) = frame.data_ref() else { continue };
                body_bytes += piece.len() as u64;
                if let Some(digesting) = &mut digesting {
                    digesting.update(piece);
                }
            }
            Err(error) if error.is_parse() => return Err(Failure::Invalid(explain(&error))),
            Err(_) => return Err(Failure::Cut { body_bytes }),
        }
    }
    increase(&counters.body_bytes, body_bytes);
    let status = head.status;
    let location = head.headers.get(LOCATION).filter(|_| status.is_redirection());
    Ok(Answer {
        status: status.as_u16(),
        body_bytes,
        digest: digesting.map(Digesting::finish),
        location: location.and_then(|value| value.to_str().ok()).map(str::to_owned),
    })
}

/// Returns the failure of a request without a connection, with a remedy for what is known.
fn unconnected(error: &io::Error) -> Failure {
    Failure::Unconnected(match connect_remedy(error, "") {
        "" => error.to_string(),
        remedy => format!("{error}; {remedy}"),
    })
}

/// Returns the text of an error with its cause.
fn explain(error: &hyper::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}

/// Connections of HTTP/2 by number, each shared by several slots.
pub(crate) struct Links {
    streams: usize,
    links: RefCell<Vec<SharedLink>>,
}

impl Links {
    pub(crate) fn new(streams: usize) -> Links {
        Links { streams, links: RefCell::default() }
    }

    /// Returns the connection of a slot.
    pub(crate) fn of_slot(&self, slot: usize) -> SharedLink {
        let mut links = self.links.borrow_mut();
        let place = slot / self.streams;
        if place >= links.len() {
            links.resize_with(place + 1, SharedLink::default);
        }
        Rc::clone(&links[place])
    }
}
