//! Ten thousand connections of the kernel at once.

use crate::exchange::Plan;
use crate::site::{Kind, OURS, PORT, Site};
use crate::sockets::KernelSockets;
use std::net::SocketAddr;
use testkit::raise_descriptor_limit;

const CONNECTIONS: usize = 10_000;
/// Descriptors of the process besides those.
const SPARE: u64 = 1000;

#[test]
fn ten_thousand_connections_are_served_at_once() {
    raise_descriptor_limit(CONNECTIONS as u64 + SPARE);
    let site = Site::new(Kind::Native);
    // The kernel's table of neighbours and its own limits are no subject here.
    let mut config = site.config();
    // A connection that begins with a cookie is gone with its client's acknowledgement, which an
    // engine that waits for its CPU may lose; one that is remembered is not.
    config.tcp.max_half_open = CONNECTIONS as u32;
    let mtcp = site.start(config);
    let plans: Vec<Plan> =
        (0..CONNECTIONS as u64).map(|seed| Plan::both(2000 + seed % 3000, seed)).collect();
    let (outcome, counters) = site.while_we_serve(&mtcp, |watch| {
        let to = SocketAddr::new(OURS[0], PORT);
        let asked = site.theirs.run(|| {
            let mut sockets = KernelSockets::new();
            crate::program::crowd(&mut sockets, to, &plans, || {
                // All are there before the first one says anything.
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
