//! An etcd in the bridge's namespace, and what can happen to it.

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

pub(crate) struct Etcd {
    process: Option<Child>,
    directory: tempfile::TempDir,
}

impl Etcd {
    /// Starts with an empty store, and waits until it answers.
    pub(crate) fn start(network: &Network) -> Etcd {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut etcd = Etcd { process: None, directory };
        etcd.launch(network);
        etcd
    }

    fn launch(&mut self, network: &Network) {
        let data = self.directory.path().join("data");
        let log = fs::File::create(self.directory.path().join("log")).expect("our own directory");
        let process = network.bridge.run(move || {
            let mut command = Command::new("etcd");
            let clients = format!("http://{ETCD}:{PORT}");
            let peers = "http://127.0.0.1:2380";
            command.arg("--data-dir").arg(data).args(["--logger", "zap"]);
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            command.args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]);
            command.args(["--initial-cluster", &format!("default={peers}")]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            // The kernel ends it with the namespace's thread, should this process be killed.
            // SAFETY: prctl with plain numbers is allowed between fork and exec.
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

    pub(crate) fn signal(&self, signal: i32) {
        let id = self.process.as_ref().expect("it runs").id().cast_signed();
        // SAFETY: plain numbers; the child is not waited for, so the id is its own.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    }

    /// As if its machine had crashed.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().expect("our own child");
        process.wait().expect("our own child");
    }

    pub(crate) fn start_again(&mut self, network: &Network) {
        self.launch(network);
    }

    pub(crate) fn start_again_without_data(&mut self, network: &Network) {
        fs::remove_dir_all(self.directory.path().join("data")).expect("it has stopped");
        self.launch(network);
    }

    /// Runs etcdctl.
    pub(crate) fn control(network: &Network, words: &str) -> String {
        let patience = format!("--dial-timeout {GUARD:?} --command-timeout {GUARD:?}");
        let words = format!("etcdctl --endpoints http://{ETCD}:{PORT} {patience} {words}");
        network.bridge.command(&words, &[("ETCDCTL_API", "3")])
    }

    /// The lease of a key.
    pub(crate) fn lease_of(network: &Network, key: &str) -> i64 {
        let text = Etcd::control(network, &format!("get {key} --write-out fields"));
        let lease = text.lines().find_map(|line| line.strip_prefix("\"Lease\" : "));
        lease.expect("the key is there").parse().expect("a number")
    }

    /// Ends a lease before its time.
    pub(crate) fn revoke(network: &Network, lease: i64) {
        Etcd::control(network, &format!("lease revoke {lease:x}"));
    }

    /// Throws all history away. (What get prints has the revision in its second line.)
    pub(crate) fn compact(network: &Network) {
        let text = Etcd::control(network, "get / --write-out fields");
        let revision = text.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        Etcd::control(network, &format!("compact {}", revision.expect("a revision")));
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

/// Makes etcd slow: a relay in the bridge's namespace that holds everything back for a while.
pub(crate) fn slow_relay(bridge: &Namespace, delay: Duration) -> SocketAddr {
    bridge.run(move || {
        let listener = TcpListener::bind((ETCD, 0)).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        // These threads end with the test's process: they hold nothing but sockets.
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
