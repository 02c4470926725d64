//! redis in two variants: as distributed, and patched to serve clients through the channel.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::apps::App;
use crate::apps::cache::{self, CacheLoad, LABELS};
use crate::apps::environment::{built, room_for, scratch};
use crate::cli::apps::RedisArgs;
use crate::client::ClientGroup;
use crate::client::protocol::memcache::Dialect;
use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
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
const USUAL_REQUESTS: [u32; 3] = [1, 128, 0];
const QUICK_REQUESTS: [u32; 1] = [0];

/// The two variants of redis, and their load.
pub(crate) struct Redis {
    programs: [PathBuf; 2],
    load: CacheLoad,
    scratch: TempDir,
}

impl Redis {
    /// Finds both builds.
    pub(crate) fn prepare(arguments: &RedisArgs) -> Result<Redis> {
        let stock = built(arguments.stock.as_deref(), USUAL_STOCK, REMEDY)?;
        let adapted = built(arguments.adapted.as_deref(), USUAL_ADAPTED, REMEDY)?;
        Ok(Redis {
            programs: [stock, adapted],
            load: CacheLoad::new(Dialect::Redis, &arguments.keys, &arguments.shape),
            scratch: scratch("redis")?,
        })
    }

    /// Returns the requests per connection to measure.
    pub(crate) fn requests(&self, arguments: &RedisArgs) -> Vec<Requests> {
        let is_quick = arguments.shape.measure.quick;
        let usual = if is_quick { &QUICK_REQUESTS[..] } else { &USUAL_REQUESTS };
        cache::requests(arguments.requests.as_deref(), usual)
    }

    fn words(&self, variant: usize, port: u16) -> Vec<String> {
        let (port, directory) = (port.to_string(), self.scratch.path().to_string_lossy());
        let connections = room_for(self.load.connections).to_string();
        let backlog = self.load.connections.max(511).to_string();
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
}

impl App for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn labels(&self) -> Vec<String> {
        LABELS.map(str::to_owned).to_vec()
    }

    fn load(&self) -> String {
        self.load.name()
    }

    fn settings(&self) -> String {
        let versions = self.programs.each_ref().map(|program: &PathBuf| version_of(program));
        format!(
            "stock is {}, megapipe is {}; no persistence, one thread\n{}",
            versions[0],
            versions[1],
            self.load.described()
        )
    }

    fn exchange(&self) -> Exchange {
        self.load.exchange()
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
        self.load.fill(process.address())?;
        Ok(Running::External(process))
    }

    fn clients(
        &self,
        placement: &Placement,
        requests: &Requests,
        slicing: Slicing,
    ) -> Result<ClientGroup> {
        self.load.clients(placement, requests, slicing)
    }
}

/// Returns the version that the program prints, without the words about its build.
fn version_of(program: &Path) -> String {
    let text = version(program, "--version");
    text.split(" sha=").next().unwrap_or_default().to_owned()
}
