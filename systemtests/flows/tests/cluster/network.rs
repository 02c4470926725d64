//! Fixture: anonymous network namespaces. They exist as long as the thread that entered them and
//! the descriptor that refers to them, so nothing remains after the test, however it ends.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use testkit::can_make_networks;

/// The address of etcd, on the bridge.
pub(crate) const ETCD: &str = "10.77.0.254";

/// The programs that the tests need, and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 3] =
    [("ip", "iproute2"), ("etcd", "etcd-server"), ("etcdctl", "etcd-client")];

type Work = Box<dyn FnOnce() + Send>;

/// A thread in a namespace of its own.
pub(crate) struct Namespace {
    work: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    file: File,
}

impl Namespace {
    fn new() -> Namespace {
        let (work, orders) = mpsc::channel::<Work>();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            // SAFETY: a plain number; only this thread enters the new namespace.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "unshare");
            sender
                .send(File::open("/proc/thread-self/ns/net").expect("/proc"))
                .expect("waited for");
            orders.into_iter().for_each(|work| work());
        });
        let file = receiver.recv().expect("a network namespace");
        let namespace = Namespace { work: Some(work), thread: Some(thread), file };
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `work` in the namespace. Threads and processes that it starts are in the namespace too.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        let work = Box::new(move || {
            let _ = sender.send(work());
        });
        self.work.as_ref().expect("until it is dropped").send(work).expect("the thread lives");
        receiver.recv().expect("the work inside has panicked")
    }

    /// Runs ip(8).
    pub(crate) fn ip(&self, words: &str) {
        self.command(&format!("ip {words}"), &[]);
    }

    /// Runs a program, which must succeed, and returns its output.
    pub(crate) fn command(
        &self,
        words: &str,
        environment: &[(&'static str, &'static str)],
    ) -> String {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let environment = environment.to_vec();
        self.run(move || {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).envs(environment).stdin(Stdio::null());
            let output = command.output().expect("the program starts");
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {message}", words.join(" "));
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }

    /// Moves the calling thread into the namespace, for the rest of its life.
    pub(crate) fn enter(&self) {
        // SAFETY: plain numbers; the descriptor is that of a network namespace.
        let entered = unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0, "setns");
    }

    /// Returns the name of this namespace for ip(8).
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.work = None;
        let _ = self.thread.take().expect("only once").join();
    }
}

/// A bridge with hosts at 10.77.0.1, 10.77.0.2 …
pub(crate) struct Network {
    pub(crate) hosts: Vec<Namespace>,
    pub(crate) bridge: Namespace,
}

impl Network {
    /// Creates the network. Returns `None`, and prints a note, if this test cannot run here.
    pub(crate) fn start(test: &str, hosts: usize) -> Option<Network> {
        if !can_make_networks(test, &PROGRAMS) {
            return None;
        }
        let bridge = Namespace::new();
        bridge.ip("link add bridge type bridge");
        bridge.ip(&format!("address add {ETCD}/24 dev bridge"));
        bridge.ip("link set bridge up");
        let hosts = (0..hosts).map(|index| join(&bridge, index)).collect();
        Some(Network { hosts, bridge })
    }

    /// Takes the host's link to the bridge down.
    pub(crate) fn cut(&self, host: usize) {
        self.bridge.ip(&format!("link set port{host} down"));
    }

    /// Takes the host's link to the bridge up again.
    pub(crate) fn mend(&self, host: usize) {
        self.bridge.ip(&format!("link set port{host} up"));
    }
}

fn join(bridge: &Namespace, index: usize) -> Namespace {
    let host = Namespace::new();
    let inside = host.path();
    bridge.ip(&format!("link add port{index} type veth peer name eth0 netns {inside}"));
    bridge.ip(&format!("link set port{index} master bridge up"));
    host.ip(&format!("address add 10.77.0.{}/24 dev eth0", index + 1));
    host.ip("link set eth0 up");
    host
}
