//! A stack of ours beside a kernel: two network namespaces with a cable between them, or one with a
//! TAP device.

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

/// How long anything may take before a test is given up; far more than it needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Our addresses, and the kernel's on the other side.
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

/// How the stack is joined to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// AF_XDP wherever it goes by itself; the addresses are ours alone.
    Xdp,
    /// AF_XDP in the driver.
    Native,
    /// AF_XDP behind the driver.
    Generic,
    /// AF_XDP in the driver, and our kernel has the addresses as well.
    Shared,
    /// AF_PACKET, with checksums and segmentation left to the kernel.
    Packet,
    /// AF_PACKET without.
    PlainPacket,
    /// TAP, with checksums and segmentation left to the kernel.
    Tap,
    /// TAP without.
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

/// The namespaces and what joins them.
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

    /// A cable for packets of so many bytes. Below 1,280 it has no IPv6.
    pub(crate) fn with_mtu(kind: Kind, mtu: u16) -> Site {
        Site::with(kind, mtu, "")
    }

    /// With an interface for so many cores.
    pub(crate) fn with_queues(kind: Kind, queues: u16) -> Site {
        Site::with(kind, 1500, &format!("numrxqueues {queues} numtxqueues {queues}"))
    }

    fn with(kind: Kind, mtu: u16, words: &str) -> Site {
        let (ours, theirs) = (Namespace::new(), Namespace::new());
        // The only one that a namespace may always choose; sockets choose others.
        theirs.set("ipv4/tcp_congestion_control", "reno");
        // Nobody else is there to have the same addresses.
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

    /// Where our stack is started.
    pub(crate) fn home(&self) -> &Namespace {
        if self.is_tap() { &self.theirs } else { &self.ours }
    }

    /// Gives a TAP device, which the start of our stack has made, the kernel's addresses.
    pub(crate) fn prepare_tap(&self) {
        if self.is_tap() {
            address(&self.theirs, THEIR_INTERFACE, THEIRS, self.mtu);
            self.theirs.await_queue(THEIR_INTERFACE);
        }
    }

    /// Runs something while a server of ours serves; gives what the server has done.
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

    /// The kernel as the client of a server of ours.
    pub(crate) fn kernel_asks(&self, family: usize, plans: &[Plan], at_once: usize) -> Outcome {
        let mut sockets = self.theirs.run(KernelSockets::new);
        self.kernel_asks_with(&mut sockets, family, plans, at_once)
    }

    /// As [`Site::kernel_asks`], with sockets of one's own.
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

    /// The kernel as the server of a client of ours; what both have done.
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

    /// Does something while a server of the kernel's serves; gives what came of it, and what the
    /// server has done.
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

/// What may be seen of a server of ours from outside.
#[derive(Default)]
pub(crate) struct Watch(Mutex<Counters>);

impl Watch {
    fn publish(&self, sockets: &mut OurSockets) {
        *self.0.lock().expect("nobody panics with it") = sockets.context.counters();
    }

    pub(crate) fn counters(&self) -> Counters {
        self.0.lock().expect("nobody panics with it").clone()
    }

    /// Waits until the server's counters are as they should be.
    pub(crate) fn await_counters(&self, mut are_right: impl FnMut(&Counters) -> bool) {
        let begin = Instant::now();
        while !are_right(&self.counters()) {
            assert!(begin.elapsed() < PATIENCE, "it never comes: {:#?}", self.counters());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Repeats an attempt at what may still be taken: a port or a device that was closed here stays
/// open in what another test is just spawning, until that executes its program.
pub(crate) fn once_free<T, E: Error + 'static>(
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_taken(&error) && begin.elapsed() < PATIENCE => {
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

/// Stops a server also when whoever needs it panics.
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
        // The kernel asks from its link-local one, which comes a moment later, too.
        let begin = Instant::now();
        while !namespace.ip("-6 route show table local").contains("local fe80::") {
            assert!(begin.elapsed() < PATIENCE, "{interface} gets no IPv6");
            thread::sleep(Duration::from_millis(2));
        }
    }
}
