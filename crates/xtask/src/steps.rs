//! Lists the steps of both levels, in order.

use crate::cargo::Cargo;
use crate::level::Row;
use crate::programs;
use crate::runner::{Step, Work};

/// Further runs of test programs in the second level.
const ROWS: &[Row] = &[
    // Lazy writes, and a flush before each wait.
    Row {
        program: "megapipe/conformance",
        variables: &[("MEGAPIPE_TEST_LAZY", "1")],
        filter: &["uring::"],
    },
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

/// The first level: what every change must pass; it needs no privilege and no packages.
pub(crate) fn first() -> Vec<Step> {
    let build = Cargo::new(programs::FIRST);
    let tests = Work::Tests { build, packages: |package| !programs::is_second(package), rows: &[] };
    vec![step("format", &["fmt --all --check"]), Step { name: "tests", work: tests, beside: false }]
}

/// The second level: what needs root, packages, other programs, or other builds. Steps that may run
/// beside each other come last.
pub(crate) fn second() -> Vec<Step> {
    let system =
        Work::Tests { build: Cargo::new(programs::ALL), packages: programs::is_second, rows: ROWS };
    let with_mpi = format!("{},{MPI}", programs::ALL);
    let lint = with_mpi.replacen("build", "clippy", 1) + " -- -D warnings";
    let documentation = programs::ALL.replacen("build", "test", 1);
    let documentation = documentation.replace("--all-targets", "--doc");
    let mpi = Work::Tests { build: Cargo::new(&with_mpi), packages: |_| false, rows: MPI_ROWS };
    let mut steps = vec![
        step("setup", &["xtask setup --yes"]),
        step("apps", &["xtask source nginx", "xtask apps", "xtask nginx --build"]),
        Step { name: "system tests", work: system, beside: false },
        Step { name: "mpi", work: mpi, beside: false },
        step("kernels", &["xtask kernels --quick"]),
    ];
    let beside = [
        step("lint", &[&lint]),
        step("documentation tests", &[&documentation]),
        step("fuzz", &["xtask fuzz 2"]),
        step("memcached", &["xtask memcached --test", "xtask memcached --sanitize"]),
        step("sanitize", &["xtask sanitize --short"]),
        step("loom", &["xtask loom"]),
        step("suites", &["xtask suites"]),
        step("features", &["xtask features --short"]),
        step("doc", &["xtask doc"]),
        step("deny", &["xtask deny"]),
        step("msrv", &["xtask msrv"]),
    ];
    steps.extend(beside.map(|step| Step { beside: true, ..step }));
    steps
}

fn step(name: &'static str, commands: &[&str]) -> Step {
    let commands = commands.iter().map(|words| Cargo::new(words)).collect();
    Step { name, work: Work::Commands(commands), beside: false }
}
