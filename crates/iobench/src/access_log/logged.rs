//! What a line or record of a log tells.

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;

/// Longest line, or record of GoReplay.
pub(super) const RECORD_BYTES_MAX: u64 = 16 << 20;

/// What a log tells of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Logged {
    /// Nanoseconds since 1970.
    pub(crate) at_ns: u64,
    pub(crate) request: Request,
    /// The status of the answer that it got, if the log has it.
    pub(crate) status: Option<u16>,
}

/// A request as a log tells it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

impl Request {
    /// Makes a request from a method and a target, which is a path or a whole URL.
    pub(super) fn new(method: &str, target: &str) -> Result<Request, String> {
        let method = method.parse().map_err(|_| format!("`{method}` is no method"))?;
        // A proxy's log has whole URLs.
        let path = match target.split_once("://") {
            Some((scheme, rest)) if !scheme.contains('/') => {
                rest.find('/').map_or("/", |slash| &rest[slash..])
            }
            _ => target,
        };
        if !path.starts_with('/') || PathAndQuery::try_from(path).is_err() {
            return Err(format!("`{target}` is no path"));
        }
        Ok(Request { method, path: path.to_owned(), headers: Vec::new(), body: Bytes::new() })
    }
}
