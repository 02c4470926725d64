//! Network namespaces without a name: they vanish with the last descriptor, and all in them too.

use crate::shell;
use crate::wait::within;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

/// How long the kernel may take for what it does by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// A network namespace in which the loopback device is up.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Default for Namespace {
    fn default() -> Namespace {
        Namespace::new()
    }
}

impl Namespace {
    /// Makes one.
    pub fn new() -> Namespace {
        let make = || {
            // SAFETY: a plain number; only the calling thread moves.
            let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(moved, 0, "a network namespace needs CAP_SYS_ADMIN: run as root");
            let current = File::open("/proc/thread-self/ns/net").expect("/proc is mounted");
            Namespace(current.into())
        };
        // Only a thread of its own can leave its namespace without a way back.
        let namespace = thread::spawn(make).join().expect("a namespace is made");
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs something on a thread in the namespace, and gives what it gives. The sockets and
    /// devices that it opens stay in the namespace wherever they are used.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            // SAFETY: an open descriptor and a plain number; only the calling thread moves.
            let moved = unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(moved, 0, "entering a network namespace needs CAP_SYS_ADMIN: run as root");
            work()
        };
        thread::scope(|scope| {
            let outcome = scope.spawn(enter).join();
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Where setns(2) finds the namespace, for other processes.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs ip(8) in the namespace, with these words; gives what it prints.
    pub fn ip(&self, words: &str) -> String {
        let place = self.path();
        let (succeeded, printed) = shell::run(&format!("nsenter --net={place} ip {words}"));
        assert!(succeeded, "ip {words}: {printed}; it is of iproute2: cargo xtask setup");
        printed
    }

    /// Waits until an interface that is up sends what it is given: the kernel gives it its queue a
    /// moment later, and drops frames before without a word.
    pub fn await_queue(&self, name: &str) {
        within(PATIENCE, &format!("a queue of {name}"), || {
            (!self.ip(&format!("link show {name}")).contains("qdisc noop ")).then_some(())
        });
    }

    /// Gives an interface an address of IPv6, which the kernel answers for a moment later: if the
    /// interface is up, waits until it does.
    pub fn add_v6(&self, address: &str, length: u8, interface: &str) {
        self.ip(&format!("addr add {address}/{length} dev {interface} nodad"));
        let is_up = self.ip(&format!("link show {interface}")).contains("LOWER_UP");
        within(PATIENCE, &format!("{address} on {interface}"), || {
            let route = || self.ip(&format!("-6 route show table local {address}"));
            (!is_up || !route().is_empty()).then_some(())
        });
    }

    /// Sets a kernel parameter of the namespace, by its path below /proc/sys/net.
    pub fn set(&self, parameter: &str, value: &str) {
        let path = format!("/proc/sys/net/{parameter}");
        self.run(|| std::fs::write(&path, value)).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Joins this namespace with another one, or itself, by two ends of a cable, which are up.
    pub fn join(&self, name: &str, other: &Namespace, other_name: &str) {
        self.join_with(name, other, other_name, "");
    }

    /// The same with further words of `ip link add` for each end.
    pub fn join_with(&self, name: &str, other: &Namespace, other_name: &str, words: &str) {
        let path = other.path();
        let peer = format!("type veth peer name {other_name} {words} netns {path}");
        self.ip(&format!("link add {name} {words} {peer}"));
        self.ip(&format!("link set {name} up"));
        other.ip(&format!("link set {other_name} up"));
        self.await_queue(name);
        other.await_queue(other_name);
    }
}
