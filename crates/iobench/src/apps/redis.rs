//! redis in two variants: as distributed, and patched to serve clients through the channel.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;

use crate::apps::App;
use crate::apps::cache::fill;
use crate::apps::environment::{Scratch, built, room_for};
use crate::cli::apps::RedisArgs;
use crate::client::ClientGroup;
use crate::client::protocol::Protocol;
use crate::client::protocol::memcache::{Cache, Dialect, KEY_BYTES, Operation, Usage, VALUE_BYTES};
use crate::client::protocol::pattern::Pattern;
use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
use crate::client::sockets::Ending;
use crate::client::sockets::kernel::{KernelSockets, Options};
use crate::engine::placement::Placement;
use crate::error::Result;
use crate::exchange::Exchange;
use crate::installed::version;
use crate::server::external::{ExternalProcess, Foreign};
use crate::server::process::Launch;
use crate::server::running::Running;
use crate::sys::signals::Signals;

const REMEDY: &str = "build both with `cargo xtask redis`, or name one with --stock or --adapted";
const USUAL_STOCK: &str = "redis/stock/src/redis-server";
const USUAL_ADAPTED: &str = "redis/megapipe/src/redis-server";
const LABELS: [&str; 2] = ["stock", "megapipe"];
const USUAL_REQUESTS: [u32; 3] = [1, 128, 0];
const QUICK_REQUESTS: [u32; 1] = [0];

/// The two variants of redis, and their load.
pub(crate) struct Redis {
    programs: [PathBuf; 2],
    usage: Usage,
    connections: usize,
    ending: Ending,
    seed: u64,
    pattern: Arc<Pattern>,
    scratch: Scratch,
}

impl Redis {
    /// Finds both builds.
    pub(crate) fn prepare(arguments: &RedisArgs) -> Result<Redis> {
        let stock = built(arguments.stock.as_deref(), USUAL_STOCK, REMEDY)?;
        let adapted = built(arguments.adapted.as_deref(), USUAL_ADAPTED, REMEDY)?;
        let (gets, sets) = arguments.ratio;
        Ok(Redis {
            programs: [stock, adapted],
            usage: Usage { keys: arguments.keys, gets, sets },
            connections: arguments.shape.connections,
            ending: arguments.shape.ending,
            seed: arguments.shape.measure.seed.unwrap_or(1),
            pattern: Arc::new(Pattern::new()),
            scratch: Scratch::make("redis")?,
        })
    }

    /// Returns the requests per connection to measure.
    pub(crate) fn requests(&self, arguments: &RedisArgs) -> Vec<Requests> {
        let usual =
            if arguments.shape.measure.quick { &QUICK_REQUESTS[..] } else { &USUAL_REQUESTS };
        let counts = arguments.requests.as_deref().unwrap_or(usual);
        counts.iter().map(|&count| Requests::Fixed(count)).collect()
    }

    fn words(&self, variant: usize, port: u16) -> Vec<String> {
        let (port, directory) = (port.to_string(), self.scratch.path().to_string_lossy());
        let connections = room_for(self.connections).to_string();
        let backlog = self.connections.max(511).to_string();
        let mut words = vec![self.programs[variant].to_string_lossy().into_owned()];
        let options = [
            ["--bind", "127.0.0.1"],
            ["--port", &port],
            ["--maxclients", &connections],
            ["--tcp-backlog", &backlog],
            ["--dir", &directory],
            ["--save", ""],
            ["--appendonly", "no"],
            ["--daemonize", "no"],
        ];
        words.extend(options.concat().into_iter().map(str::to_owned));
        if variant == 1 {
            words.extend(["--megapipe", "yes"].map(str::to_owned));
        }
        words
    }

    fn cache(&self, requests: Requests, seed: u64) -> Cache {
        Cache::new(Dialect::Redis, self.usage, Arc::clone(&self.pattern), requests, seed)
    }
}

impl App for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn labels(&self) -> Vec<String> {
        LABELS.map(str::to_owned).to_vec()
    }

    fn load(&self) -> String {
        format!("get:set {}:{}", self.usage.gets, self.usage.sets)
    }

    fn settings(&self) -> String {
        let versions = self.programs.each_ref().map(|program: &PathBuf| version_of(program));
        format!(
            "stock is {}, megapipe is {}; no persistence, one thread\n{} keys of {KEY_BYTES} \
             bytes, values of {VALUE_BYTES}, {}, every byte checked, misses are errors",
            versions[0],
            versions[1],
            self.usage.keys,
            self.load()
        )
    }

    fn exchange(&self) -> Exchange {
        let mut cache = self.cache(Requests::Fixed(0), self.seed);
        let mut length = |sets| cache.render(Operation { key: 0, sets }).len();
        let (get, set) = (length(false), length(true));
        // The answer to a get has a line before the value, and the end of a line behind it.
        let (value, stored) = (VALUE_BYTES + 9, 5);
        let Usage { gets, sets, .. } = self.usage;
        let (gets, sets) = (gets as usize, sets as usize);
        let mean = |of_get: usize, of_set: usize| (of_get * gets + of_set * sets) / (gets + sets);
        Exchange { request_bytes: mean(get, set), response_bytes: mean(value, stored) }
    }

    fn start(&self, variant: usize, cpus: &[usize], signals: &Signals) -> Result<Running> {
        let name = LABELS[variant];
        let foreign = Foreign { name, orphan_signal: Signal::KILL };
        let launch = Launch::echo(name, cpus);
        let mut process = ExternalProcess::start_command(&foreign, &launch, signals, |port| {
            Ok(self.words(variant, port))
        })?;
        // The other threads of redis do nothing here.
        process.serves_in(vec![process.id() as i32], true);
        let mut cache = self.cache(Requests::Fixed(0), self.seed);
        fill(process.address(), &mut cache, self.usage.keys)?;
        Ok(Running::External(process))
    }

    fn clients(
        &self,
        placement: &Placement,
        requests: &Requests,
        slicing: Slicing,
    ) -> Result<ClientGroup> {
        let (usage, pattern) = (self.usage, Arc::clone(&self.pattern));
        let (requests, seed) = (requests.clone(), self.seed);
        let (cpus, connections) = (&placement.client_cpus, self.connections);
        let options = Options::for_short_requests(self.ending);
        let sockets = move |_| KernelSockets::new(options.clone());
        ClientGroup::start_speaking(cpus, connections, slicing, sockets, move |index| {
            let (dialect, requests) = (Dialect::Redis, requests.clone());
            Cache::new(dialect, usage, Arc::clone(&pattern), requests, seed + index as u64)
        })
    }
}

/// Returns the version that the program prints, without the words about its build.
fn version_of(program: &Path) -> String {
    let text = version(program, "--version");
    text.split(" sha=").next().unwrap_or_default().to_owned()
}
