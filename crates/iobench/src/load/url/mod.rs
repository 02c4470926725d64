//! `iobench load URL`: loads any HTTP server in a closed or an open loop, and compares every answer
//! with the first one, or with a stated one.
//!
//! HTTP and TLS are those of hyper, h2 and rustls; times, schedules, records and verdicts are those
//! of the loops without HTTP. Each client CPU has a thread with a runtime of its own, and no state
//! is shared on the way of a request.

pub(crate) mod report;

use std::fs;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use tokio::task::LocalSet;
use tokio::time::timeout;

use crate::cli::LoadArgs;
use crate::cli::url::{LoadUrlArgs, UrlArgs};
use crate::engine::sampler::ClientSide;
use crate::error::{Context, Error, Result};
use crate::http_client::Version;
use crate::http_client::address::{Place, Url};
use crate::http_client::answer::{Answer, Expected};
use crate::http_client::connection::{Counters, Server, SharedLink, Slot};
use crate::http_client::request::{Parts, Template};
use crate::http_client::threads::runtime;
use crate::http_client::tls::Trust;
use crate::load::Report;
use crate::load::url::report::{Outcome, UrlLoop};
use crate::output;
use crate::results::files::ResultFiles;
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

/// Longest time for the first answer, by which the others are judged.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Most redirects that are followed.
const REDIRECTS_MAX: usize = 10;

impl UrlArgs {
    pub(crate) fn version(&self) -> Option<Version> {
        match (self.http1, self.http2) {
            (true, _) => Some(Version::Http1),
            (_, true) => Some(Version::Http2),
            _ => None,
        }
    }

    /// Returns the requests under way on a connection.
    pub(crate) fn streams_of(&self, url: &Url, version: Version) -> Result<usize> {
        if self.streams > 1 && version == Version::Http1 {
            let cause = format!("{url} speaks HTTP/1.1, which has no --streams");
            return Err(Error::setup(cause, "add --http2, or ask for more --connections"));
        }
        Ok(self.streams as usize)
    }

    pub(crate) fn trust(&self) -> Trust {
        if self.insecure { Trust::Anything } else { Trust::Authorities(self.ca.clone()) }
    }
}

/// Returns the client's CPUs.
pub(crate) fn client_side(url: &Url, cpus: Option<&[usize]>) -> Result<ClientSide> {
    let owned = cpus.is_some();
    let cpus = cpus.map(<[usize]>::to_vec).map_or_else(allowed_cpus, Ok)?;
    // A server on this machine may run on every CPU that is not reserved for the client.
    let is_remote = |name: &str| {
        let address: Option<IpAddr> = name.parse().ok();
        name != "localhost" && !address.is_some_and(|address| address.is_loopback())
    };
    let remote = matches!(&url.place, Place::Host { name, .. } if is_remote(name));
    Ok(ClientSide { cpus, owned: owned || remote, roaming: false })
}

/// A server that has answered, and the request that it has answered.
pub(crate) struct Target {
    pub(crate) url: Url,
    pub(crate) server: Server,
    pub(crate) template: Arc<Template>,
    pub(crate) expected: Expected,
    /// Length of the first answer's body.
    pub(crate) body_bytes: usize,
    /// What a user should know of the first answer.
    pub(crate) first: String,
    pub(crate) remarks: Vec<String>,
}

/// Loads the URL and prints the result; true if the row is valid.
pub(crate) fn run(arguments: &LoadArgs, url: &Url) -> Result<bool> {
    let begun_ns = now_ns();
    let signals = Signals::block();
    let limits = check_limits(url, arguments.connections)?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let seed = arguments.measure.seed.unwrap_or(begun_ns % 1_000_000);
    let environment = super::environment(arguments, &limits, seed)?;
    let target = reach(&arguments.http, url)?;
    target.remarks.iter().for_each(|remark| output::note(remark));
    let Outcome { headline, text, row } = measure(arguments, &target, seed, &signals)?;
    let report = Report {
        name: super::NAME,
        text: format!("{}\n{}: {headline}: {text}", target.first, target.url),
        title: format!("{}: {headline}", target.url),
        settings: format!("{headline}, measured {:?}\n{}\n", arguments.duration(), target.first),
        rows: vec![row],
    };
    report.publish(environment, begun_ns, files)
}

/// Raises the limits for this many connections; fails if they do not suffice.
pub(crate) fn check_limits(url: &Url, connections: usize) -> Result<Limits> {
    let limits = Limits::raise_for(connections)?;
    match url.place {
        Place::Host { .. } => limits.check_connections(connections)?,
        Place::Unix(_) => limits.check_open_files(connections)?,
    }
    Ok(limits)
}

fn measure(arguments: &LoadArgs, target: &Target, seed: u64, signals: &Signals) -> Result<Outcome> {
    let client = client_side(&target.url, arguments.measure.client_cpus.as_deref())?;
    UrlLoop { arguments, target, client, seed, signals }.run()
}

/// Connects to the URL's server, makes the first exchange, and learns from it.
fn reach(arguments: &LoadUrlArgs, url: &Url) -> Result<Target> {
    runtime()?.block_on(LocalSet::new().run_until(first_exchange(arguments, url)))
}

async fn first_exchange(arguments: &LoadUrlArgs, url: &Url) -> Result<Target> {
    let parts = parts(arguments)?;
    let mut url = url.clone();
    for _ in 0..=REDIRECTS_MAX {
        let client = &arguments.client;
        let server = Server::reach(&url, client.version(), &client.trust()).await?;
        let template = Template::new(&url, &parts)
            .map_err(|cause| Error::setup(cause, "correct the URL or the --header"))?;
        let answer = first_answer(&url, &server, &template).await?;
        let location = answer.location.as_deref().filter(|_| arguments.follow);
        let Some(location) = location else {
            return learn(arguments, url, server, template, &answer);
        };
        url = url.redirected(location).map_err(|cause| {
            Error::setup(format!("{url} redirects to `{location}`: {cause}"), "leave out --follow")
        })?;
    }
    let cause = format!("more than {REDIRECTS_MAX} redirects follow each other, now at {url}");
    Err(Error::setup(cause, "load one of them without --follow"))
}

fn parts(arguments: &LoadUrlArgs) -> Result<Parts> {
    let body = match arguments.body.as_deref().map(|text| text.strip_prefix('@').ok_or(text)) {
        None => Bytes::new(),
        Some(Err(text)) => Bytes::from(text.to_owned()),
        Some(Ok(file)) => Bytes::from(
            fs::read(file).context(format!("read {file}"), "name a file by --body @FILE")?,
        ),
    };
    let usual = if arguments.body.is_some() { Method::POST } else { Method::GET };
    let method = arguments.method.clone().unwrap_or(usual);
    if method == Method::CONNECT {
        return Err(Error::setup("CONNECT has no answer to load", "choose another --method"));
    }
    Ok(Parts { method, headers: arguments.client.headers.clone(), body })
}

/// Makes one exchange on a connection of its own.
pub(crate) async fn first_answer(
    url: &Url,
    server: &Server,
    template: &Template,
) -> Result<Answer> {
    let server = Rc::new(server.clone());
    let mut slot = Slot::new(server, Rc::<Counters>::default(), SharedLink::default());
    let remedy = "see whether the server speaks this protocol on this port";
    match timeout(FIRST_ANSWER_LIMIT, slot.exchange(template, true)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(failure)) => {
            Err(Error::setup(format!("{url} did not answer the first request: {failure}"), remedy))
        }
        Err(_) => Err(Error::setup(
            format!("{url} did not answer the first request within 10 s"),
            "see whether the server is overloaded",
        )),
    }
}

/// Decides what the right answer is.
fn learn(
    arguments: &LoadUrlArgs,
    url: Url,
    server: Server,
    template: Template,
    answer: &Answer,
) -> Result<Target> {
    let Answer { status, body_bytes, digest, location } = answer;
    if arguments.expect.is_none() && *status >= 400 {
        return Err(Error::setup(
            format!("{url} was answered by status {status}"),
            format!("correct the URL, or load this answer with --expect {status}"),
        ));
    }
    let digest = digest.map(|digest| format!(", SHA-256 {digest}")).unwrap_or_default();
    let first = format!(
        "first answer: {}, status {status}, {body_bytes} bytes{digest}",
        server.version.name()
    );
    let redirect = location.as_ref().map(|location| {
        format!("the answer is a redirect to {location}; --follow loads that instead")
    });
    Ok(Target {
        url,
        server,
        template: Arc::new(template),
        expected: arguments.expect.unwrap_or_else(|| Expected::like(answer)),
        body_bytes: *body_bytes as usize,
        first,
        remarks: redirect.into_iter().collect(),
    })
}

#[cfg(test)]
pub(crate) mod test_server;
#[cfg(test)]
mod tests;
