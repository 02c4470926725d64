//! Runs tests that need a process of their own, and counts resources there.

use super::TIME_LIMIT;
use megapipe::DriverChoice;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

/// Environment variable that names the test that a child runs.
const VARIABLE: &str = "MEGAPIPE_TEST_ISOLATED";

/// Returns the driver's name, as in `MEGAPIPE_DRIVER`.
pub fn name_of(driver: DriverChoice) -> &'static str {
    match driver {
        DriverChoice::Uring => "uring",
        DriverChoice::Epoll => "epoll",
        DriverChoice::Auto => "auto",
        DriverChoice::Installed(driver) => driver,
    }
}

/// Returns the name under which `conformance!` runs a test; the driver `Auto` stands for none.
pub fn test_name(driver: DriverChoice, name: &str) -> String {
    match driver {
        DriverChoice::Auto => name.to_owned(),
        driver => format!("{}::{name}", name_of(driver)),
    }
}

/// Returns the command that runs this test program again, for the one test of that name.
pub fn again(full_name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test program"));
    command.args(["--exact", full_name, "--test-threads=1", "--nocapture"]);
    command.env(VARIABLE, full_name).env_remove("MEGAPIPE_DRIVER");
    // Otherwise each thread would reserve address space, which tests for leaks would count.
    command.env("MALLOC_ARENA_MAX", "1");
    command
}

/// Returns whether this process is the child that `again` started for that test.
pub fn is_child(full_name: &str) -> bool {
    std::env::var(VARIABLE).is_ok_and(|name| name == full_name)
}

/// Runs `body` in a process of its own: `name` must be the name of the calling test function.
#[track_caller]
pub fn isolated(driver: DriverChoice, name: &str, body: impl FnOnce()) {
    let full_name = test_name(driver, name);
    if is_child(&full_name) {
        return body();
    }
    expect_success(again(&full_name));
}

/// Runs a child made by `again`; panics with its output unless its test has passed.
#[track_caller]
pub fn expect_success(mut command: Command) {
    let output = command.output().expect("start the test program");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = output.status.success() && out.contains("1 passed");
    assert!(passed, "{command:?}: {}\n{out}\n{err}", output.status);
}

/// Returns the descriptors of this process.
pub fn descriptors() -> Vec<String> {
    let mut open: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .expect("/proc/self/fd")
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            // The descriptor of the directory itself is closed by now.
            let target = std::fs::read_link(&path).ok()?;
            Some(format!("{} -> {}", path.file_name()?.to_str()?, target.display()))
        })
        .collect();
    open.retain(|line| !line.contains("/proc/"));
    open.sort();
    open
}

/// Waits until as many descriptors are open as before: the kernel closes some of them late.
#[track_caller]
pub fn expect_descriptors(before: &[String]) {
    let until = Instant::now() + TIME_LIMIT;
    loop {
        let now = descriptors();
        if now.len() == before.len() {
            return;
        }
        assert!(Instant::now() < until, "descriptors before: {before:#?}\nnow: {now:#?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sets the soft limit on descriptors of this process.
pub fn set_descriptor_limit(soft: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    limit.rlim_cur = soft;
    // SAFETY: `limit` is valid for reading.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

/// Forks; the child runs `body` and ends with 0, or with 101 if it panics. Returns the child's id.
pub fn fork(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the caller ensures that no other thread holds a lock that the child needs.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
            // SAFETY: the child ends here, without the parent's exit handlers.
            unsafe { libc::_exit(if panicked { 101 } else { 0 }) }
        }
        child => child,
    }
}

/// Waits for a forked child, which must have ended with 0.
#[track_caller]
pub fn expect_child(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child, "waitpid: {}", io::Error::last_os_error());
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the forked child has failed: wait status {status:#x}"
    );
}
