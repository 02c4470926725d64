//! memcached in two variants: as distributed, and patched to use the channel.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::apps::App;
use crate::apps::cache::{self, CacheLoad, LABELS};
use crate::apps::environment::{built, is_root, room_for};
use crate::cli::apps::MemcachedArgs;
use crate::client::ClientGroup;
use crate::client::protocol::memcache::{Dialect, KEY_BYTES, VALUE_BYTES};
use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
use crate::engine::placement::Placement;
use crate::error::{Context, Error, Result};
use crate::exchange::Exchange;
use crate::server::external::{ExternalProcess, Foreign};
use crate::server::process::Launch;
use crate::server::running::Running;
use crate::sys::signals::Signals;

const REMEDY: &str =
    "build both with `cargo xtask memcached`, or name one with --stock or --adapted";
const USUAL_STOCK: &str = "memcached/stock/memcached";
const USUAL_ADAPTED: &str = "memcached/megapipe/memcached";
/// Memory of an item beside key and value, with what slabs leave unused; an upper estimate.
const ITEM_OVERHEAD_BYTES: u64 = 400;
const USUAL_REQUESTS: [u32; 4] = [1, 8, 128, 0];
const QUICK_REQUESTS: [u32; 2] = [1, 0];
/// The name of the worker threads.
const WORKER_NAME: &str = "mc-worker";

/// The two variants of memcached, and their load.
pub(crate) struct Memcached {
    programs: [PathBuf; 2],
    versions: [String; 2],
    load: CacheLoad,
    memory_mb: u32,
}

impl Memcached {
    /// Finds both builds and reads their versions; fails if the keys do not fit into memory.
    pub(crate) fn prepare(arguments: &MemcachedArgs) -> Result<Memcached> {
        let stock = built(arguments.stock.as_deref(), USUAL_STOCK, REMEDY)?;
        let adapted = built(arguments.adapted.as_deref(), USUAL_ADAPTED, REMEDY)?;
        let item_bytes = (KEY_BYTES + VALUE_BYTES) as u64 + ITEM_OVERHEAD_BYTES;
        let wanted_mb = (u64::from(arguments.keys.keys) * item_bytes).div_ceil(1 << 20);
        if wanted_mb > u64::from(arguments.memory_mb) {
            return Err(Error::setup(
                format!("{} keys do not fit into {} MB", arguments.keys.keys, arguments.memory_mb),
                format!("choose --memory-mb {wanted_mb} or fewer --keys"),
            ));
        }
        Ok(Memcached {
            versions: [version_of(&stock)?, version_of(&adapted)?],
            programs: [stock, adapted],
            load: CacheLoad::new(Dialect::Memcached, &arguments.keys, &arguments.shape),
            memory_mb: arguments.memory_mb,
        })
    }

    /// Returns the requests per connection to measure.
    pub(crate) fn requests(&self, arguments: &MemcachedArgs) -> Vec<Requests> {
        let is_quick = arguments.shape.measure.quick;
        let usual = if is_quick { &QUICK_REQUESTS[..] } else { &USUAL_REQUESTS };
        cache::requests(arguments.requests.as_deref(), usual)
    }

    fn words(&self, variant: usize, port: u16, threads: usize) -> Vec<String> {
        let connections = room_for(self.load.connections).to_string();
        let (port, threads, memory_mb) =
            (port.to_string(), threads.to_string(), self.memory_mb.to_string());
        let mut words: Vec<String> = vec![self.programs[variant].to_string_lossy().into_owned()];
        let options = [
            ["-l", "127.0.0.1"],
            ["-p", &port],
            ["-t", &threads],
            ["-m", &memory_mb],
            ["-c", &connections],
            // The table has its final size from the start.
            ["-o", "hashpower=20"],
        ];
        words.extend(options.concat().into_iter().map(str::to_owned));
        if is_root() {
            words.extend(["-u", "root"].map(str::to_owned));
        }
        words
    }
}

impl App for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn labels(&self) -> Vec<String> {
        LABELS.map(str::to_owned).to_vec()
    }

    fn load(&self) -> String {
        self.load.name()
    }

    fn settings(&self) -> String {
        let [stock, adapted] = &self.versions;
        format!(
            "stock is {stock}, megapipe is {adapted}; -m {} -c {} -o hashpower=20\n{}",
            self.memory_mb,
            room_for(self.load.connections),
            self.load.described()
        )
    }

    fn exchange(&self) -> Exchange {
        self.load.exchange()
    }

    fn start(&self, variant: usize, cpus: &[usize], signals: &Signals) -> Result<Running> {
        let name = LABELS[variant];
        let foreign = Foreign { name, orphan_signal: Signal::KILL };
        let mut process =
            ExternalProcess::start_command(&foreign, &Launch::echo(name, cpus), signals, |port| {
                Ok(self.words(variant, port, cpus.len()))
            })?;
        let workers = threads_named(process.id(), WORKER_NAME);
        // The accepting thread runs on the same CPUs, so a worker does not have a CPU to itself.
        if workers.len() == cpus.len() {
            process.serves_in(workers, false);
        }
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

/// Returns the threads of a process that have a name.
fn threads_named(process: u32, name: &str) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let mut found: Vec<i32> = threads
        .flatten()
        .filter(|thread| {
            let text = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            text.trim_end() == name
        })
        .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    found
}

/// Returns the version that the program prints.
fn version_of(program: &Path) -> Result<String> {
    let output = std::process::Command::new(program).arg("-V").output().context(
        format!("start {}", program.display()),
        "build it with `cargo xtask memcached`, or name a memcached that runs",
    )?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
