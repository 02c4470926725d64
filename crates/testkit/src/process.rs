//! Programs that tests run: built if they are ours, and ended with the test.

use crate::namespace::Namespace;
use crate::wait::{eventually, within};
use std::env;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// How long anything may take before a test is given up; far more than it needs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Builds other packages of the workspace into this test's target directory; the place of what
/// came of it.
pub fn built(packages: &[&str]) -> PathBuf {
    let profile = profile_directory();
    let target = profile.parent().expect("cargo's layout");
    let mut cargo = Command::new(env!("CARGO"));
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

/// An example program of a package, which cargo builds beside its tests.
#[track_caller]
pub fn example(package: &str, name: &str) -> PathBuf {
    let program = profile_directory().join("examples").join(name);
    let remedy = format!("`cargo build -p {package} --examples`, with the test's options");
    assert!(program.exists(), "{} is missing: {remedy}, builds it", program.display());
    program
}

/// Where cargo puts programs and libraries for this test's profile: the test is in `deps` below.
pub fn profile_directory() -> PathBuf {
    let own = env::current_exe().expect("this program has a path");
    own.ancestors().nth(2).expect("target/PROFILE/deps/TEST").to_owned()
}

/// Waits until the port answers the kernel of that namespace.
pub fn await_port(from: &Namespace, address: &str, port: u16, running: &mut Guard) {
    let address = format!("{address}:{port}").parse().expect("an address");
    let try_once = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
    within(PATIENCE, &format!("a server on {address}"), || {
        let ended = running.0.try_wait().expect("it is a child");
        assert!(ended.is_none(), "the server has ended: {ended:?}");
        from.run(try_once).then_some(())
    });
}

/// A process that ends with this, at the latest.
#[derive(Debug)]
pub struct Guard(pub Child);

impl Guard {
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

    /// What it says, which must be piped; can be taken once.
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

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.0, PATIENCE)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of a child; one that does not end in time is killed and has failed.
#[track_caller]
pub fn wait(child: &mut Child, patience: Duration) -> ExitStatus {
    let mut ended = None;
    eventually(patience, || {
        ended = child.try_wait().expect("it is a child");
        ended.is_some()
    });
    ended.unwrap_or_else(|| {
        let _ = child.kill();
        let _ = child.wait();
        panic!("process {} has not ended within {patience:?}", child.id());
    })
}

/// Runs a program to its end; its output, which must be that of success.
pub fn succeed(namespace: &Namespace, mut command: Command) -> Output {
    let output = namespace.run(|| command.output());
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}: cargo xtask setup"));
    let short = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(2000)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{short}\n{errors}", output.status);
    output
}
