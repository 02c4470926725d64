//! Lists everything that a change must pass, in order.

use crate::cargo::Cargo;
use crate::step::{Step, Work, is_missing};
use crate::test_capabilities::TestCapabilities;
use crate::{apps, deny, doc, features, fuzz, kernels, sanitize, setup, suites, tidy};

/// The step with every test of the workspace, which takes longest.
const TEST: &str = "test";

/// The step with the tests of other projects.
const SUITES: &str = "suites";

/// The step on an older kernel.
const OLD_KERNEL: &str = "kernels --quick";

/// Least numbers of loom tests, to detect a run that does not match those of each crate.
const LOOM_TESTS_MIN: u64 = 19;
const LOOM_PAGE_TESTS_MIN: u64 = 9;

/// Least number of tests of several hosts.
const MPI_TESTS_MIN: u64 = 5;

/// How long the differential fuzzer of the channel runs in the full run.
const DIFFERENTIAL_SECONDS: u64 = 30;

/// Features of `iobench-external`. They are features because plain builds must work without other C
/// libraries and long compilations. Here each is tested if its packages are installed.
const PEERS: [(&str, &[&str]); 4] = [
    ("iobench-external/libuv", &["libuv1-dev"]),
    ("iobench-external/iceoryx2", &[]),
    ("iobench-external/zeromq", &["libzmq3-dev", "pkg-config"]),
    ("iobench-external/http", &[]),
];

/// Packages for building libFuzzer.
const FUZZ: &[&str] = &["g++"];

/// Packages for building the feature `mpi`.
const MPI: &[&str] = &["libopenmpi-dev", "clang"];

/// Every step, in the order of CI: cheap steps that fail often come first, and those that may run
/// beside each other last.
pub(crate) fn full(means: &TestCapabilities) -> Result<Vec<Step>, String> {
    let mut steps = vec![
        Step::new("setup", Work::SetUp),
        Step::new("format", Work::Cargo(Cargo::new("fmt --all --check"))),
        Step::new("tidy", Work::Own(tidy::run)),
        lint(means),
        test(means),
        old_kernel(means),
        lint_mpi(means),
        mpi(means),
        Step::new("memcached --test", Work::Own(apps::memcached::compare_suites))
            .needs(setup::MEMCACHED, means)
            .needs(setup::MEMCACHED_SUITE, means)
            .beside(),
        Step::new("memcached --sanitize", Work::Own(apps::memcached::sanitize))
            .needs(setup::MEMCACHED, means)
            .beside(),
        epoll().beside(),
        barred().beside(),
        lazy_writes().beside(),
        differential().beside(),
        other_suites().beside(),
        documentation(means).beside(),
        Step::new("deny", Work::Own(deny::run)).beside(),
    ];
    steps.extend(features::short().map(Step::beside));
    steps.extend(loom().into_iter().map(Step::beside));
    steps.extend(sanitize::short()?);
    steps.push(Step::new("fuzz --quick", Work::Own(fuzz::quick)).needs(FUZZ, means));
    // A stable sort: the others keep their order.
    steps.sort_by_key(|step| step.beside);
    let mut meanwhile: Vec<Cargo> = steps.iter().filter_map(Step::build_alone).collect();
    meanwhile.extend([fuzz::build()?, doc::install_mdbook(), deny::install()]);
    if let Some(tests) = steps.iter_mut().find(|step| step.name == TEST) {
        tests.meanwhile = meanwhile;
    }
    Ok(steps)
}

/// The step of the full run with this name.
pub(crate) fn only(name: &str, means: &TestCapabilities) -> Result<Vec<Step>, String> {
    let mut steps = full(means)?;
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    let Some(index) = names.iter().position(|step| *step == name) else {
        return Err(format!("there is no step `{name}`; use one of: {}", names.join(", ")));
    };
    Ok(vec![steps.swap_remove(index)])
}

/// The documentation; manual pages are left out where mandoc cannot be installed.
fn documentation(means: &TestCapabilities) -> Step {
    if !means.lacks(doc::MANDOC) {
        return Step::new("doc", Work::Own(doc::run));
    }
    let left_out = vec![("lint of the manual pages".to_string(), is_missing(doc::MANDOC))];
    Step { left_out, ..Step::new("doc", Work::Own(doc::run_without_manuals)) }
}

/// The steps of `cargo xtask stress`: those whose tests depend on the kernel's scheduler.
pub(crate) fn hunted(means: &TestCapabilities) -> Result<Vec<Step>, String> {
    let mut steps = vec![test(means), epoll(), mpi(means)];
    steps.extend(sanitize::short()?);
    Ok(steps)
}

/// The steps of `cargo xtask loom`.
pub(crate) fn loom_only(_: &TestCapabilities) -> Result<Vec<Step>, String> {
    Ok(loom().into())
}

/// Returns the step of `cargo xtask suites`.
pub(crate) fn suites_only(_: &TestCapabilities) -> Result<Vec<Step>, String> {
    Ok(vec![other_suites()])
}

/// Returns the step of `cargo xtask header`: it writes the header, which the same test otherwise
/// compares.
pub(crate) fn header_only(_: &TestCapabilities) -> Result<Vec<Step>, String> {
    let tests = Cargo::new("test --package megapipe-capi --test generated");
    let work = Work::Tests(tests.with("MEGAPIPE_UPDATE", "1"), 1);
    Ok(vec![Step::new("header", work)])
}

/// Returns the step of `cargo xtask cinstall`. It is not in the full run, because cargo-c takes a
/// quarter of an hour of CPU time to build.
pub(crate) fn cinstall_only(_: &TestCapabilities) -> Result<Vec<Step>, String> {
    let tests = Cargo::new("test --package megapipe-capi --features capi --test installed");
    Ok(vec![Step::new("cinstall", Work::Tests(tests, 1))])
}

/// The features of [`PEERS`] that can be built here, and the others with the reason.
fn peers(means: &TestCapabilities) -> (String, Vec<(String, String)>) {
    let (mut features, mut left_out) = (Vec::new(), Vec::new());
    for (feature, packages) in PEERS {
        match packages.iter().find(|package| means.lacks(package)) {
            None => features.push(feature),
            Some(package) => left_out.push((format!("feature {feature}"), is_missing(package))),
        }
    }
    (features.join(","), left_out)
}

fn lint(means: &TestCapabilities) -> Step {
    let (features, left_out) = peers(means);
    let lint =
        format!("clippy --workspace --all-targets --locked --features {features} -- -D warnings");
    Step { left_out, ..Step::new("lint", Work::Cargo(Cargo::new(&lint))) }
}

/// Every test of the workspace.
fn test(means: &TestCapabilities) -> Step {
    let (features, left_out) = peers(means);
    let tests = Cargo::new(&format!("test --workspace --locked --features {features}"));
    Step { left_out, ..Step::new(TEST, Work::Tests(tests, 1)) }
}

/// The integration tests over the epoll driver, which is not the default if io_uring works.
fn epoll() -> Step {
    let tests = Cargo::new("test --package megapipe --locked --test *");
    Step::new("test-epoll", Work::Tests(tests.with("MEGAPIPE_DRIVER", "epoll"), 1))
}

/// The same suite under a seccomp filter that makes io_uring unavailable, without choosing epoll.
fn barred() -> Step {
    let tests = Cargo::new("test --package megapipe --locked --test conformance_* -- epoll::");
    Step::new("test-barred", Work::Tests(tests.with("MEGAPIPE_TEST_BARRED", "1"), 1))
}

/// The same suite with lazy writes and a flush before each wait.
fn lazy_writes() -> Step {
    let tests = Cargo::new("test --package megapipe --locked --test conformance_* -- uring::");
    Step::new("test-lazy", Work::Tests(tests.with("MEGAPIPE_TEST_LAZY", "1"), 1))
}

/// Tests on the oldest kernel whose io_uring the channel uses.
fn old_kernel(means: &TestCapabilities) -> Step {
    let step = Step::new(OLD_KERNEL, Work::Checks(kernels::quick));
    let step = Step { lacking: kernels::lacking(means), ..step };
    step.needs(setup::KERNELS, means).needs(setup::NGINX, means).needs(setup::NGINX_CLIENTS, means)
}

/// Runs random scripts of channel operations over both drivers, and compares the results.
fn differential() -> Step {
    Step::new("differential fuzzer", Work::Cargo(fuzz::channelfuzz(DIFFERENTIAL_SECONDS)))
}

/// The tests of other projects on megapipe-rt.
fn other_suites() -> Step {
    Step::new(SUITES, Work::Checks(suites::run))
}

/// Checks the code behind the feature `mpi`, without which the other steps build.
fn lint_mpi(means: &TestCapabilities) -> Step {
    let lint = "clippy --package iobench --features mpi --all-targets --locked -- -D warnings";
    Step::new("lint-mpi", Work::Cargo(Cargo::new(lint))).needs(MPI, means)
}

/// Tests several hosts, which are network namespaces, under Open MPI.
fn mpi(means: &TestCapabilities) -> Step {
    let tests = Cargo::new("test --package iobench --features mpi --locked --test mpi");
    Step::new("test-mpi", Work::Tests(tests, MPI_TESTS_MIN)).needs(MPI, means)
}

/// Runs the loom tests. Under `--cfg loom` only tests named `loom_...` are useful: the others use
/// types that work only inside a loom model. In release mode, because a model tries thousands of
/// interleavings.
fn loom() -> [Step; 2] {
    let models = |words: &str| {
        Cargo::new(words)
            .in_own_target_dir("loom")
            .and("loom_")
            .with("RUSTFLAGS", "--cfg loom")
            .with("CARGO_PROFILE_RELEASE_DEBUG", "0")
    };
    let units = "test --package megapipe --package megapipe-rt --package mtcp --package preload \
                 --package fable --locked --lib --release";
    // A library that interposes the C library has no unit tests.
    let page = "test --package fable-preload --locked --test loom_page --release";
    [
        Step::new("loom", Work::Tests(models(units), LOOM_TESTS_MIN)),
        Step::new("loom-page", Work::Tests(models(page), LOOM_PAGE_TESTS_MIN)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privilege::Privilege;

    #[test]
    fn the_drivers_are_chosen_by_the_environment() {
        assert_eq!(
            epoll().repeat(),
            "MEGAPIPE_DRIVER=epoll cargo test --package megapipe --locked --test '*'"
        );
    }

    #[test]
    fn the_differential_fuzzer_is_given_its_time() {
        let line = differential().repeat();
        assert_eq!(line, "cargo run --package channelfuzz --locked -- --seconds 30");
    }

    #[test]
    fn own_steps_are_repeated_through_xtask() {
        let step = Step::new("tidy", Work::Own(tidy::run));
        assert_eq!(step.repeat(), "cargo xtask tidy");
    }

    #[test]
    fn missing_packages_leave_out_features_and_steps_by_name() {
        let missing = vec!["libuv1-dev", "clang", "libio-socket-ssl-perl", "mandoc"];
        let means = TestCapabilities { privilege: Privilege::Namespace, missing };
        let steps = full(&means).unwrap();
        let all = full(&TestCapabilities::ALL).unwrap();
        let names = |steps: &[Step]| steps.iter().map(|step| step.name).collect::<Vec<_>>();
        assert_eq!(names(&steps), names(&all));
        let lacking: Vec<_> = steps.iter().filter(|step| step.lacking.is_some()).collect();
        let lacking: Vec<_> = lacking.iter().map(|step| step.name).collect();
        assert_eq!(lacking, [OLD_KERNEL, "lint-mpi", "test-mpi", "memcached --test"]);
        for step in steps.iter().filter(|step| ["lint", "test"].contains(&step.name)) {
            let line = step.repeat();
            assert!(line.contains("--features iobench-external/iceoryx2,iobench-external/zeromq"));
            let reason = "the package libuv1-dev is missing".to_string();
            assert_eq!(step.left_out, [("feature iobench-external/libuv".to_string(), reason)]);
        }
        let doc = steps.iter().find(|step| step.name == "doc").unwrap();
        assert_eq!(doc.left_out[0].1, "the package mandoc is missing");
        // The available kernels depend on the machine, too.
        let complete = |step: &Step| {
            step.name == OLD_KERNEL || (step.lacking.is_none() && step.left_out.is_empty())
        };
        assert!(all.iter().all(complete));
    }
}
