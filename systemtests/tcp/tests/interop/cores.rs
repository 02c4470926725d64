//! Tests two cores and the kernel: packets arrive at the core of their queue, and connections
//! belong to the core that owns them, in both roles.

use crate::exchange::Plan;
use crate::program::{self, Outcome};
use crate::site::{Kind, OURS, PORT, Site, THEIRS};
use crate::sockets::{KernelSockets, OurSockets, Sockets};
use mtcp::config::{Mode, StatConfig};
use mtcp::{Mtcp, stat};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const CORES: u16 = 2;
const CONNECTIONS: usize = 40;
const BYTES: u64 = 100_000;

fn plans(count: usize) -> Vec<Plan> {
    (0..count as u64).map(|seed| Plan::both(BYTES, seed)).collect()
}

/// The number of packets that cores have handed over.
fn handed_over(path: &Path) -> u64 {
    let report = stat::ask(path.to_str().expect("a path of letters"), false);
    let cores = report.expect("the stack answers").cores;
    assert_eq!(cores.len(), usize::from(CORES));
    cores.iter().map(|core| core.engine.handed_over).sum()
}

/// Stops the servers also when the test has failed, because a scope waits for its threads.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs a server on each core, each in its own thread, for the kernel's connections.
fn kernel_asks(site: &Site, mtcp: &Mtcp, path: &Path, family: usize) {
    let (stop, at) = (AtomicBool::new(false), SocketAddr::new(OURS[family], PORT));
    let served: Vec<Outcome> = thread::scope(|scope| {
        let stop_at_end = StopAtEnd(&stop);
        let (ready, is_ready) = mpsc::channel();
        let servers: Vec<_> = (0..mtcp.cores())
            .map(|core| {
                let (ready, stop) = (ready.clone(), &stop);
                scope.spawn(move || {
                    let context = mtcp.context(core).expect("it is free");
                    program::server(&mut OurSockets::new(context), &[at], stop, |_| {
                        let _ = ready.send(core);
                    })
                })
            })
            .collect();
        let mut waits: Vec<usize> = (0..mtcp.cores()).collect();
        while !waits.is_empty() {
            let core = is_ready.recv().expect("servers serve");
            waits.retain(|other| *other != core);
        }
        let asked = site.kernel_asks(family, &plans(CONNECTIONS), CONNECTIONS);
        asked.expect(CONNECTIONS, &format!("{:?}: the kernel asks", site.kind));
        let handed_over = handed_over(path);
        drop(stop_at_end);
        assert!(handed_over > 0, "{:?}: no packet came to the other core", site.kind);
        servers.into_iter().map(|server| server.join().expect("it serves")).collect()
    });
    for (core, outcome) in served.iter().enumerate() {
        outcome.expect(outcome.done, &format!("{:?}: core {core} serves", site.kind));
        assert!(outcome.done > 0, "{:?}: core {core} has no connection", site.kind);
    }
    assert_eq!(served.iter().map(|outcome| outcome.done).sum::<usize>(), CONNECTIONS);
}

/// Runs a client on each core, each in its own thread, to a server of the kernel.
fn kernel_answers(site: &Site, mtcp: &Mtcp, family: usize) {
    let to = SocketAddr::new(THEIRS[family], PORT);
    let each = CONNECTIONS / mtcp.cores();
    let busy = AtomicUsize::new(mtcp.cores());
    let (asked, answered) = site.while_kernel_serves(KernelSockets::new, to, || {
        thread::scope(|scope| {
            let clients: Vec<_> = (0..mtcp.cores())
                .map(|core| {
                    let busy = &busy;
                    scope.spawn(move || {
                        let mut sockets = OurSockets::new(mtcp.context(core).expect("it is free"));
                        let outcome = program::client(&mut sockets, to, &plans(each), each);
                        busy.fetch_sub(1, Relaxed);
                        // Packets of the other core's connections still arrive here.
                        while busy.load(Relaxed) > 0 {
                            sockets.wait(Duration::from_millis(1)).expect("to wait");
                        }
                        outcome
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().expect("it asks")).collect::<Vec<_>>()
        })
    });
    for (core, outcome) in asked.iter().enumerate() {
        outcome.expect(each, &format!("{:?}: core {core} asks", site.kind));
    }
    answered.expect(CONNECTIONS, "the kernel's server");
}

#[test]
fn connections_reach_the_core_that_owns_them() {
    let directory = tempfile::tempdir().expect("a directory");
    for kind in [Kind::Native, Kind::Shared, Kind::Packet, Kind::Tap] {
        for mode in [Mode::Complete, Mode::Paired] {
            for (family, we_ask) in [(0, false), (1, true)] {
                let site = Site::with_queues(kind, CORES);
                let path = directory.path().join(format!("{kind:?}-{mode:?}-{family}-{we_ask}"));
                let mut config = site.config();
                config.engine.cores = CORES;
                config.engine.mode = mode;
                config.stat = StatConfig { enabled: true, socket: Some(path.clone()) };
                let mtcp = site.start(config);
                if we_ask {
                    kernel_answers(&site, &mtcp, family);
                } else {
                    kernel_asks(&site, &mtcp, &path, family);
                }
            }
        }
    }
}
