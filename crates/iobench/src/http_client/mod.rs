//! A client of HTTP for the closed and the open loop: URLs, connections and their answers.
//!
//! HTTP and TLS are those of hyper, h2 and rustls; times, schedules, records and verdicts are those
//! of the loops without HTTP. Each client CPU has a thread with a runtime of its own, and no state
//! is shared on the way of a request.

pub(crate) mod address;
pub(crate) mod answer;
pub(crate) mod closed_loop;
pub(crate) mod connection;
pub(crate) mod open_loop;
pub(crate) mod open_run;
pub(crate) mod request;
pub(crate) mod threads;
pub(crate) mod tls;

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

impl Version {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Version::Http1 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
        }
    }
}
