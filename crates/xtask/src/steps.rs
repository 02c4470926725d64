//! Lists the steps of both levels, in order.

use crate::cargo::Cargo;
use crate::level::Row;
use crate::programs;
use crate::runner::{Groups, Step, Work};

/// Further runs of test programs in the second level.
const ROWS: &[Row] = &[
    // The first level runs 500 seeds of the simulator.
    Row {
        program: "mtcp-proto/protocol",
        variables: &[("MTCP_SEEDS", "all")],
        filter: &["seeds::"],
    },
];

/// The features of iobench's several hosts, which need an MPI library.
const MPI: &str = "iobench/mpi,systemtests-bench/mpi";
const MPI_ROWS: &[Row] = &[Row { program: "systemtests-bench/mpi", variables: &[], filter: &[] }];

/// The units of redis' suite that are about connections and end within seconds; all of it takes 30
/// minutes.
const REDIS_UNITS: &str = "xtask redis --test unit/protocol unit/quit unit/multi unit/pubsub \
     unit/limits unit/querybuf unit/networking unit/tracking";

/// The first level: what every change must pass; it needs no privilege and no packages.
pub(crate) fn first() -> Groups {
    let build = Cargo::new(programs::FIRST);
    let tests = Work::Tests { build, packages: |package| !programs::is_second(package), rows: &[] };
    vec![vec![step("format", &["fmt --all --check"])], vec![Step { name: "tests", work: tests }]]
}

/// The second level: what needs root, packages, other programs, or other builds.
pub(crate) fn second() -> Groups {
    let system =
        Work::Tests { build: Cargo::new(programs::ALL), packages: programs::is_second, rows: ROWS };
    let with_mpi = format!("{},{MPI}", programs::ALL);
    let lint = with_mpi.replacen("build", "clippy", 1) + " -- -D warnings";
    let documentation = programs::ALL.replacen("build", "test", 1);
    let documentation = documentation.replace("--all-targets", "--doc");
    let mpi = Work::Tests { build: Cargo::new(&with_mpi), packages: |_| false, rows: MPI_ROWS };
    vec![
        vec![step("setup", &["xtask setup --yes"])],
        vec![step("apps", &["xtask source nginx", "xtask apps", "xtask nginx --build"])],
        // The programs that system tests start are in target/debug, which the others do not change.
        vec![
            Step { name: "system tests", work: system },
            step("fuzz", &["xtask fuzz 2"]),
            step("loom", &["xtask loom"]),
            step("msrv", &["xtask msrv"]),
            step("deny", &["xtask deny"]),
            step("doc", &["xtask doc"]),
            step("suites", &["xtask suites"]),
        ],
        vec![Step { name: "mpi", work: mpi }],
        vec![step("kernels", &["xtask kernels --quick"])],
        vec![
            step("sanitize", &["xtask sanitize --short"]),
            step("memcached", &["xtask memcached --test", "xtask memcached --sanitize"]),
            step("redis", &[REDIS_UNITS, "xtask redis --sanitize"]),
            step("lint", &[&lint]),
            step("documentation tests", &[&documentation]),
            step("features", &["xtask features --short"]),
        ],
    ]
}

fn step(name: &'static str, commands: &[&str]) -> Step {
    let commands = commands.iter().map(|words| Cargo::new(words)).collect();
    Step { name, work: Work::Commands(commands) }
}
