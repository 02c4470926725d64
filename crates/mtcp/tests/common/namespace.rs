//! Network namespaces without a name: they vanish with the last descriptor, and all in them too.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::thread;

/// A network namespace in which the loopback device is up.
pub struct Namespace(OwnedFd);

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

    /// Runs something on a thread in the namespace, and gives what it gives. The sockets and devices
    /// that it opens stay in the namespace wherever they are used.
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

    /// Runs ip(8) in the namespace, with these words.
    pub fn ip(&self, words: &str) {
        let output = self.run(|| Command::new("ip").args(words.split_whitespace()).output());
        let output = output.expect("ip(8) of iproute2 is installed: cargo xtask setup");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {words}: {errors}");
    }

    /// Sets a kernel parameter of the namespace, by its path below /proc/sys/net.
    pub fn set(&self, parameter: &str, value: &str) {
        let path = format!("/proc/sys/net/{parameter}");
        self.run(|| std::fs::write(&path, value)).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Joins this namespace with another one, or itself, by two ends of a cable, which are up.
    pub fn join(&self, name: &str, other: &Namespace, other_name: &str) {
        let path = format!("/proc/{}/fd/{}", std::process::id(), other.0.as_raw_fd());
        self.ip(&format!("link add {name} type veth peer name {other_name} netns {path}"));
        self.ip(&format!("link set {name} up"));
        other.ip(&format!("link set {other_name} up"));
    }
}
