//! What a change must pass, in order.

use crate::cargo::{Cargo, host_triple};
use crate::means::Means;
use crate::step::{Step, Work, is_missing};
use crate::{apps, features, kernels, setup, tidy};

/// The step with every test of the workspace, which takes longest.
const TEST: &str = "test";

/// The step on a kernel that is older than this machine's.
const OLD_KERNEL: &str = "kernels --quick";

/// How many loom tests must have run for the leg to mean anything.
const LOOM_TESTS_MIN: u64 = 5;

/// How many tests of several hosts there are at least.
const MPI_TESTS_MIN: u64 = 5;

/// How long the differential fuzzer of the channel runs in the full run.
const DIFFERENTIAL_SECONDS: u64 = 30;

/// Plain builds must work without other people's C libraries and long compilations, so these parts
/// are features; here they are always tested where their packages are installed.
const PEERS: [(&str, &[&str]); 3] = [
    ("iobench-peers/libuv", &["libuv1-dev"]),
    ("iobench-peers/iceoryx2", &[]),
    ("iobench-peers/zeromq", &["libzmq3-dev", "pkg-config"]),
];

/// What building the feature `mpi` takes.
const MPI: &[&str] = &["libopenmpi-dev", "clang"];

/// Every step, as CI takes them: the cheap ones that fail most often first.
pub(crate) fn full(means: &Means) -> Result<Vec<Step>, String> {
    let docs = "doc --workspace --no-deps --locked --document-private-items";
    let mut steps = vec![
        Step::new("setup", Work::SetUp),
        Step::new("format", Work::Cargo(Cargo::new("fmt --all --check"))),
        Step::new("tidy", Work::Own(tidy::run)),
        lint(means),
        test(means),
        Step::new("memcached --test", Work::Own(apps::memcached::compare_suites))
            .needs(setup::MEMCACHED, means)
            .needs(setup::MEMCACHED_SUITE, means),
        Step::new("memcached --sanitize", Work::Own(apps::memcached::sanitize))
            .needs(setup::MEMCACHED, means),
        epoll(),
        barred(),
    ];
    steps.extend(features::short());
    steps.extend([old_kernel(means), differential(), lint_mpi(means), mpi(means)]);
    let in_own_directories = sanitize_only(means)?.into_iter().chain([loom()]);
    steps.extend(in_own_directories);
    let meanwhile: Vec<Cargo> = steps.iter().filter_map(Step::build_alone).collect();
    if let Some(tests) = steps.iter_mut().find(|step| step.name == TEST) {
        tests.meanwhile = meanwhile;
    }
    let docs = Cargo::new(docs).with("RUSTDOCFLAGS", "-D warnings");
    steps.push(Step::new("docs", Work::Cargo(docs)));
    Ok(steps)
}

/// The step behind `cargo xtask sanitize`.
pub(crate) fn sanitize_only(_: &Means) -> Result<Vec<Step>, String> {
    let host = host_triple()?;
    let steps = [sanitize_examples, sanitize, sanitize_iobench, sanitize_stack];
    Ok(steps.map(|step| step(&host)).into())
}

/// The steps behind `cargo xtask hunt`: those whose tests meet the kernel, and so its scheduler.
pub(crate) fn hunted(means: &Means) -> Result<Vec<Step>, String> {
    let mut steps = vec![test(means), epoll(), mpi(means)];
    steps.extend(sanitize_only(means)?);
    Ok(steps)
}

/// The step behind `cargo xtask loom`.
pub(crate) fn loom_only(_: &Means) -> Result<Vec<Step>, String> {
    Ok(vec![loom()])
}

/// The step behind `cargo xtask header`: the test that compares writes instead.
pub(crate) fn header_only(_: &Means) -> Result<Vec<Step>, String> {
    let tests = Cargo::new("test --package megapipe-capi --test generated");
    let work = Work::Tests(tests.with("MEGAPIPE_UPDATE", "1"), 1);
    Ok(vec![Step::new("header", work)])
}

/// The step behind `cargo xtask cinstall`. No part of the full run, because cargo-c takes a quarter
/// of an hour of CPU to build.
pub(crate) fn cinstall_only(_: &Means) -> Result<Vec<Step>, String> {
    let tests = Cargo::new("test --package megapipe-capi --features capi --test installed");
    Ok(vec![Step::new("cinstall", Work::Tests(tests, 1))])
}

/// The features of [`PEERS`] that can be built here, and the others with the reason.
fn peers(means: &Means) -> (String, Vec<(String, String)>) {
    let (mut features, mut left_out) = (Vec::new(), Vec::new());
    for (feature, packages) in PEERS {
        match packages.iter().find(|package| means.lacks(package)) {
            None => features.push(feature),
            Some(package) => left_out.push((format!("feature {feature}"), is_missing(package))),
        }
    }
    (features.join(","), left_out)
}

fn lint(means: &Means) -> Step {
    let (features, left_out) = peers(means);
    let lint =
        format!("clippy --workspace --all-targets --locked --features {features} -- -D warnings");
    Step { left_out, ..Step::new("lint", Work::Cargo(Cargo::new(&lint))) }
}

/// Every test of the workspace.
fn test(means: &Means) -> Step {
    let (features, left_out) = peers(means);
    let tests = Cargo::new(&format!("test --workspace --locked --features {features}"));
    Step { left_out, ..Step::new(TEST, Work::Tests(tests, 1)) }
}

/// The integration tests hold for every driver, and the default one is not epoll where io_uring
/// works.
fn epoll() -> Step {
    let tests = Cargo::new("test --package megapipe --locked --test *");
    Step::new("test-epoll", Work::Tests(tests.with("MEGAPIPE_DRIVER", "epoll"), 1))
}

/// The same suite once more where a seccomp filter bars io_uring and nobody asks for epoll.
fn barred() -> Step {
    let tests = Cargo::new("test --package megapipe --locked --test conformance_* -- epoll::");
    Step::new("test-barred", Work::Tests(tests.with("MEGAPIPE_TEST_BARRED", "1"), 1))
}

/// What must work on the oldest kernel whose io_uring the channel uses.
fn old_kernel(means: &Means) -> Step {
    let step = Step::new(OLD_KERNEL, Work::Checks(kernels::quick));
    let step = Step { lacking: kernels::lacking(means), ..step };
    step.needs(setup::KERNELS, means).needs(setup::NGINX, means).needs(setup::NGINX_CLIENTS, means)
}

/// Random scripts of channel operations over both drivers, which are compared.
fn differential() -> Step {
    Step::new("differential fuzzer", Work::Cargo(channelfuzz(DIFFERENTIAL_SECONDS)))
}

/// The differential fuzzer of the channel for so long.
pub(crate) fn channelfuzz(seconds: u64) -> Cargo {
    Cargo::new("run --package channelfuzz --locked -- --seconds").and(&seconds.to_string())
}

/// The same for the channel over the user-level stack, compared with the kernel.
pub(crate) fn channelfuzz_over_stack(seconds: u64) -> Cargo {
    channelfuzz(seconds).and("--driver").and("mtcp")
}

/// What `callfuzz` puts under its processes, which cargo does not build for it: the libraries, and
/// the program that the one of the stack starts.
pub(crate) fn callfuzz_libraries() -> Cargo {
    Cargo::new("build --package fable-preload --package mtcp-preload --package mtcp --locked")
}

/// The differential fuzzer of socket calls for so long.
pub(crate) fn callfuzz(seconds: u64) -> Cargo {
    Cargo::new("run --package callfuzz --locked -- --seconds").and(&seconds.to_string())
}

/// The same for a process on the user-level stack, compared with the kernel.
pub(crate) fn callfuzz_over_stack(seconds: u64) -> Cargo {
    callfuzz(seconds).and("--way").and("mtcp")
}

/// The other steps build without the features, as most users do; this sees the code behind them.
fn lint_mpi(means: &Means) -> Step {
    let lint = "clippy --package iobench --features mpi --all-targets --locked -- -D warnings";
    Step::new("lint-mpi", Work::Cargo(Cargo::new(lint))).needs(MPI, means)
}

/// Many hosts, which are network namespaces, under Open MPI.
fn mpi(means: &Means) -> Step {
    let tests = Cargo::new("test --package iobench --features mpi --locked --test mpi");
    Step::new("test-mpi", Work::Tests(tests, MPI_TESTS_MIN)).needs(MPI, means)
}

/// All tests but `injection`, which stands in front of the same functions of the C library.
fn sanitize(host: &str) -> Step {
    let words = "test --package megapipe --package fable --locked --lib --test [!i]* --test idle";
    Step::new("sanitize", Work::Tests(sanitized(words, host), 1))
}

/// Of the benchmark the parts that are unsafe: the servers, and the clients that load them. Its
/// other tests are of whole campaigns, and some build other packages, which the flags would reach.
fn sanitize_iobench(host: &str) -> Step {
    let words = "test --package iobench --locked --bins --test run --test servers";
    Step::new("sanitize-iobench", Work::Tests(sanitized(words, host), 1))
}

/// The user-level stack, but for the tests that build other packages.
fn sanitize_stack(host: &str) -> Step {
    let words = "test --package mtcp --locked --lib --test channel --test devices --test kernel \
                 --test shutdown --test sockets --test xdp";
    Step::new("sanitize-stack", Work::Tests(sanitized(words, host), 1))
}

/// Cargo builds the examples, which tests run, by itself only where no targets are named.
fn sanitize_examples(host: &str) -> Step {
    let examples = sanitized("build --package megapipe --package fable --locked --examples", host);
    Step::new("sanitize-examples", Work::Cargo(examples))
}

/// The sanitizer's runtime comes with the stable toolchain, only the flag is unstable: hence
/// `RUSTC_BOOTSTRAP`. The target is named, though it is the host's, to keep the flag away from
/// build scripts and procedural macros. Doc tests stay out: rustdoc would need the flag too.
///
/// Leaks are not looked for: memory of an operation that outlived its deadline is leaked on
/// purpose, and the leak detector cannot run beneath strace, which one test uses. The quarantine of
/// freed memory is kept small for the test that looks at how much is mapped.
fn sanitized(words: &str, host: &str) -> Cargo {
    Cargo::new(words)
        .and("--target")
        .and(host)
        .in_own_target_dir("asan")
        .with("RUSTC_BOOTSTRAP", "1")
        .with("RUSTFLAGS", "-Zsanitizer=address")
        .with("ASAN_OPTIONS", "detect_leaks=0:quarantine_size_mb=16")
}

/// Under `--cfg loom` only the tests named `loom_...` make sense: the others use types that work
/// nowhere but inside a loom model. Release, because a model tries thousands of interleavings.
fn loom() -> Step {
    let tests = Cargo::new("test --package megapipe --package mtcp --locked --lib --release")
        .in_own_target_dir("loom")
        .and("loom_")
        .with("RUSTFLAGS", "--cfg loom");
    Step::new("loom", Work::Tests(tests, LOOM_TESTS_MIN))
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
    fn the_differential_fuzzer_runs_over_the_stack() {
        let line = channelfuzz_over_stack(9).to_string();
        let end = "--seconds 9 --driver mtcp";
        assert_eq!(line, format!("cargo run --package channelfuzz --locked -- {end}"));
    }

    #[test]
    fn the_fuzzer_of_socket_calls_has_its_libraries() {
        assert_eq!(
            callfuzz_libraries().to_string(),
            "cargo build --package fable-preload --package mtcp-preload --package mtcp --locked"
        );
        assert_eq!(callfuzz(7).arguments.last().map(String::as_str), Some("7"));
        let line = callfuzz_over_stack(7).to_string();
        assert_eq!(line, "cargo run --package callfuzz --locked -- --seconds 7 --way mtcp");
    }

    #[test]
    fn own_steps_are_repeated_through_xtask() {
        let step = Step::new("tidy", Work::Own(tidy::run));
        assert_eq!(step.repeat(), "cargo xtask tidy");
    }

    #[test]
    fn missing_packages_leave_out_features_and_steps_by_name() {
        let missing = vec!["libuv1-dev", "clang", "libio-socket-ssl-perl"];
        let means = Means { privilege: Privilege::Namespace, missing };
        let steps = full(&means).unwrap();
        let all = full(&Means::ALL).unwrap();
        let names = |steps: &[Step]| steps.iter().map(|step| step.name).collect::<Vec<_>>();
        assert_eq!(names(&steps), names(&all));
        let lacking: Vec<_> = steps.iter().filter(|step| step.lacking.is_some()).collect();
        let lacking: Vec<_> = lacking.iter().map(|step| step.name).collect();
        assert_eq!(lacking, ["memcached --test", OLD_KERNEL, "lint-mpi", "test-mpi"]);
        for step in steps.iter().filter(|step| ["lint", "test"].contains(&step.name)) {
            let line = step.repeat();
            assert!(line.contains("--features iobench-peers/iceoryx2,iobench-peers/zeromq"));
            let reason = "the package libuv1-dev is missing".to_string();
            assert_eq!(step.left_out, [("feature iobench-peers/libuv".to_string(), reason)]);
        }
        // Which kernels there are depends on the machine, too.
        let complete = |step: &Step| {
            step.name == OLD_KERNEL || (step.lacking.is_none() && step.left_out.is_empty())
        };
        assert!(all.iter().all(complete));
    }

    #[test]
    fn the_sanitizer_builds_for_the_named_host_in_its_own_directory() {
        let line = sanitize("some-triple").repeat();
        assert!(line.contains("--target some-triple --target-dir "), "{line}");
        assert!(line.contains("/asan"), "{line}");
    }
}
