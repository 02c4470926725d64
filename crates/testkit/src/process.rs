//! Programs that tests run: built if they are ours, and ended with the test.

use crate::namespace::Namespace;
use crate::wait::within;
use std::env;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output};
use std::time::Duration;

/// How long anything may take before a test is given up; far more than it needs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Builds other packages of the workspace into this test's target directory; the place of what
/// came of it.
pub fn built(packages: &[&str]) -> PathBuf {
    let own = env::current_exe().expect("this program has a path");
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

    /// Starts a program in a namespace.
    pub fn spawn_in(namespace: &Namespace, mut command: Command) -> Guard {
        namespace.run(|| Guard::spawn(&mut command))
    }

    /// What it says, which must be piped; can be taken once.
    pub fn output(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("it is piped")
    }

    /// Sends a signal and waits for the end.
    pub fn end(&mut self, signal: i32) -> ExitStatus {
        // SAFETY: the child was not waited for, so the number is still its own.
        unsafe { libc::kill(self.0.id() as i32, signal) };
        self.wait()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("the end of {:?}", self.0);
        within(PATIENCE, &what, || self.0.try_wait().expect("it is a child"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
