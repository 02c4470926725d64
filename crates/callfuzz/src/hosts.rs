//! Sets up the hosts of the two processes if they are not on the loopback device: network
//! namespaces without a name, which end with the fuzzer and its agents.
//!
//! The reference has a namespace for each process, joined by a veth pair. A process on the
//! user-level stack is the other end of a TAP device of its peer's namespace.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// How long the kernel may take to give an interface its queue and its addresses.
const SETUP_TIME_MAX: Duration = Duration::from_secs(20);
/// Buffers of the kernel's sockets, as large as the stack's: minimum, default and maximum bytes.
const BUFFERS: &str = "4096 1048576 1048576";
/// The interface of a host in its namespace.
pub(crate) const INTERFACE: &str = "net0";

/// Returns the addresses of host 1 or 2, with the length of their networks.
pub(crate) fn addresses(host: usize) -> [String; 2] {
    [format!("10.77.0.{host}/24"), format!("fd00:77::{host}/64")]
}

/// The network namespaces of two processes, which may be the same one.
#[derive(Debug)]
pub(crate) struct Hosts {
    namespaces: [Namespace; 2],
}

impl Hosts {
    /// Creates two namespaces that a veth pair joins.
    pub(crate) fn veth() -> io::Result<Hosts> {
        let namespaces = [Namespace::new()?, Namespace::new()?];
        let [one, other] = &namespaces;
        one.ip(&format!(
            "link add {INTERFACE} type veth peer name {INTERFACE} netns {}",
            other.path()
        ))?;
        for (index, namespace) in namespaces.iter().enumerate() {
            namespace.set_up(index + 1)?;
        }
        let hosts = Hosts { namespaces };
        hosts.await_ready()?;
        Ok(hosts)
    }

    /// Creates a namespace for both, whose kernel is the peer of the process `tested`; that process
    /// has the other end of the TAP device.
    pub(crate) fn tap(tested: usize) -> io::Result<Hosts> {
        let namespace = Namespace::new()?;
        namespace.ip(&format!("tuntap add {INTERFACE} mode tap"))?;
        namespace.set_up(2 - tested)?;
        let both = namespace.try_clone()?;
        Ok(Hosts { namespaces: [namespace, both] })
    }

    /// Waits until the interfaces send their frames: before, the kernel drops them.
    pub(crate) fn await_ready(&self) -> io::Result<()> {
        self.namespaces.iter().try_for_each(Namespace::await_ready)
    }

    /// Returns the namespace of a process.
    pub(crate) fn of(&self, process: usize) -> &Namespace {
        &self.namespaces[process]
    }
}

/// A network namespace in which the loopback device is up.
#[derive(Debug)]
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    fn new() -> io::Result<Namespace> {
        let make = || {
            // SAFETY: the argument is a plain number, and only the calling thread changes its
            // namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let error = io::Error::last_os_error();
                let text = format!(
                    "cannot make a network namespace: {error}; it needs CAP_SYS_ADMIN: run as root"
                );
                return Err(io::Error::other(text));
            }
            // The files belong to the calling thread's namespace.
            for buffers in ["tcp_rmem", "tcp_wmem"] {
                fs::write(format!("/proc/sys/net/ipv4/{buffers}"), BUFFERS)?;
            }
            Ok(Namespace(File::open("/proc/thread-self/ns/net")?.into()))
        };
        // Only a thread of its own can leave its namespace without a way back.
        let panicked =
            |_| Err(io::Error::other("the thread of a namespace panicked; report the lines above"));
        let namespace = thread::spawn(make).join().unwrap_or_else(panicked)?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    fn try_clone(&self) -> io::Result<Namespace> {
        self.0.try_clone().map(Namespace)
    }

    /// Returns the path by which other processes can enter it with setns(2).
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Makes a command run in the namespace.
    pub(crate) fn enter(&self, command: &mut Command) {
        let place: RawFd = self.0.as_raw_fd();
        let enter = move || {
            // SAFETY: the arguments are an open descriptor and a plain number.
            match unsafe { libc::setns(place, libc::CLONE_NEWNET) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes one system call.
        unsafe { command.pre_exec(enter) };
    }

    /// Sets the addresses of a host on the interface.
    fn set_up(&self, host: usize) -> io::Result<()> {
        let [four, six] = addresses(host);
        self.ip(&format!("addr add {four} dev {INTERFACE}"))?;
        self.ip(&format!("addr add {six} dev {INTERFACE} nodad"))?;
        self.ip(&format!("link set {INTERFACE} up")).map(drop)
    }

    fn await_ready(&self) -> io::Result<()> {
        let until = Instant::now() + SETUP_TIME_MAX;
        let is_ready = || {
            let has_queue = !self.ip(&format!("link show {INTERFACE}"))?.contains("qdisc noop ");
            let routes = format!("-6 route show table local dev {INTERFACE}");
            io::Result::Ok(has_queue && self.ip(&routes)?.contains("fd00:77::"))
        };
        while !is_ready()? {
            if Instant::now() > until {
                let text = format!(
                    "{INTERFACE} was not ready within {SETUP_TIME_MAX:?}; run again on an idle \
                     machine"
                );
                return Err(io::Error::other(text));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Runs ip(8) in the namespace; returns its output.
    fn ip(&self, words: &str) -> io::Result<String> {
        let mut command = Command::new("ip");
        self.enter(command.args(words.split(' ')));
        let output = command.output();
        let output = output.map_err(|error| {
            io::Error::other(format!("cannot run ip(8): {error}; install the package iproute2"))
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!(
            "`ip {words}` failed: {}; it needs CAP_NET_ADMIN: run as root",
            text.trim()
        )))
    }
}
