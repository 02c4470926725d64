//! The scenarios of nginx.

mod clients;
mod files;
mod idle;
mod limits;
mod protocols;
mod proxy;
mod readers;
mod signals;
mod streams;
mod upgrade;

use super::load::fault;
use super::outcome::Figures;
use super::{Extent, Plan};
use crate::nginx::{Nginx, Setup};
use std::io;

/// A column of the table.
struct Variant {
    name: &'static str,
    module: bool,
    events: &'static str,
    /// Whether the column differs from the previous one only with several workers.
    one_queue: bool,
}

/// With the module, each worker has an accept queue unless the partition is off.
const VARIANTS: [Variant; 5] = [
    Variant { name: "stock", module: false, events: "", one_queue: false },
    Variant { name: "uring", module: true, events: "megapipe_driver uring;", one_queue: false },
    Variant {
        name: "uring, partition off",
        module: true,
        events: "megapipe_driver uring; megapipe_partition off;",
        one_queue: true,
    },
    Variant { name: "epoll", module: true, events: "megapipe_driver epoll;", one_queue: false },
    Variant {
        name: "epoll, partition off",
        module: true,
        events: "megapipe_driver epoll; megapipe_partition off;",
        one_queue: true,
    },
];

/// A scenario, and its number of workers.
struct Scenario {
    name: &'static str,
    workers: u32,
    run: fn(Setup, Extent) -> Figures,
    /// The variants that are worse because of a limit of the design, which docs/nginx.md names.
    limited: &'static [&'static str],
}

const fn one(name: &'static str, run: fn(Setup, Extent) -> Figures) -> Scenario {
    Scenario { name, workers: 1, run, limited: &[] }
}

const fn two(name: &'static str, run: fn(Setup, Extent) -> Figures) -> Scenario {
    Scenario { name, workers: 2, run, limited: &[] }
}

/// A ring accepts connections before its worker handles them; the death of a worker loses these.
const KILLS: Scenario = Scenario {
    limited: &["uring", "uring, partition off"],
    ..two("SIGKILL of workers under load", signals::kill)
};

/// One worker serves the accept queue of a CPU, even if that worker is full.
const OF_ONE_CPU: Scenario = Scenario {
    limited: &["uring", "epoll"],
    ..two(
        "worker_connections exhausted, 2 workers, clients of one CPU",
        limits::connections_of_one_cpu,
    )
};

const SCENARIOS: &[Scenario] = &[
    two("reloads under load", signals::reload),
    two("upgrade of the binary under load", upgrade::upgrade),
    KILLS,
    one("worker_connections exhausted", limits::connections),
    two("worker_connections exhausted, 2 workers", limits::connections),
    OF_ONE_CPU,
    one("descriptors exhausted", limits::descriptors),
    two("descriptors exhausted, 2 workers", limits::descriptors),
    one("descriptors exhausted, files", limits::descriptors_for_files),
    one("limit_rate", limits::rate),
    two("limit_conn", limits::simultaneous),
    one("stalled and slow readers", readers::readers),
    one("proxy with keep-alive", proxy::keep_alive),
    one("upload to a file", proxy::upload_to_file),
    one("upload to an upstream", proxy::upload_to_upstream),
    two("TLS and HTTP/2", protocols::tls),
    two("stream TCP", streams::tcp),
    two("stream UDP", streams::udp),
    one("large file, sendfile", files::sendfile),
    one("large file, aio threads", files::aio_threads),
    one("large file, directio", files::directio),
    one("large file, proxied", files::proxied),
    two("storm of resets", clients::resets),
    one("pipelining, half-close", clients::pipelining),
    one("pipelining, half-close, files", clients::pipelining_files),
    two("idle connections, then TERM", idle::idle),
];

/// Returns all scenarios, one function for each column.
pub(super) fn plans(extent: Extent) -> Vec<Plan> {
    let plan = |scenario: &'static Scenario| {
        let column = |variant: &'static Variant| {
            let absent = variant.one_queue && scenario.workers == 1;
            let run = move || (scenario.run)(variant.setup(scenario.workers), extent);
            (variant.name, (!absent).then(|| Box::new(run) as Box<dyn Fn() -> Figures>))
        };
        let columns = VARIANTS.iter().map(column).collect();
        Plan { scenario: scenario.name.to_string(), columns, limited: scenario.limited }
    };
    SCENARIOS.iter().map(plan).collect()
}

impl Variant {
    fn setup(&self, workers: u32) -> Setup {
        let events = self.events.to_string();
        Setup { module: self.module, workers, events, ..Setup::module() }
    }
}

/// Fails if the log has lines that no run may write.
fn no_complaints(nginx: &Nginx) -> io::Result<()> {
    let complaints = nginx.complaints();
    match complaints.first() {
        None => Ok(()),
        Some(first) => Err(fault(format!("{} complaints: {first}", complaints.len()))),
    }
}
