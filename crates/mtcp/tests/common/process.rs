//! Programs that tests run: built if they are ours, and ended with the test.

use crate::namespace::Namespace;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test is given up; far more than it needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Builds other packages of the workspace into this test's target directory; the place of what
/// came of it.
pub(crate) fn built(packages: &[&str]) -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let profile = own.ancestors().nth(2).expect("cargo's layout").to_owned();
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

/// Waits until the port answers the kernel of that namespace.
pub(crate) fn await_port(from: &Namespace, address: &str, port: u16, running: &mut Guard) {
    let begin = Instant::now();
    let address = format!("{address}:{port}").parse().expect("an address");
    let try_once = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
    while !from.run(try_once) {
        let ended = running.0.try_wait().expect("it is a child");
        assert!(ended.is_none(), "the server has ended: {ended:?}");
        assert!(begin.elapsed() < PATIENCE, "nobody listens on {address}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A process that ends with this, at the latest.
pub(crate) struct Guard(pub(crate) Child);

impl Guard {
    pub(crate) fn spawn(namespace: &Namespace, mut command: Command) -> Guard {
        let spawned = namespace.run(|| command.spawn());
        Guard(spawned.unwrap_or_else(|error| panic!("{command:?}: {error}: cargo xtask setup")))
    }

    /// What it says, which must be piped; can be taken once.
    pub(crate) fn output(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("it is piped")
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn end(&mut self, signal: i32) -> ExitStatus {
        // SAFETY: the child was not waited for, so the number is still its own.
        unsafe { libc::kill(self.0.id() as i32, signal) };
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("it is a child") {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "{:?} does not end", self.0);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end; its output, which must be that of success.
pub(crate) fn succeed(namespace: &Namespace, mut command: Command) -> Output {
    let output = namespace.run(|| command.output());
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}: cargo xtask setup"));
    let short = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(2000)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{short}\n{errors}", output.status);
    output
}
