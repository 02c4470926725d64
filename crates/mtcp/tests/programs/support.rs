//! The cable, the library, and processes that end with the test.

use crate::common::namespace::Namespace;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test is given up; far more than it needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The stack that serves, on the interface `server`.
pub(crate) const SERVER: &str = "10.9.0.1";
/// The stack of a client, on the interface `client`.
pub(crate) const CLIENT: &str = "10.9.0.2";
/// The client's kernel.
pub(crate) const KERNEL: &str = "10.9.0.3";

/// The library, built into this test's target directory: cargo does not build it for this crate's
/// tests.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let own = std::env::current_exe().expect("this program has a path");
        let profile = own.ancestors().nth(2).expect("cargo's layout").to_owned();
        let target = profile.parent().expect("cargo's layout");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--package", "mtcp-preload", "--target-dir"]);
        cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        let output = cargo.output().expect("cargo runs");
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{cargo:?}: {complaints}");
        profile.join("libmtcp_preload.so")
    })
}

/// Two namespaces joined by a cable, and a directory for what the programs need.
pub(crate) struct Site {
    pub(crate) server: Namespace,
    pub(crate) client: Namespace,
    directory: TempDir,
}

impl Site {
    /// Stacks on devices of this kind ("xdp", "packet").
    pub(crate) fn new(device: &str) -> Site {
        let (server, client) = (Namespace::new(), Namespace::new());
        server.join("server", &client, "client");
        client.ip(&format!("addr add {KERNEL}/24 dev client"));
        let directory = tempfile::tempdir().expect("a directory");
        let site = Site { server, client, directory };
        for (name, address) in [("server", SERVER), ("client", CLIENT)] {
            let text = format!(
                "[device]\nkind = \"{device}\"\ninterface = \"{name}\"\n\
                 [address]\nlist = [\"{address}/24\"]\n"
            );
            std::fs::write(site.path(&format!("{name}.toml")), text).expect("it is written");
        }
        site
    }

    /// A file of this site.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `mtcp run OPTIONS PROGRAM` on the stack of one side; arguments are to follow.
    pub(crate) fn under_stack(&self, side: &str, options: &[&str], program: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mtcp"));
        command.env("MTCP_PRELOAD", library()).arg("run").arg("--config");
        command.arg(self.path(&format!("{side}.toml"))).args(options).arg(program);
        command.stdin(Stdio::null());
        command
    }

    /// What ip(8) says of the server's interface, without what differs each time.
    pub(crate) fn interface(&self) -> String {
        self.server.ip("-o link show server")
    }
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
pub(crate) struct Guard(Child);

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
