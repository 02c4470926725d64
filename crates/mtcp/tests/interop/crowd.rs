//! Ten thousand connections of the kernel at once.

use crate::exchange::Plan;
use crate::site::{Kind, OURS, PORT, Site};
use crate::sockets::KernelSockets;
use std::net::SocketAddr;

const CONNECTIONS: usize = 10_000;
/// Descriptors of the process besides those.
const SPARE: u64 = 1000;

/// Lets the process have as many descriptors as the test needs.
fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for one limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let wanted = CONNECTIONS as u64 + SPARE;
    if limit.rlim_cur < wanted {
        limit.rlim_cur = wanted;
        limit.rlim_max = limit.rlim_max.max(wanted);
        // SAFETY: an initialised limit.
        let outcome = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(outcome, 0, "raise `ulimit -n` to {wanted}");
    }
}

#[test]
fn ten_thousand_connections_are_served_at_once() {
    raise_limit();
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
