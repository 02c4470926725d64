//! Tests many connections at once with the least memory that the settings allow: all make progress.

use crate::exchange::Plan;
use crate::program;
use crate::site::{Kind, OURS, PORT, Site};
use crate::sockets::OurSockets;
use mtcp::Config;
use mtcp::config::Mode;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 100;
/// Bytes of each connection in each direction: together 20 times the available memory.
const BYTES: u64 = 100_000;
/// The time without data after which none is expected.
const QUIET: Duration = Duration::from_millis(100);

fn tight(site: &Site, mode: Mode) -> Config {
    let mut config = site.config();
    config.engine.mode = mode;
    config.tcp.max_buffer_bytes = 1 << 20;
    config
}

fn plans() -> Vec<Plan> {
    (0..CONNECTIONS as u64).map(|seed| Plan::both(BYTES, seed)).collect()
}

#[test]
fn many_connections_get_on_with_the_least_memory() {
    for (kind, mode) in
        [(Kind::Xdp, Mode::Complete), (Kind::Tap, Mode::Complete), (Kind::Tap, Mode::Paired)]
    {
        let site = Site::new(kind);
        let mtcp = site.start(tight(&site, mode));
        let plans = plans();
        let (outcome, _) = site.while_we_serve(&mtcp, |_| {
            let asked = site.kernel_asks(0, &plans, CONNECTIONS);
            asked.expect(CONNECTIONS, &format!("{kind:?}, {mode:?}: the kernel asks"));
        });
        outcome.expect(CONNECTIONS, &format!("{kind:?}, {mode:?}: our server"));
    }
}

#[test]
fn a_client_with_the_least_memory_gets_on() {
    for (kind, mode) in [(Kind::Xdp, Mode::Complete), (Kind::Tap, Mode::Paired)] {
        let site = Site::new(kind);
        let mtcp = site.start(tight(&site, mode));
        let plans = plans();
        let mut sockets = OurSockets::new(mtcp.context(0).expect("it is free"));
        let (ours, theirs) = site.kernel_answers(&mut sockets, 1, &plans, CONNECTIONS);
        ours.expect(CONNECTIONS, &format!("{kind:?}, {mode:?}: we ask"));
        theirs.expect(CONNECTIONS, "the kernel's server");
    }
}

/// Peers that do not read must not take all memory from others.
#[test]
fn peers_that_do_not_read_leave_memory_to_others() {
    const SILENT: u64 = 20;
    for (kind, mode) in [(Kind::Tap, Mode::Complete), (Kind::Tap, Mode::Paired)] {
        let site = Site::new(kind);
        let mtcp = site.start(tight(&site, mode));
        let (stop, to) = (AtomicBool::new(false), SocketAddr::new(OURS[0], PORT));
        thread::scope(|scope| {
            let (ready, is_ready) = mpsc::channel();
            let stop = &stop;
            scope.spawn(move || {
                let mut sockets = OurSockets::new(mtcp.context(0).expect("it is free"));
                // The silent connections end by a reset, which the server counts as a failure.
                program::server(&mut sockets, &[to], stop, |_| {
                    let _ = ready.send(());
                });
            });
            is_ready.recv().expect("the server serves");
            let silent: Vec<TcpStream> = (0..SILENT)
                .map(|seed| {
                    let plan = Plan { up_bytes: 0, down_bytes: 64 << 20, seed };
                    let mut stream = site.theirs.run(|| TcpStream::connect(to)).expect("we answer");
                    stream.write_all(&plan.header()).expect("it is sent");
                    stream
                })
                .collect();
            // When no more data arrives, the windows are full and the other available memory is in
            // use.
            silent.iter().for_each(await_full);
            let plans = [Plan::both(BYTES, 7), Plan::both(BYTES, 8)];
            let asked = site.kernel_asks(0, &plans, 2);
            stop.store(true, Relaxed);
            drop(silent);
            asked.expect(2, &format!("{mode:?}: those who read"));
        });
    }
}

/// Waits until the kernel's receive buffer is full.
fn await_full(stream: &TcpStream) {
    let queued = || {
        let mut bytes = 0;
        // SAFETY: FIONREAD writes an integer, to which the pointer is valid.
        let outcome = unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
        assert_eq!(outcome, 0, "FIONREAD");
        bytes
    };
    let (mut before, mut since) = (queued(), Instant::now());
    while since.elapsed() < QUIET {
        thread::sleep(Duration::from_millis(5));
        let now = queued();
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
}
