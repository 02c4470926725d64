//! Provides a stack of ours beside a kernel: two network namespaces connected by a veth, or one
//! with a TAP device.

use crate::exchange::Plan;
use crate::program::{self, Outcome};
use crate::sockets::{KernelSockets, OurSockets};
use mtcp::config::{DeviceConfig, DeviceKind, Ownership, XdpMode};
use mtcp::{Config, Mtcp};
use mtcp_proto::Counters;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use testkit::Namespace;

/// Time-out of tests; far longer than any step needs.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Our addresses, and those of the kernel on the other side.
pub(crate) const OURS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2)),
];
pub(crate) const THEIRS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1)),
];
pub(crate) const PORT: u16 = 7000;
pub(crate) const OUR_INTERFACE: &str = "ours";
pub(crate) const THEIR_INTERFACE: &str = "theirs";

/// The connection between the stack and the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// AF_XDP in its automatic mode; only the stack has the addresses.
    Xdp,
    /// AF_XDP in the driver.
    Native,
    /// AF_XDP after the driver.
    Generic,
    /// AF_XDP in the driver, and our kernel has the addresses too.
    Shared,
    /// AF_PACKET, with checksums and segmentation offloaded to the kernel.
    Packet,
    /// AF_PACKET without offloads.
    PlainPacket,
    /// TAP, with checksums and segmentation offloaded to the kernel.
    Tap,
    /// TAP without offloads.
    PlainTap,
}

pub(crate) const KINDS: [Kind; 7] = [
    Kind::Native,
    Kind::Generic,
    Kind::Shared,
    Kind::Packet,
    Kind::PlainPacket,
    Kind::Tap,
    Kind::PlainTap,
];

/// The namespaces and their connection.
pub(crate) struct Site {
    pub(crate) kind: Kind,
    mtu: u16,
    pub(crate) ours: Namespace,
    pub(crate) theirs: Namespace,
}

impl Site {
    pub(crate) fn new(kind: Kind) -> Site {
        Site::with_mtu(kind, 1500)
    }

    /// A site whose network has this MTU. Below 1,280 it has no IPv6.
    pub(crate) fn with_mtu(kind: Kind, mtu: u16) -> Site {
        Site::with(kind, mtu, "")
    }

    /// A site with an interface for this number of cores.
    pub(crate) fn with_queues(kind: Kind, queues: u16) -> Site {
        Site::with(kind, 1500, &format!("numrxqueues {queues} numtxqueues {queues}"))
    }

    fn with(kind: Kind, mtu: u16, words: &str) -> Site {
        let (ours, theirs) = (Namespace::new(), Namespace::new());
        // The only algorithm that a namespace may always choose; sockets choose others.
        theirs.set("ipv4/tcp_congestion_control", "reno");
        // No other host can have the same addresses.
        for side in [&ours, &theirs] {
            side.set("ipv6/conf/default/accept_dad", "0");
        }
        let site = Site { kind, mtu, ours, theirs };
        if !site.is_tap() {
            if words.is_empty() {
                site.ours.join(OUR_INTERFACE, &site.theirs, THEIR_INTERFACE);
            } else {
                site.ours.join_with(OUR_INTERFACE, &site.theirs, THEIR_INTERFACE, words);
            }
            site.ours.ip(&format!("link set {OUR_INTERFACE} mtu {mtu}"));
            site.theirs.ip(&format!("link set {THEIR_INTERFACE} mtu {mtu}"));
            address(&site.theirs, THEIR_INTERFACE, THEIRS, mtu);
        }
        if kind == Kind::Shared {
            address(&site.ours, OUR_INTERFACE, OURS, mtu);
        }
        site
    }

    fn is_tap(&self) -> bool {
        matches!(self.kind, Kind::Tap | Kind::PlainTap)
    }

    /// The settings of our stack.
    pub(crate) fn config(&self) -> Config {
        let (kind, mode) = match self.kind {
            Kind::Xdp => (DeviceKind::Xdp, XdpMode::Auto),
            Kind::Native | Kind::Shared => (DeviceKind::Xdp, XdpMode::Native),
            Kind::Generic => (DeviceKind::Xdp, XdpMode::Generic),
            Kind::Packet | Kind::PlainPacket => (DeviceKind::Packet, XdpMode::Auto),
            Kind::Tap | Kind::PlainTap => (DeviceKind::Tap, XdpMode::Auto),
        };
        let interface = if self.is_tap() { THEIR_INTERFACE } else { OUR_INTERFACE };
        let offload = !matches!(self.kind, Kind::PlainTap | Kind::PlainPacket);
        let shared = self.kind == Kind::Shared;
        Config {
            device: DeviceConfig {
                kind,
                interface: interface.to_owned(),
                mode,
                offload,
                ..DeviceConfig::default()
            },
            addresses: vec![(OURS[0], 24), (OURS[1], 64)],
            ownership: if shared { Ownership::Shared } else { Ownership::Own },
            grace: Duration::from_secs(2),
            ..Config::default()
        }
    }

    pub(crate) fn start(&self, config: Config) -> Mtcp {
        let start = || once_free(|| Mtcp::start(config.clone()));
        let mtcp = self.home().run(start).expect("the stack starts");
        self.prepare_tap();
        mtcp
    }

    /// The namespace in which our stack starts.
    pub(crate) fn home(&self) -> &Namespace {
        if self.is_tap() { &self.theirs } else { &self.ours }
    }

    /// Gives a TAP device, which the start of our stack has created, the kernel's addresses.
    pub(crate) fn prepare_tap(&self) {
        if self.is_tap() {
            address(&self.theirs, THEIR_INTERFACE, THEIRS, self.mtu);
            self.theirs.await_queue(THEIR_INTERFACE);
        }
    }

    /// Runs `work` while a server of ours serves; returns the server's result.
    pub(crate) fn while_we_serve(
        &self,
        mtcp: &Mtcp,
        work: impl FnOnce(&Watch),
    ) -> (Outcome, Counters) {
        let (stop, watch) = (AtomicBool::new(false), Watch::default());
        let at: Vec<SocketAddr> = OURS.iter().map(|ip| SocketAddr::new(*ip, PORT)).collect();
        thread::scope(|scope| {
            let (ready, is_ready) = mpsc::sync_channel(1);
            let (watch, stop, at) = (&watch, &stop, &at);
            let server = scope.spawn(move || {
                let mut sockets = OurSockets::new(mtcp.context(0).expect("the context is free"));
                let outcome = program::server(&mut sockets, at, stop, |sockets| {
                    watch.publish(sockets);
                    let _ = ready.try_send(());
                });
                (outcome, sockets.context.counters())
            });
            let guard = StopGuard(stop);
            is_ready.recv().expect("the server serves");
            work(watch);
            drop(guard);
            server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs the kernel as the client of a server of ours.
    pub(crate) fn kernel_asks(&self, family: usize, plans: &[Plan], at_once: usize) -> Outcome {
        let mut sockets = self.theirs.run(KernelSockets::new);
        self.kernel_asks_with(&mut sockets, family, plans, at_once)
    }

    /// Like [`Site::kernel_asks`], with other sockets of the kernel.
    pub(crate) fn kernel_asks_with(
        &self,
        sockets: &mut KernelSockets,
        family: usize,
        plans: &[Plan],
        at_once: usize,
    ) -> Outcome {
        let to = SocketAddr::new(OURS[family], PORT);
        self.theirs.run(|| program::client(sockets, to, plans, at_once))
    }

    /// Runs the kernel as the server of a client of ours; returns the results of both.
    pub(crate) fn kernel_answers(
        &self,
        sockets: &mut OurSockets,
        family: usize,
        plans: &[Plan],
        at_once: usize,
    ) -> (Outcome, Outcome) {
        let to = SocketAddr::new(THEIRS[family], PORT);
        let work = || program::client(sockets, to, plans, at_once);
        self.while_kernel_serves(KernelSockets::new, to, work)
    }

    /// Runs `work` while a server of the kernel serves; returns its result and the server's.
    pub(crate) fn while_kernel_serves<T>(
        &self,
        sockets: impl FnOnce() -> KernelSockets + Send,
        at: SocketAddr,
        work: impl FnOnce() -> T,
    ) -> (T, Outcome) {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let (ready, is_ready) = mpsc::sync_channel(1);
            let stop = &stop;
            let server = scope.spawn(move || {
                self.theirs.run(move || {
                    program::server(&mut sockets(), &[at], stop, |_| {
                        let _ = ready.try_send(());
                    })
                })
            });
            let guard = StopGuard(stop);
            is_ready.recv().expect("the server serves");
            let done = work();
            drop(guard);
            (done, server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

/// The counters of a server of ours, for other threads.
#[derive(Default)]
pub(crate) struct Watch(Mutex<Counters>);

impl Watch {
    fn publish(&self, sockets: &mut OurSockets) {
        *self.0.lock().expect("nobody panics with it") = sockets.context.counters();
    }

    pub(crate) fn counters(&self) -> Counters {
        self.0.lock().expect("nobody panics with it").clone()
    }

    /// Waits until the server's counters are as expected.
    pub(crate) fn await_counters(&self, mut are_right: impl FnMut(&Counters) -> bool) {
        let begin = Instant::now();
        while !are_right(&self.counters()) {
            assert!(begin.elapsed() < TIME_LIMIT, "it never comes: {:#?}", self.counters());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Repeats an attempt to use a port or a device that may still be in use: one that was closed here
/// stays open in a child that another test has just forked, until the child executes its program.
pub(crate) fn once_free<T, E: Error + 'static>(
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_taken(&error) && begin.elapsed() < TIME_LIMIT => {
                thread::sleep(Duration::from_millis(2));
            }
            done => return done,
        }
    }
}

fn is_taken(error: &(dyn Error + 'static)) -> bool {
    let system: Option<&io::Error> = error.downcast_ref();
    let kind = system.map(io::Error::kind);
    matches!(kind, Some(ErrorKind::AddrInUse | ErrorKind::ResourceBusy))
        || error.source().is_some_and(is_taken)
}

/// Stops a server also when the test panics.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn address(namespace: &Namespace, interface: &str, addresses: [IpAddr; 2], mtu: u16) {
    namespace.ip(&format!("address add {}/24 dev {interface}", addresses[0]));
    if mtu >= 1280 {
        namespace.add_v6(&addresses[1].to_string(), 64, interface);
        // The kernel sends requests from its link-local address, which also appears a moment later.
        let begin = Instant::now();
        while !namespace.ip("-6 route show table local").contains("local fe80::") {
            assert!(begin.elapsed() < TIME_LIMIT, "{interface} gets no IPv6");
            thread::sleep(Duration::from_millis(2));
        }
    }
}
