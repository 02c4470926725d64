//! Builds and starts programs for tests; they end with the test.

use crate::namespace::Namespace;
use crate::wait::{eventually, within};
use std::env;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// Time-out of tests, far longer than any step needs.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Builds other packages of the workspace into this test's target directory; returns the directory
/// of the results.
pub fn built(packages: &[&str]) -> PathBuf {
    let profile = profile_directory();
    let target = profile.parent().expect("cargo's layout");
    let mut cargo = Command::new(env!("CARGO"));
    forget_package(&mut cargo);
    cargo.args(["build", "--quiet", "--locked", "--target-dir"]).arg(target);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.output().expect("cargo runs");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cargo:?}: {complaints}");
    profile
}

/// Returns the path of a program of the workspace in this test's target directory. Nothing is
/// built: `cargo xtask test --all` has built it.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let program = profile_directory().join(name);
    let remedy = "build it with `cargo build --workspace` and the test's options";
    assert!(program.exists(), "{} is missing: {remedy}", program.display());
    program
}

/// Environment variables of `cargo xtask sanitize`: the directory of preload libraries that a
/// sanitizer instruments, and the sanitizer's own libraries, which programs need with them, as in
/// LD_PRELOAD.
const SANITIZED: &str = "MEGAPIPE_TEST_SANITIZED";
const SANITIZER: &str = "MEGAPIPE_TEST_SANITIZER";

/// Returns the path of a preload library: in the target directory, or where `cargo xtask sanitize`
/// has built it.
pub fn preload_library(package: &str) -> PathBuf {
    let file = format!("lib{}.so", package.replace('-', "_"));
    match env::var_os(SANITIZED) {
        Some(directory) => PathBuf::from(directory).join(file),
        None => program(&file),
    }
}

/// Makes a command that starts programs with a preload library load the sanitizer, too.
pub fn with_sanitizer(command: &mut Command) -> &mut Command {
    if let Some(libraries) = env::var_os(SANITIZER) {
        command.env("LD_PRELOAD", libraries);
    }
    command
}

/// Removes the variables that cargo sets for the tests of a package from a command that may run
/// cargo. Some build scripts depend on them (that of `ring`): with those of one package and then of
/// another, cargo builds everything above these again.
pub fn forget_package(command: &mut Command) {
    let of_package =
        |name: &str| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        command.env_remove(name);
    }
}

/// The path of an example program of a package, which cargo builds with the package's tests.
#[track_caller]
pub fn example(package: &str, name: &str) -> PathBuf {
    let program = profile_directory().join("examples").join(name);
    let remedy = format!("`cargo build -p {package} --examples`, with the test's options");
    assert!(program.exists(), "{} is missing: {remedy}, builds it", program.display());
    program
}

/// The directory of programs and libraries for this test's profile; the test is in `deps` below it.
pub fn profile_directory() -> PathBuf {
    let own = env::current_exe().expect("this program has a path");
    own.ancestors().nth(2).expect("target/PROFILE/deps/TEST").to_owned()
}

/// Waits until the port accepts a connection from the kernel of that namespace.
pub fn await_port(from: &Namespace, address: &str, port: u16, running: &mut Guard) {
    let address = format!("{address}:{port}").parse().expect("an address");
    let try_once = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
    within(TIME_LIMIT, &format!("a server on {address}"), || {
        let ended = running.0.try_wait().expect("it is a child");
        assert!(ended.is_none(), "the server has ended: {ended:?}");
        from.run(try_once).then_some(())
    });
}

/// A process that is killed when this is dropped, unless it has ended.
#[derive(Debug)]
pub struct Guard(pub Child);

impl Guard {
    /// Returns the bytes of the process that are in memory.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
    }

    /// Returns the number of open descriptors of the process; its main thread may have ended.
    pub fn descriptors(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let opened = |task: std::fs::DirEntry| std::fs::read_dir(task.path().join("fd"));
        let counts = tasks.map(|task| opened(task.unwrap()).map_or(0, Iterator::count));
        counts.max().unwrap()
    }

    /// Starts a program.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Guard {
        let spawned = command.spawn();
        Guard(spawned.unwrap_or_else(|error| panic!("{command:?}: {error}: cargo xtask setup")))
    }

    /// Starts a program that reads from a pipe and writes to one.
    #[track_caller]
    pub fn spawn_piped(command: &mut Command) -> Guard {
        Guard::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    /// Starts a program in a namespace.
    pub fn spawn_in(namespace: &Namespace, mut command: Command) -> Guard {
        namespace.run(|| Guard::spawn(&mut command))
    }

    /// Returns the program's standard output, which must be piped; can be taken once.
    pub fn output(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("it is piped")
    }

    /// Sends a signal.
    #[track_caller]
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so the number is still its own.
        let result = unsafe { libc::kill(self.0.id() as i32, signal) };
        assert_eq!(result, 0, "signal {signal} to {:?}", self.0);
    }

    /// Sends a signal and waits for the end.
    #[track_caller]
    pub fn end(&mut self, signal: i32) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }

    /// Waits for the program's end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.0, TIME_LIMIT)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the body of a test in a process of its own: this program again, with only this test, which
/// is named with its modules.
#[track_caller]
pub fn alone(test: &str, body: impl FnOnce()) {
    const ALONE: &str = "MEGAPIPE_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return body();
    }
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output();
    let output = output.expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    print!("{text}");
}

/// Waits for the end of a child; kills it and panics after the time-out.
#[track_caller]
pub fn wait(child: &mut Child, time_limit: Duration) -> ExitStatus {
    let mut ended = None;
    eventually(time_limit, || {
        ended = child.try_wait().expect("it is a child");
        ended.is_some()
    });
    ended.unwrap_or_else(|| {
        let _ = child.kill();
        let _ = child.wait();
        panic!("process {} has not ended within {time_limit:?}", child.id());
    })
}

/// Runs a program to its end; returns its output, or panics if it failed.
pub fn succeed(namespace: &Namespace, mut command: Command) -> Output {
    let output = namespace.run(|| command.output());
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}: cargo xtask setup"));
    let short = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(2000)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{short}\n{errors}", output.status);
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_does_not_get_the_variables_of_the_package() {
        let mut command = Command::new("env");
        forget_package(&mut command);
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(output.contains("PATH=") && !output.contains("CARGO_PKG_NAME="), "{output}");
    }
}
