//! Options of `load` for URLs.

use std::path::PathBuf;

use clap::{Arg, Args};
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};

use crate::http_client::address::Url;
use crate::http_client::answer::Expected;
use crate::http_client::open_loop::ConnectionsBy;
use crate::http_client::request::parse_header;

/// Most requests under way on one connection of HTTP/2.
const STREAMS_MAX: u32 = 1_000;

/// The URL, and how the client reaches its server.
#[derive(Debug, Args)]
#[command(next_help_heading = "URL")]
pub(crate) struct UrlArgs {
    /// HTTP/1.1 only [default: for https what the server chooses by ALPN, else HTTP/1.1]
    #[arg(long, conflicts_with = "http2")]
    pub(crate) http1: bool,

    /// HTTP/2 only; without TLS by prior knowledge
    #[arg(long)]
    pub(crate) http2: bool,

    /// requests under way on each connection of HTTP/2
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub(crate) streams: u32,

    /// any certificate is accepted, such as a self-signed one
    #[arg(long)]
    pub(crate) insecure: bool,

    /// PEM file of the certificate authorities to trust [default: the system's]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) ca: Option<PathBuf>,

    /// header of each request, such as 'Accept: text/html'; repeatable
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = parse_header)]
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,

    /// how requests get their connection in an open loop
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub(crate) connections_by: ConnectionsBy,
}

/// The request of `load URL`, and its right answer.
#[derive(Debug, Args)]
#[command(next_help_heading = "URL")]
pub(crate) struct LoadUrlArgs {
    /// URL to load: http://, https:// or unix:SOCKET:PATH
    #[arg(
        value_name = "URL",
        help_heading = "URL",
        conflicts_with_all = [
            "connect", "server", "transactions", "message_bytes", "request_bytes",
            "response_bytes", "server_cpus"
        ]
    )]
    pub(crate) url: Option<Url>,

    /// method of the requests [default: GET, with --body POST]
    #[arg(long, value_name = "METHOD", conflicts_with_all = SERVERS)]
    pub(crate) method: Option<Method>,

    /// body of the requests; @FILE for the content of a file
    #[arg(long, value_name = "TEXT", conflicts_with_all = SERVERS)]
    pub(crate) body: Option<String>,

    /// right answer, STATUS or STATUS,LENGTH, such as 404 or 200,612 [default: that of the first
    /// answer, with the digest of its body]
    #[arg(long, value_name = "ANSWER", value_parser = Expected::parse,
          conflicts_with_all = SERVERS)]
    pub(crate) expect: Option<Expected>,

    /// the URL that redirects lead to is loaded instead
    #[arg(long, conflicts_with_all = SERVERS)]
    pub(crate) follow: bool,

    #[command(flatten)]
    pub(crate) client: UrlArgs,
}

/// Other servers of `load`. A URL conflicts with them, so to require it would not refuse them.
const SERVERS: [&str; 2] = ["connect", "server"];

/// The options of URLs in [`UrlArgs`], which `replay` has, too, where there are no other servers.
const OPTIONS: [&str; 7] =
    ["http1", "http2", "streams", "insecure", "ca", "headers", "connections_by"];

/// Refuses the options of URLs for other servers.
pub(crate) fn of_url(arg: Arg) -> Arg {
    match OPTIONS.contains(&arg.get_id().as_str()) {
        true => arg.conflicts_with_all(SERVERS),
        false => arg,
    }
}
