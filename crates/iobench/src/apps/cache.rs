//! What memcached and redis have in common: gets and sets of all keys over the server's protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::cli::apps::{KeyArgs, LoadShape};
use crate::client::ClientGroup;
use crate::client::protocol::answer::Answer;
use crate::client::protocol::memcache::{Cache, Dialect, KEY_BYTES, Operation, Usage, VALUE_BYTES};
use crate::client::protocol::pattern::Pattern;
use crate::client::protocol::requests::Requests;
use crate::client::protocol::{Complaint, Protocol};
use crate::client::slices::Slicing;
use crate::client::sockets::Ending;
use crate::client::sockets::kernel::{KernelSockets, Options};
use crate::engine::placement::Placement;
use crate::error::{Context, Result};
use crate::exchange::Exchange;

/// Values that one batch of set commands stores.
const STORED_AT_ONCE: u32 = 64;
/// Longest wait for an answer while the server is filled.
const FILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The labels of both builds.
pub(super) const LABELS: [&str; 2] = ["stock", "megapipe"];

/// Returns the requests per connection to measure: those that the user chose, or the usual ones.
pub(super) fn requests(chosen: Option<&[u32]>, usual: &[u32]) -> Vec<Requests> {
    chosen.unwrap_or(usual).iter().map(|&count| Requests::Fixed(count)).collect()
}

/// The load of a cache.
pub(super) struct CacheLoad {
    dialect: Dialect,
    usage: Usage,
    pub(super) connections: usize,
    ending: Ending,
    seed: u64,
    pattern: Arc<Pattern>,
}

impl CacheLoad {
    pub(super) fn new(dialect: Dialect, keys: &KeyArgs, shape: &LoadShape) -> CacheLoad {
        let (gets, sets) = keys.ratio;
        CacheLoad {
            dialect,
            usage: Usage { keys: keys.keys, gets, sets },
            connections: shape.connections,
            ending: shape.ending,
            seed: shape.measure.seed.unwrap_or(1),
            pattern: Arc::new(Pattern::new()),
        }
    }

    /// Returns the words for a table of its figures.
    pub(super) fn name(&self) -> String {
        format!("get:set {}:{}", self.usage.gets, self.usage.sets)
    }

    /// Returns what is stored and asked for.
    pub(super) fn described(&self) -> String {
        format!(
            "{} keys of {KEY_BYTES} bytes, values of {VALUE_BYTES}, {}, every byte checked, misses \
             are errors",
            self.usage.keys,
            self.name()
        )
    }

    fn cache(&self) -> Cache {
        let pattern = Arc::clone(&self.pattern);
        Cache::new(self.dialect, self.usage, pattern, Requests::Fixed(0), self.seed)
    }

    /// Returns the mean sizes of requests and answers.
    pub(super) fn exchange(&self) -> Exchange {
        let mut cache = self.cache();
        let mut request_bytes = |sets| cache.render(Operation { key: 0, sets }).len();
        let (get, set) = (request_bytes(false), request_bytes(true));
        let answer_bytes = |sets| self.dialect.answer_bytes(sets);
        let (gets, sets) = (self.usage.gets as usize, self.usage.sets as usize);
        let mean = |of_get: usize, of_set: usize| (of_get * gets + of_set * sets) / (gets + sets);
        Exchange {
            request_bytes: mean(get, set),
            response_bytes: mean(answer_bytes(false), answer_bytes(true)),
        }
    }

    /// Stores every key and requires an acknowledgement for each.
    pub(super) fn fill(&self, address: SocketAddr) -> Result<()> {
        const REMEDY: &str = "check that the program serves the protocol of its name";
        let mut stream = TcpStream::connect_timeout(&address, FILL_TIMEOUT)
            .and_then(|stream| {
                stream.set_read_timeout(Some(FILL_TIMEOUT))?;
                stream.set_write_timeout(Some(FILL_TIMEOUT))?;
                stream.set_nodelay(true)?;
                Ok(stream)
            })
            .context(format!("connect to the server at {address}"), REMEDY)?;
        let (mut cache, keys, mut first) = (self.cache(), self.usage.keys, 0);
        while first < keys {
            let last = keys.min(first + STORED_AT_ONCE);
            store(&mut stream, &mut cache, first..last).context("fill a server", REMEDY)?;
            first = last;
        }
        Ok(())
    }

    /// Starts the clients.
    pub(super) fn clients(
        &self,
        placement: &Placement,
        requests: &Requests,
        slicing: Slicing,
    ) -> Result<ClientGroup> {
        let (dialect, usage, pattern) = (self.dialect, self.usage, Arc::clone(&self.pattern));
        let (requests, seed) = (requests.clone(), self.seed);
        let (cpus, connections) = (&placement.client_cpus, self.connections);
        let options = Options::for_short_requests(self.ending);
        let sockets = move |_| KernelSockets::new(options.clone());
        ClientGroup::start_speaking(cpus, connections, slicing, sockets, move |index| {
            let (pattern, seed) = (Arc::clone(&pattern), seed + index as u64);
            Cache::new(dialect, usage, pattern, requests.clone(), seed)
        })
    }
}

/// Sends several set commands in one write and reads their answers.
fn store(
    stream: &mut TcpStream,
    cache: &mut Cache,
    keys: std::ops::Range<u32>,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    for key in keys.clone() {
        bytes.extend_from_slice(cache.render(Operation { key, sets: true }));
    }
    stream.write_all(&bytes)?;
    let mut buffer = [0; 4096];
    let (mut answer, mut waiting) = (Answer::default(), keys);
    while !waiting.is_empty() {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let operation = Operation { key: waiting.start, sets: true };
            let fed = cache
                .feed(&mut answer, operation, rest)
                .map_err(|Complaint(what)| std::io::Error::other(format!("an answer {what}")))?;
            rest = &rest[fed.used..];
            if fed.complete {
                answer.reset();
                waiting.start += 1;
            }
        }
    }
    Ok(())
}
