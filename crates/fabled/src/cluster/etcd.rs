//! Client of etcd's v3 interface, through its JSON gateway over HTTP/1.1.
//!
//! The crate `etcd-client` is not used. It compiles etcd's protocol definitions at build time,
//! which needs `protoc` on every machine, and adds 45 crates that the workspace does not have
//! otherwise (among them tonic). The gateway needs ten crates, no program, and the seven calls
//! below. It is part of etcd and enabled by default.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::etcd_access::{Credentials, Endpoint, EtcdAccess};
use super::etcd_error::{EtcdError, refused};
use super::wire::{
    AuthenticateRequest, AuthenticateResponse, Bytes, Compare, GrantRequest, LeaseRequest,
    LeaseResponse, Nothing, Number, RangeRequest, RangeResponse, Step, Streamed, Transaction,
    TransactionResponse, WatchCreate, WatchRequest, WatchResponse, behind_prefix,
};

/// The longest answer, or line of a streamed answer, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The most bytes of the keys and values in a listing. A zone with as many names as it may have
/// needs less than half of it.
const LISTING_BYTES_MAX: usize = 64 << 20;
/// The most keys in one page of a listing.
const PAGE_KEYS: i64 = 1000;
/// How long a connection is kept for the next call: less than firewalls remember one.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The header with the token of a user.
const AUTHORIZATION: &str = "authorization";

type Result<T> = std::result::Result<T, EtcdError>;

/// A connection on which calls follow each other.
type Connection = http1::SendRequest<Full<hyper::body::Bytes>>;

/// Sends calls to one of several endpoints; after a failure, to the next one. The connection of a
/// call is kept for the next one, because the renewals of a large zone would otherwise cost etcd
/// thousands of handshakes per second.
pub(super) struct Client {
    endpoints: Vec<Endpoint>,
    tls: Option<TlsConnector>,
    credentials: Option<Credentials>,
    /// Proves the user to etcd until it expires.
    token: RefCell<Option<String>>,
    current: Cell<usize>,
    idle: RefCell<Option<Idle>>,
    timeout: Duration,
}

/// A connection that waits for the next call.
struct Idle {
    endpoint: usize,
    since: Instant,
    connection: Connection,
}

/// An answer, and the connection that can be used again when it was read.
struct Answer {
    response: Response<Incoming>,
    endpoint: usize,
    connection: Connection,
}

/// All keys with a prefix, as of one revision.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) revision: i64,
    /// The number of etcd's cluster, which changes when a snapshot is restored.
    pub(super) cluster: String,
    pub(super) entries: Vec<super::wire::KeyValue>,
}

/// A listing under construction.
pub(super) struct Pages {
    pub(super) listing: Listing,
    keys_max: usize,
    /// The bytes of the keys and values.
    bytes: usize,
}

impl Pages {
    /// Makes an empty listing of at most `keys_max` keys.
    pub(super) fn new(keys_max: usize) -> Pages {
        Pages { listing: Listing::default(), keys_max, bytes: 0 }
    }

    /// Adds a page. Returns the key with which the next page begins, if there is one and the
    /// limits permit it.
    pub(super) fn add(&mut self, page: RangeResponse) -> Option<Bytes> {
        let Listing { revision, cluster, entries } = &mut self.listing;
        if *revision == 0 {
            *revision = page.header.revision.0;
            *cluster = page.header.cluster_id;
        }
        // After a page without keys the next one would be the same.
        let has_more = page.more && !page.kvs.is_empty();
        for entry in page.kvs.into_iter().take(self.keys_max - entries.len()) {
            self.bytes += entry.key.0.len() + entry.value.0.len();
            if self.bytes > LISTING_BYTES_MAX {
                tracing::warn!(
                    "the keys of this zone in etcd have more than {} MiB, the rest is ignored; \
                     delete those that no daemon wrote",
                    LISTING_BYTES_MAX >> 20
                );
                return None;
            }
            entries.push(entry);
        }
        let last = entries.last().filter(|_| has_more && entries.len() < self.keys_max)?;
        let mut next = last.key.clone();
        next.0.push(0);
        Some(next)
    }
}

/// The result of a transaction on one key.
pub(super) enum Outcome {
    /// The transaction was executed, in this revision.
    Done(i64),
    /// The condition did not hold in this revision; the record that exists instead.
    Differs(i64, Option<super::wire::KeyValue>),
}

impl Client {
    /// Makes a client; `timeout` limits every call except a watch.
    pub(super) fn new(urls: &[String], access: &EtcdAccess, timeout: Duration) -> Result<Client> {
        let endpoints = access.endpoints(urls)?;
        if endpoints.is_empty() {
            return Err(EtcdError::BadEndpoint { text: String::new(), why: "none was given" });
        }
        let (tls, credentials) = (access.tls()?, access.credentials()?);
        let (token, current, idle) = (RefCell::default(), Cell::new(0), RefCell::default());
        Ok(Client { endpoints, tls, credentials, token, current, idle, timeout })
    }

    /// Iterates over the endpoints that are reached without TLS over a network.
    pub(super) fn unprotected(&self) -> impl Iterator<Item = &str> {
        let unprotected =
            |endpoint: &&Endpoint| endpoint.server_name.is_none() && !endpoint.is_loopback();
        self.endpoints.iter().filter(unprotected).map(|endpoint| &*endpoint.address)
    }

    /// Requests a lease of this many seconds.
    pub(super) async fn grant(&self, ttl_s: u32) -> Result<i64> {
        let request = GrantRequest { ttl_s: Number(ttl_s.into()) };
        let lease: LeaseResponse = self.call("lease/grant", &request).await?;
        Ok(lease.lease.0)
    }

    /// Renews the lease. Returns false if it no longer exists.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<bool> {
        let request = LeaseRequest { lease: Number(lease) };
        let answer: Streamed<LeaseResponse> = self.call("lease/keepalive", &request).await?;
        Ok(answer.result.is_some_and(|lease| lease.ttl_s.0 > 0))
    }

    /// Ends a lease, and so removes its keys.
    pub(super) async fn revoke(&self, lease: i64) -> Result<()> {
        let request = LeaseRequest { lease: Number(lease) };
        self.call::<_, Nothing>("lease/revoke", &request).await.map(|_| ())
    }

    /// Lists at most `keys_max` keys with this prefix, all of the same revision.
    pub(super) async fn list(&self, prefix: &str, keys_max: usize) -> Result<Listing> {
        let mut request = RangeRequest {
            key: Bytes::of(prefix),
            range_end: Some(behind_prefix(prefix)),
            limit: Number(PAGE_KEYS),
            revision: Number(0),
        };
        let mut pages = Pages::new(keys_max);
        while let Some(key) = pages.add(self.call("kv/range", &request).await?) {
            request.key = key;
            request.revision = Number(pages.listing.revision);
        }
        Ok(pages.listing)
    }

    /// Writes a key under a lease (0: none) if the condition holds.
    pub(super) async fn put_if(
        &self,
        condition: Compare,
        key: &str,
        value: &[u8],
        lease: i64,
    ) -> Result<Outcome> {
        let value = Bytes(value.to_vec());
        let put = Step::Put { key: Bytes::of(key), value, lease: Number(lease) };
        self.transact(condition, key, put).await
    }

    /// Deletes a key if the condition holds.
    pub(super) async fn delete_if(&self, condition: Compare, key: &str) -> Result<Outcome> {
        self.transact(condition, key, Step::Delete { key: Bytes::of(key) }).await
    }

    async fn transact(&self, condition: Compare, key: &str, step: Step) -> Result<Outcome> {
        let transaction = Transaction {
            compare: vec![condition],
            success: vec![step],
            failure: vec![Step::Get { key: Bytes::of(key) }],
        };
        let answer: TransactionResponse = self.call("kv/txn", &transaction).await?;
        let revision = answer.header.revision.0;
        if answer.succeeded {
            return Ok(Outcome::Done(revision));
        }
        let range = answer.responses.into_iter().find_map(|step| step.response_range);
        Ok(Outcome::Differs(revision, range.and_then(|range| range.kvs.into_iter().next())))
    }

    /// Watches all changes of the keys with this prefix, from a revision on.
    pub(super) async fn watch(&self, prefix: &str, revision: i64) -> Result<Watch> {
        let create_request = WatchCreate {
            key: Bytes::of(prefix),
            range_end: behind_prefix(prefix),
            start_revision: Number(revision),
        };
        let endpoint = self.endpoint().address.clone();
        let begin = async {
            self.authenticate().await?;
            let answer = self.post("watch", &WatchRequest { create_request }).await?;
            match answer.response.status().is_success() {
                true => Ok(answer.response.into_body()),
                false => Err(self
                    .read::<Nothing>(answer)
                    .await
                    .err()
                    .unwrap_or_else(|| refused(0, "the watch failed without a reason"))),
            }
        };
        Ok(Watch { endpoint, body: self.bounded(begin).await?, buffer: Vec::new() })
    }

    async fn call<Q: Serialize, A: DeserializeOwned>(&self, path: &str, request: &Q) -> Result<A> {
        self.bounded(async {
            match self.attempt(path, request).await {
                Err(error) if error.is_stale_token() && self.credentials.is_some() => {
                    self.token.take();
                    self.attempt(path, request).await
                }
                result => result,
            }
        })
        .await
    }

    async fn attempt<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
    ) -> Result<A> {
        self.authenticate().await?;
        self.read(self.post(path, request).await?).await
    }

    /// Gets a token for the user, if there is one and it has no token.
    async fn authenticate(&self) -> Result<()> {
        let Some(Credentials { name, password }) = &self.credentials else { return Ok(()) };
        if self.token.borrow().is_none() {
            let request = AuthenticateRequest { name, password };
            let answer: AuthenticateResponse =
                self.read(self.post("auth/authenticate", &request).await?).await?;
            self.token.replace(Some(answer.token));
        }
        Ok(())
    }

    async fn read<A: DeserializeOwned>(&self, answer: Answer) -> Result<A> {
        let Answer { response, endpoint, connection } = answer;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|source| self.endpoints[endpoint].broken(source))?.to_bytes();
        self.idle.replace(Some(Idle { endpoint, since: Instant::now(), connection }));
        if !status.is_success() {
            let message: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            return Err(refused(status.as_u16(), &message));
        }
        serde_json::from_slice(&body).map_err(|source| EtcdError::Malformed { source })
    }

    /// Limits a call's time. If etcd did not answer, the next call uses another endpoint.
    async fn bounded<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let result = tokio::time::timeout(self.timeout, call).await.unwrap_or_else(|_| {
            let timeout_ms = self.timeout.as_millis();
            Err(EtcdError::TimedOut { endpoint: self.endpoint().address.clone(), timeout_ms })
        });
        if result.as_ref().is_err_and(EtcdError::is_absence) {
            self.current.set((self.current.get() + 1) % self.endpoints.len());
        }
        result
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoints[self.current.get()]
    }

    async fn post<Q: Serialize>(&self, path: &str, request: &Q) -> Result<Answer> {
        let endpoint = self.endpoint();
        let body = serde_json::to_vec(request).map_err(|source| EtcdError::Malformed { source })?;
        let mut request = Request::post(format!("/v3/{path}"))
            .header(header::HOST, &endpoint.address)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &*self.token.borrow() {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(hyper::body::Bytes::from(body))).map_err(|error| {
            endpoint.unreachable(io::Error::new(io::ErrorKind::InvalidInput, error))
        })?;
        let index = self.current.get();
        // etcd may close a connection while it idles. Every call may be repeated: an answer that is
        // lost has no other remedy.
        if let Some(mut connection) = self.take_idle().await
            && let Ok(response) = connection.send_request(request.clone()).await
        {
            return Ok(Answer { response, endpoint: index, connection });
        }
        let mut connection = self.connect(endpoint).await?;
        let response = connection.send_request(request).await;
        let response = response.map_err(|error| endpoint.broken(error.into()))?;
        Ok(Answer { response, endpoint: index, connection })
    }

    /// Takes the connection that is kept, if it is one to the current endpoint and still open.
    async fn take_idle(&self) -> Option<Connection> {
        let Idle { endpoint, since, mut connection } = self.idle.take()?;
        let fits = endpoint == self.current.get() && since.elapsed() < IDLE_MAX;
        (fits && connection.ready().await.is_ok()).then_some(connection)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        let stream = TcpStream::connect(&endpoint.address).await;
        let stream = stream.map_err(|source| endpoint.unreachable(source))?;
        stream.set_nodelay(true).map_err(|source| endpoint.unreachable(source))?;
        let connection = match (&self.tls, &endpoint.server_name) {
            (Some(tls), Some(name)) => {
                let stream = tls.connect(name.clone(), stream).await;
                open(stream.map_err(|error| endpoint.broken(error.into()))?).await
            }
            // Client::new has checked that an endpoint with TLS has a CA.
            _ => open(stream).await,
        };
        connection.map_err(|error| endpoint.broken(error.into()))
    }
}

async fn open<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
) -> hyper::Result<Connection> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends when the sender and the last answer are dropped; these have its errors.
    tokio::spawn(connection);
    Ok(sender)
}

impl Endpoint {
    fn unreachable(&self, source: io::Error) -> EtcdError {
        EtcdError::Unreachable { endpoint: self.address.clone(), source }
    }

    /// Returns the error of a connection that broke. etcd refuses a client's certificate after the
    /// handshake, and its reason may be lost with the connection.
    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> EtcdError {
        let endpoint = self.address.clone();
        if self.server_name.is_none() {
            return EtcdError::Broken { endpoint, source };
        }
        let (source, remedy) = match tls_cause(&*source) {
            Some(rustls::Error::InvalidCertificate(_)) => {
                let remedy = "name the CA that signed etcd's certificate with --etcd-ca, and a \
                              host of that certificate with --etcd";
                (tls_cause(&*source).map_or(source.to_string(), rustls::Error::to_string), remedy)
            }
            Some(rustls::Error::InvalidMessage(_)) => {
                (source.to_string(), "check that this is etcd's client port and has TLS")
            }
            cause => {
                let remedy = "see etcd's log; if it refused this host's certificate, name one that \
                              etcd's --trusted-ca-file signed with --etcd-certificate and \
                              --etcd-key";
                (cause.map_or(source.to_string(), rustls::Error::to_string), remedy)
            }
        };
        EtcdError::Tls { endpoint, source: source.into(), remedy }
    }
}

/// Returns the TLS library's error behind an error of a connection.
fn tls_cause<'a>(
    error: &'a (dyn std::error::Error + Send + Sync + 'static),
) -> Option<&'a rustls::Error> {
    let mut cause: Option<&'a (dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match inside {
            Some(inside) => Some(inside),
            None => error.source(),
        };
    }
    None
}

/// A stream of changes.
pub(super) struct Watch {
    endpoint: String,
    body: Incoming,
    buffer: Vec<u8>,
}

impl Watch {
    /// Waits for the next changes and returns them; they belong to one or more whole revisions.
    /// Does not return while nothing changes, so the caller needs other means to detect that etcd
    /// is gone.
    pub(super) async fn next(&mut self) -> Result<WatchResponse> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return changes(&line);
            }
            let frame = self.body.frame().await.ok_or_else(|| self.broken("it ended".into()))?;
            let frame = frame.map_err(|error| self.broken(error.into()))?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
            if self.buffer.len() > ANSWER_BYTES_MAX {
                let source = serde::de::Error::custom("a line is too long");
                return Err(EtcdError::Malformed { source });
            }
        }
    }

    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> EtcdError {
        EtcdError::Broken { endpoint: self.endpoint.clone(), source }
    }
}

/// Parses a line of a watch.
pub(super) fn changes(line: &[u8]) -> Result<WatchResponse> {
    let line: Streamed<WatchResponse> =
        serde_json::from_slice(line).map_err(|source| EtcdError::Malformed { source })?;
    let refused = |message: &str| refused(200, message);
    match line {
        Streamed { result: Some(changes), .. } if changes.compact_revision.0 > 0 => {
            Err(EtcdError::Compacted { revision: changes.compact_revision.0 })
        }
        Streamed { result: Some(changes), .. } if changes.canceled => {
            Err(refused(&changes.cancel_reason))
        }
        Streamed { result: Some(changes), .. } => Ok(changes),
        Streamed { error, .. } => Err(refused(&error.unwrap_or_default().to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_was_compacted_away_says_so() {
        let line = br#"{"result":{"header":{},"canceled":true,"compact_revision":"42"}}"#;
        assert!(matches!(changes(line), Err(EtcdError::Compacted { revision: 42 })));
        let line = br#"{"result":{"header":{},"canceled":true,"cancel_reason":"no"}}"#;
        assert!(matches!(changes(line), Err(EtcdError::Refused { .. })));
        assert!(matches!(changes(b"{}"), Err(EtcdError::Refused { .. })));
        assert!(matches!(changes(b"<html>"), Err(EtcdError::Malformed { .. })));
    }

    fn page(values: &[usize], more: bool) -> RangeResponse {
        let entry = |(index, bytes): (usize, &usize)| {
            let (key, value) = (Bytes::of(&format!("{index:05}")), Bytes(vec![b'x'; *bytes]));
            super::super::wire::KeyValue { key, value, ..Default::default() }
        };
        let kvs = values.iter().enumerate().map(entry).collect();
        RangeResponse { header: Default::default(), kvs, more }
    }

    #[test]
    fn a_listing_ends_with_its_last_page_and_with_an_empty_one() {
        let mut pages = Pages::new(10);
        assert_eq!(pages.add(page(&[1, 1], true)), Some(Bytes::of("00001\0")));
        assert_eq!(pages.add(page(&[1], false)), None);
        assert_eq!(pages.listing.entries.len(), 3);
        let mut pages = Pages::new(10);
        assert!(pages.add(page(&[1, 1], true)).is_some());
        assert_eq!(pages.add(page(&[], true)), None);
        let mut pages = Pages::new(3);
        assert!(pages.add(page(&[1, 1], true)).is_some());
        assert_eq!(pages.add(page(&[1, 1], true)), None);
        assert_eq!(pages.listing.entries.len(), 3);
    }

    #[test]
    fn a_listing_has_a_limit_of_bytes() {
        let mut pages = Pages::new(1 << 20);
        for _ in 0..LISTING_BYTES_MAX / ANSWER_BYTES_MAX {
            assert!(pages.add(page(&[ANSWER_BYTES_MAX - 100], true)).is_some());
        }
        assert_eq!(pages.add(page(&[ANSWER_BYTES_MAX - 100], true)), None);
        assert_eq!(pages.listing.entries.len(), LISTING_BYTES_MAX / ANSWER_BYTES_MAX);
    }

    #[test]
    fn an_error_of_tls_is_found_behind_others() {
        let tls = rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA);
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls.clone()));
        assert_eq!(tls_cause(&wrapped), Some(&tls));
        assert_eq!(tls_cause(&io::Error::other("else")), None);
    }
}
