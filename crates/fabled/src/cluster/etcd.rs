//! A small client of etcd's v3 interface, through its JSON gateway over HTTP/1.1.
//!
//! Why not the crate `etcd-client`: it compiles etcd's protocol definitions while it is built,
//! which needs `protoc` on every machine, and brings 45 crates that the workspace does not have
//! otherwise (among them tonic and two web frameworks' worth of their companions); the gateway
//! needs nine, no program, and the six calls below. The gateway is part of etcd and on by default.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use super::wire::{
    Bytes, Compare, GrantRequest, LeaseRequest, LeaseResponse, Nothing, Number, RangeRequest,
    RangeResponse, Step, Streamed, Transaction, TransactionResponse, WatchCreate, WatchRequest,
    WatchResponse, behind_prefix,
};

/// The longest answer, or line of a streamed answer, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Keys that are listed at once.
const PAGE_KEYS: i64 = 1000;
const DEFAULT_PORT: u16 = 2379;

/// Why etcd did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No usable endpoint was given.
    #[error("`{text}` is no endpoint of etcd ({why}); write http://host:port")]
    BadEndpoint {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It cannot be reached.
    #[error("etcd at {endpoint} cannot be reached: {source}; is it running, and its port open?")]
    Unreachable {
        /// Where it should be.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// It did not answer in time.
    #[error("etcd at {endpoint} did not answer within {timeout_ms} ms")]
    TimedOut {
        /// Where it is.
        endpoint: String,
        /// How long was waited.
        timeout_ms: u128,
    },
    /// The connection broke, or what came over it is not HTTP.
    #[error("the connection to etcd at {endpoint} broke: {source}")]
    Broken {
        /// Where it is.
        endpoint: String,
        /// How.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It refused.
    #[error("etcd refused: {message} (HTTP status {status})")]
    Refused {
        /// HTTP's number.
        status: u16,
        /// etcd's words.
        message: String,
    },
    /// Its answer cannot be understood.
    #[error("etcd's answer cannot be understood: {source}; version 3.4 or newer is needed")]
    Malformed {
        /// Why not.
        source: serde_json::Error,
    },
    /// The revisions that a watch wants to begin with have been thrown away.
    #[error("etcd has compacted its history up to revision {revision}")]
    Compacted {
        /// The oldest revision that is left.
        revision: i64,
    },
}

type Result<T> = std::result::Result<T, EtcdError>;

/// Speaks to one of several endpoints until that fails, then to the next. Every call is a
/// connection of its own: there are only a few in each of a lease's lives.
pub(super) struct Client {
    endpoints: Vec<String>,
    current: Cell<usize>,
    timeout: Duration,
}

/// All keys with a prefix, as they were in one revision.
pub(super) struct Listing {
    pub(super) revision: i64,
    pub(super) entries: Vec<super::wire::KeyValue>,
}

/// What became of a transaction on one key.
pub(super) enum Outcome {
    /// It was done, in this revision.
    Done(i64),
    /// The condition did not hold in this revision; what is there instead.
    Differs(i64, Option<super::wire::KeyValue>),
}

impl Client {
    /// `timeout` bounds every call except a watch.
    pub(super) fn new(endpoints: &[String], timeout: Duration) -> Result<Client> {
        let endpoints = endpoints.iter().map(|text| endpoint(text)).collect::<Result<Vec<_>>>()?;
        if endpoints.is_empty() {
            return Err(EtcdError::BadEndpoint { text: String::new(), why: "none was given" });
        }
        Ok(Client { endpoints, current: Cell::new(0), timeout })
    }

    pub(super) async fn grant(&self, ttl_s: u32) -> Result<i64> {
        let request = GrantRequest { ttl_s: Number(ttl_s.into()) };
        let lease: LeaseResponse = self.call("lease/grant", &request).await?;
        Ok(lease.lease.0)
    }

    /// Whether the lease is still there; if so, its time begins anew.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<bool> {
        let request = LeaseRequest { lease: Number(lease) };
        let answer: Streamed<LeaseResponse> = self.call("lease/keepalive", &request).await?;
        Ok(answer.result.is_some_and(|lease| lease.ttl_s.0 > 0))
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<()> {
        let request = LeaseRequest { lease: Number(lease) };
        self.call::<_, Nothing>("lease/revoke", &request).await.map(|_| ())
    }

    /// At most `keys_max` keys with this prefix, all of the same revision.
    pub(super) async fn list(&self, prefix: &str, keys_max: usize) -> Result<Listing> {
        let mut request = RangeRequest {
            key: Bytes::of(prefix),
            range_end: Some(behind_prefix(prefix)),
            limit: Number(PAGE_KEYS),
            revision: Number(0),
        };
        let mut entries = Vec::new();
        loop {
            let page: RangeResponse = self.call("kv/range", &request).await?;
            if request.revision.0 == 0 {
                request.revision = page.header.revision;
            }
            entries.extend(page.kvs);
            entries.truncate(keys_max);
            match entries.last() {
                Some(last) if page.more && entries.len() < keys_max => {
                    request.key = last.key.clone();
                    request.key.0.push(0);
                }
                _ => return Ok(Listing { revision: request.revision.0, entries }),
            }
        }
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

    /// Everything that happens to the keys with this prefix from a revision on.
    pub(super) async fn watch(&self, prefix: &str, revision: i64) -> Result<Watch> {
        let create_request = WatchCreate {
            key: Bytes::of(prefix),
            range_end: behind_prefix(prefix),
            start_revision: Number(revision),
        };
        let endpoint = self.endpoint();
        let answer = self.bounded(self.post("watch", &WatchRequest { create_request })).await?;
        Ok(Watch { endpoint, body: answer.into_body(), buffer: Vec::new() })
    }

    async fn call<Q: Serialize, A: DeserializeOwned>(&self, path: &str, request: &Q) -> Result<A> {
        let endpoint = self.endpoint();
        let exchange = async {
            let answer = self.post(path, request).await?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|source| EtcdError::Broken { endpoint, source })?.to_bytes();
            if !status.is_success() {
                let message = String::from_utf8_lossy(&body).chars().take(300).collect();
                return Err(EtcdError::Refused { status: status.as_u16(), message });
            }
            serde_json::from_slice(&body).map_err(|source| EtcdError::Malformed { source })
        };
        self.bounded(exchange).await
    }

    /// Bounds a call in time; if it fails for want of etcd, the next one goes elsewhere.
    async fn bounded<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let result = tokio::time::timeout(self.timeout, call).await.unwrap_or_else(|_| {
            let timeout_ms = self.timeout.as_millis();
            Err(EtcdError::TimedOut { endpoint: self.endpoint(), timeout_ms })
        });
        if result.as_ref().is_err_and(EtcdError::is_absence) {
            self.current.set((self.current.get() + 1) % self.endpoints.len());
        }
        result
    }

    fn endpoint(&self) -> String {
        self.endpoints[self.current.get()].clone()
    }

    async fn post<Q: Serialize>(&self, path: &str, request: &Q) -> Result<Response<Incoming>> {
        let endpoint = self.endpoint();
        let unreachable = |source| EtcdError::Unreachable { endpoint: endpoint.clone(), source };
        let broken = |source: hyper::Error| EtcdError::Broken {
            endpoint: endpoint.clone(),
            source: source.into(),
        };
        let body = serde_json::to_vec(request).map_err(|source| EtcdError::Malformed { source })?;
        let request = Request::post(format!("/v3/{path}"))
            .header(header::HOST, &endpoint)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(hyper::body::Bytes::from(body)))
            .map_err(|error| unreachable(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let stream = TcpStream::connect(&endpoint).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // It ends with the request's answer, or when that is dropped; its errors come out there.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(broken)
    }
}

impl EtcdError {
    /// Whether another endpoint may do better.
    fn is_absence(&self) -> bool {
        match self {
            EtcdError::Unreachable { .. }
            | EtcdError::TimedOut { .. }
            | EtcdError::Broken { .. } => true,
            EtcdError::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Whether a lease that was used is gone.
    pub(super) fn is_lease_lost(&self) -> bool {
        matches!(self, EtcdError::Refused { message, .. } if message.contains("lease not found"))
    }
}

/// A stream of changes.
pub(super) struct Watch {
    endpoint: String,
    body: Incoming,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next changes, which all belong to one or more whole revisions. Waits for as long as
    /// nothing changes: who watches must find out by other means whether etcd is still there.
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
                return Err(self.broken("a line is too long".into()));
            }
        }
    }

    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> EtcdError {
        EtcdError::Broken { endpoint: self.endpoint.clone(), source }
    }
}

fn changes(line: &[u8]) -> Result<WatchResponse> {
    let line: Streamed<WatchResponse> =
        serde_json::from_slice(line).map_err(|source| EtcdError::Malformed { source })?;
    let refused = |message| EtcdError::Refused { status: 200, message };
    match line {
        Streamed { result: Some(changes), .. } if changes.compact_revision.0 > 0 => {
            Err(EtcdError::Compacted { revision: changes.compact_revision.0 })
        }
        Streamed { result: Some(changes), .. } if changes.canceled => {
            Err(refused(changes.cancel_reason))
        }
        Streamed { result: Some(changes), .. } => Ok(changes),
        Streamed { error, .. } => Err(refused(error.unwrap_or_default().to_string())),
    }
}

/// `host:port` of a URL.
fn endpoint(text: &str) -> Result<String> {
    let bad = |why| EtcdError::BadEndpoint { text: text.to_owned(), why };
    if text.starts_with("https://") {
        return Err(bad("this client speaks no TLS; let etcd, or a gateway of it, listen on a \
                        network that only the hosts can reach"));
    }
    let rest = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let port_follows = |rest: &str| {
        let port = rest
            .rsplit_once(':')
            .map(|(host, port)| (host.ends_with(']') || !host.contains(':'), port));
        matches!(port, Some((true, port)) if port.parse::<u16>().is_ok())
    };
    match rest {
        "" => Err(bad("it lacks a host")),
        _ if rest.contains('/') || rest.contains('@') => Err(bad("only host and port are allowed")),
        _ if port_follows(rest) => Ok(rest.to_owned()),
        _ if rest.contains(':') && !rest.ends_with(']') => Err(bad("its port is no number")),
        _ => Ok(format!("{rest}:{DEFAULT_PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_hosts_with_ports() {
        for (text, expected) in [
            ("http://etcd:1", "etcd:1"),
            ("http://10.0.0.1", "10.0.0.1:2379"),
            ("[::1]:2379", "[::1]:2379"),
            ("http://[::1]/", "[::1]:2379"),
        ] {
            assert_eq!(endpoint(text).unwrap(), expected);
        }
        for text in ["", "http://", "https://etcd:1", "http://a:b", "::1", "http://a/b", "u@h:1"] {
            assert!(endpoint(text).is_err(), "{text}");
        }
        assert!(Client::new(&[], Duration::from_secs(1)).is_err());
    }

    #[test]
    fn a_watch_that_was_compacted_away_says_so() {
        let line = br#"{"result":{"header":{},"canceled":true,"compact_revision":"42"}}"#;
        assert!(matches!(changes(line), Err(EtcdError::Compacted { revision: 42 })));
        let line = br#"{"result":{"header":{},"canceled":true,"cancel_reason":"no"}}"#;
        assert!(matches!(changes(line), Err(EtcdError::Refused { .. })));
        assert!(matches!(changes(b"{}"), Err(EtcdError::Refused { .. })));
        assert!(matches!(changes(b"<html>"), Err(EtcdError::Malformed { .. })));
    }
}
