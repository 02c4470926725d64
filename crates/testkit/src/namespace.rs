//! Creates network namespaces without a name; they and their devices are removed with the last
//! descriptor.

use crate::shell;
use crate::wait::within;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;
use sys::netlink::Request;

/// Time-out of changes that the kernel makes asynchronously.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A network namespace in which the loopback device is up.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Default for Namespace {
    fn default() -> Namespace {
        Namespace::new()
    }
}

impl Namespace {
    /// Creates a namespace.
    pub fn new() -> Namespace {
        let make = || {
            sys::namespace::leave().expect("a network namespace needs CAP_SYS_ADMIN: run as root");
            let mut up = Request::new(libc::RTM_NEWLINK, libc::NLM_F_ACK);
            up.interface(libc::IFF_UP);
            up.text(libc::IFLA_IFNAME, "lo");
            up.carry_out().expect("the loopback device");
            Namespace(sys::namespace::current().expect("/proc is mounted"))
        };
        // A thread that leaves its namespace cannot return, so a separate one does it.
        thread::spawn(make).join().expect("a namespace is made")
    }

    /// Runs a function on a thread in the namespace, and returns its result. The sockets and
    /// devices that it opens stay in the namespace wherever they are used.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            sys::namespace::enter(&self.0)
                .expect("entering a network namespace needs CAP_SYS_ADMIN: run as root");
            work()
        };
        thread::scope(|scope| {
            let outcome = scope.spawn(enter).join();
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The path for setns(2) in other processes.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs ip(8) with these words in the namespace; returns its output.
    pub fn ip(&self, words: &str) -> String {
        let place = self.path();
        let (succeeded, printed) = shell::run(&format!("nsenter --net={place} ip {words}"));
        assert!(succeeded, "ip {words}: {printed}; it is of iproute2: cargo xtask setup");
        printed
    }

    /// Waits until an interface that is up transmits: the kernel attaches its queue a moment later,
    /// and silently drops frames before that.
    pub fn await_queue(&self, name: &str) {
        within(TIME_LIMIT, &format!("a queue of {name}"), || {
            (!self.ip(&format!("link show {name}")).contains("qdisc noop ")).then_some(())
        });
    }

    /// Adds an IPv6 address to an interface. If the interface is up, waits until the kernel answers
    /// for the address, which it does a moment later.
    pub fn add_v6(&self, address: &str, length: u8, interface: &str) {
        self.ip(&format!("addr add {address}/{length} dev {interface} nodad"));
        within(TIME_LIMIT, &format!("{address} on {interface}"), || {
            let answers = !self.ip(&format!("-6 route show table local {address}")).is_empty();
            let is_up = || self.ip(&format!("link show {interface}")).contains("LOWER_UP");
            (answers || !is_up()).then_some(())
        });
    }

    /// Sets a kernel parameter of the namespace, named by its path below /proc/sys/net.
    pub fn set(&self, parameter: &str, value: &str) {
        let path = format!("/proc/sys/net/{parameter}");
        self.run(|| std::fs::write(&path, value)).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Connects this namespace with another one, or itself, by a veth pair, whose ends are up.
    pub fn join(&self, name: &str, other: &Namespace, other_name: &str) {
        self.join_with(name, other, other_name, "");
    }

    /// Like [`Namespace::join`], with further words of `ip link add` for each end.
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
