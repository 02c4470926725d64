//! Fixture: an etcd in the bridge's namespace, and its failures.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::hosts::GUARD;
use super::network::{ETCD, Namespace, Network};

pub(crate) const PORT: u16 = 2379;

/// An etcd and its data directory.
pub(crate) struct Etcd {
    /// Further arguments, and the scheme of its URL.
    arguments: Vec<String>,
    scheme: &'static str,
    process: Option<Child>,
    directory: tempfile::TempDir,
}

impl Etcd {
    /// Starts with an empty store, and waits until it answers.
    pub(crate) fn start(network: &Network) -> Etcd {
        Etcd::start_with(network, "http", Vec::new())
    }

    /// Starts with an empty store, a scheme of its URL and further arguments.
    pub(crate) fn start_with(
        network: &Network,
        scheme: &'static str,
        arguments: Vec<String>,
    ) -> Etcd {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut etcd = Etcd { arguments, scheme, process: None, directory };
        etcd.launch(network);
        etcd
    }

    fn launch(&mut self, network: &Network) {
        let data = self.directory.path().join("data");
        let log = fs::File::create(self.directory.path().join("log")).expect("our own directory");
        let (arguments, scheme) = (self.arguments.clone(), self.scheme);
        let process = network.bridge.run(move || {
            let mut command = Command::new("etcd");
            let clients = format!("{scheme}://{ETCD}:{PORT}");
            let peers = "http://127.0.0.1:2380";
            command.arg("--data-dir").arg(data).args(["--logger", "zap"]);
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            command.args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]);
            command.args(["--initial-cluster", &format!("default={peers}")]);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            // The kernel kills it with the namespace's thread if this process is killed.
            // SAFETY: prctl with plain numbers is permitted between fork and exec.
            unsafe {
                command.pre_exec(|| {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    Ok(())
                });
            }
            command.spawn().expect("etcd starts")
        });
        self.process = Some(process);
        let answers = || network.bridge.run(|| TcpStream::connect((ETCD, PORT)).is_ok());
        let started = Instant::now();
        while !answers() {
            assert!(started.elapsed() < GUARD, "etcd does not answer");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to etcd.
    pub(crate) fn signal(&self, signal: i32) {
        let id = self.process.as_ref().expect("it runs").id().cast_signed();
        // SAFETY: plain numbers; the child was not waited for, so no other process has its id.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    }

    /// Kills etcd, as a crash of its machine would.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().expect("our own child");
        process.wait().expect("our own child");
    }

    /// Starts etcd again with its data.
    pub(crate) fn start_again(&mut self, network: &Network) {
        self.launch(network);
    }

    /// Starts etcd again with an empty store.
    pub(crate) fn start_again_without_data(&mut self, network: &Network) {
        fs::remove_dir_all(self.directory.path().join("data")).expect("it has stopped");
        self.launch(network);
    }

    /// Runs etcdctl.
    pub(crate) fn control(network: &Network, words: &str) -> String {
        let time_limit = format!("--dial-timeout {GUARD:?} --command-timeout {GUARD:?}");
        let words = format!("etcdctl --endpoints http://{ETCD}:{PORT} {time_limit} {words}");
        network.bridge.command(&words, &[("ETCDCTL_API", "3")])
    }

    /// Returns the lease of a key.
    pub(crate) fn lease_of(network: &Network, key: &str) -> i64 {
        let text = Etcd::control(network, &format!("get {key} --write-out fields"));
        let lease = text.lines().find_map(|line| line.strip_prefix("\"Lease\" : "));
        lease.expect("the key is there").parse().expect("a number")
    }

    /// Ends a lease early.
    pub(crate) fn revoke(network: &Network, lease: i64) {
        Etcd::control(network, &format!("lease revoke {lease:x}"));
    }

    /// Returns the revision. (`get` prints it in its second line.)
    pub(crate) fn revision(network: &Network) -> i64 {
        let text = Etcd::control(network, "get / --write-out fields");
        let revision = text.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        revision.expect("a revision").parse().expect("a number")
    }

    /// Removes all history.
    pub(crate) fn compact(network: &Network) {
        Etcd::control(network, &format!("compact {}", Etcd::revision(network)));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Makes etcd slow: starts a relay in the bridge's namespace that delays everything.
pub(crate) fn slow_relay(bridge: &Namespace, delay: Duration) -> SocketAddr {
    bridge.run(move || {
        let listener = TcpListener::bind((ETCD, 0)).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        // These threads end with the test's process: they own only sockets.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || {
                    let Ok(server) = TcpStream::connect((ETCD, PORT)) else { return };
                    let back = (server.try_clone(), client.try_clone());
                    if let (Ok(server), Ok(client)) = back {
                        thread::spawn(move || relay(server, client, delay));
                    }
                    relay(client, server, delay);
                });
            }
        });
        address
    })
}

fn relay(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let mut bytes = [0; 64 * 1024];
    loop {
        match from.read(&mut bytes) {
            Ok(count) if count > 0 => {
                thread::sleep(delay);
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
