//! Tests ten thousand simultaneous connections of the kernel.

use crate::exchange::Plan;
use crate::program;
use crate::site::{Kind, OURS, PORT, Site};
use crate::sockets::{KernelSockets, OurSockets};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use testkit::raise_descriptor_limit;

const CONNECTIONS: usize = 10_000;
/// Descriptors of the process in addition to those.
const SPARE: u64 = 1000;

#[test]
fn ten_thousand_connections_are_served_at_once() {
    raise_descriptor_limit(CONNECTIONS as u64 + SPARE);
    let site = Site::new(Kind::Native);
    // The kernel's neighbour table and its own limits are not under test here.
    let mut config = site.config();
    // A connection that begins with a cookie is lost with its client's acknowledgement, which an
    // engine that waits for its CPU may lose. A half-open connection is not.
    config.tcp.max_half_open = CONNECTIONS as u32;
    let mtcp = site.start(config);
    let plans: Vec<Plan> =
        (0..CONNECTIONS as u64).map(|seed| Plan::both(2000 + seed % 3000, seed)).collect();
    let (outcome, counters) = site.while_we_serve(&mtcp, |watch| {
        let to = SocketAddr::new(OURS[0], PORT);
        let asked = site.theirs.run(|| {
            let mut sockets = KernelSockets::new();
            crate::program::crowd(&mut sockets, to, &plans, || {
                // All are connected before the first one sends.
                watch
                    .await_counters(|counters| counters.connections_accepted == CONNECTIONS as u64);
            })
        });
        asked.expect(CONNECTIONS, "the kernel's clients");
        assert_eq!(asked.most, CONNECTIONS);
    });
    outcome.expect(CONNECTIONS, "our server");
    assert_eq!(outcome.most, CONNECTIONS, "at once");
    assert_eq!(counters.connections_accepted, CONNECTIONS as u64);
    assert_eq!(counters.connections_reset, 0);
}

/// Clients that ask for a mebibyte and never read it, in 64 MiB of buffers for all: those who read
/// are served, and the memory stays below its limit.
#[test]
fn ten_thousand_who_never_read_leave_service_to_others() {
    const LIMIT_BYTES: usize = 64 << 20;
    const ANSWER_BYTES: u64 = 1 << 20;
    raise_descriptor_limit(CONNECTIONS as u64 + SPARE);
    let site = Site::new(Kind::Native);
    let mut config = site.config();
    config.tcp.max_half_open = CONNECTIONS as u32;
    config.tcp.max_buffer_bytes = LIMIT_BYTES;
    let mtcp = site.start(config);
    let (stop, to) = (AtomicBool::new(false), SocketAddr::new(OURS[0], PORT));
    thread::scope(|scope| {
        let (ready, is_ready) = mpsc::channel();
        let stop = &stop;
        let serving = scope.spawn(move || {
            let mut sockets = OurSockets::new(mtcp.context(0).expect("it is free"));
            // Those who are reset are failures to the server.
            program::server(&mut sockets, &[to], stop, |_| {
                let _ = ready.send(());
            });
            sockets.context.counters()
        });
        is_ready.recv().expect("the server serves");
        let silent: Vec<TcpStream> = (0..CONNECTIONS as u64)
            .map(|seed| {
                let plan = Plan { up_bytes: 0, down_bytes: ANSWER_BYTES, seed };
                let mut stream = site.theirs.run(|| TcpStream::connect(to)).expect("we answer");
                // The kernel's memory is not under test here.
                set_socket_recv_buffer_size(&stream, 4096).expect("it is set");
                stream.write_all(&plan.header()).expect("it is sent");
                stream
            })
            .collect();
        let plans: Vec<Plan> = (0..20).map(|seed| Plan::both(100_000, seed)).collect();
        let asked = site.kernel_asks(0, &plans, 2);
        asked.expect(plans.len(), "those who read");
        stop.store(true, Relaxed);
        drop(silent);
        let counters = serving.join().expect("the server");
        assert!(counters.reset_for_memory < CONNECTIONS as u64, "{counters:?}");
    });
}
