//! The scenarios of memcached, each with 1, 2 and 4 threads.

mod connections;
mod values;

use super::outcome::Figures;
use super::{Extent, Plan};
use crate::memcached::Build;

const VARIANTS: [(&str, Build); 3] = [
    ("stock", Build::Stock),
    ("uring", Build::Adapted("uring")),
    ("epoll", Build::Adapted("epoll")),
];

const THREADS: [&str; 3] = ["1", "2", "4"];

/// A scenario with this number of threads.
struct Scenario {
    name: &'static str,
    run: fn(Build, &str, Extent) -> Figures,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "text, small and 40 MB", run: values::text },
    Scenario { name: "binary, small and 40 MB", run: values::binary },
    Scenario { name: "UDP", run: values::udp },
    Scenario { name: "stalled readers", run: values::stalled },
    Scenario { name: "-c 64, 200 clients", run: connections::too_many },
    Scenario { name: "TERM, and start on the port", run: connections::terminate },
];

/// Returns all scenarios, one function for each column.
pub(super) fn plans(extent: Extent) -> Vec<Plan> {
    let plan = |(scenario, threads): (&'static Scenario, &'static str)| {
        let column = |&(name, build): &(&'static str, Build)| {
            let run = move || (scenario.run)(build, threads, extent);
            (name, Some(Box::new(run) as Box<dyn Fn() -> Figures>))
        };
        let columns = VARIANTS.iter().map(column).collect();
        Plan { scenario: format!("{}, -t {threads}", scenario.name), columns, limited: &[] }
    };
    let each = |scenario| THREADS.into_iter().map(move |threads| (scenario, threads));
    SCENARIOS.iter().flat_map(each).map(plan).collect()
}
