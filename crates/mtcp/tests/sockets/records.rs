//! Tests which connections a context records in shared memory.

use crate::pair::{Pair, address};
use mtcp::config::Mode;
use mtcp::peer_reset::SharedConnections;
use mtcp::{Context, Descriptor, Family};
use std::net::SocketAddr;
use std::sync::Arc;

/// Records the connections of a context from now on.
fn record(context: &mut Context) -> Arc<SharedConnections> {
    let (shared, _descriptor) = SharedConnections::new().expect("memory");
    let shared = Arc::new(shared);
    context.record_connections(Arc::clone(&shared));
    shared
}

fn names(context: &mut Context, socket: Descriptor) -> (SocketAddr, SocketAddr) {
    let local = context.getsockname(socket).expect("its address");
    (local, context.getpeername(socket).expect("its peer's"))
}

fn sorted(mut names: Vec<(SocketAddr, SocketAddr)>) -> Vec<(SocketAddr, SocketAddr)> {
    names.sort();
    names
}

/// Starts to connect to the server's port 80.
fn begin(pair: &mut Pair) -> Descriptor {
    let far = pair.client.socket(Family::V4).expect("a socket");
    pair.client.set_nonblocking(far, true).expect("a socket");
    pair.client.connect(far, address(80)).expect_err("not at once");
    far
}

#[test]
fn connections_are_recorded_until_they_have_ended() {
    for mode in [Mode::Complete, Mode::Paired] {
        let mut pair = Pair::new(mode);
        let (served, made) = (record(&mut pair.server), record(&mut pair.client));
        let listener = pair.listen(80);
        let connections = [(); 3].map(|()| pair.connect(listener, 80));
        let here = connections.map(|(near, _)| names(&mut pair.server, near));
        let there = connections.map(|(_, far)| names(&mut pair.client, far));
        assert_eq!(sorted(served.connections()), sorted(here.to_vec()), "{mode:?}");
        assert_eq!(sorted(made.connections()), sorted(there.to_vec()), "{mode:?}");

        let (near, far) = connections[1];
        pair.server.close(near).expect("it is open");
        pair.client.abort(far).expect("it is open");
        let few = |shared: &SharedConnections| shared.connections().len() == 2;
        pair.until(|_| (few(&served) && few(&made)).then_some(()));
        assert_eq!(sorted(served.connections()), sorted(vec![here[0], here[2]]), "{mode:?}");
        assert_eq!(sorted(made.connections()), sorted(vec![there[0], there[2]]), "{mode:?}");
        served.mark_ended();
        assert!(served.connections().is_empty(), "{mode:?}");
    }
}

#[test]
fn connections_that_wait_to_be_accepted_are_recorded() {
    for mode in [Mode::Complete, Mode::Paired] {
        let mut pair = Pair::new(mode);
        let served = record(&mut pair.server);
        let listener = pair.listen(80);
        let far = begin(&mut pair);
        pair.until(|pair| pair.client.getpeername(far).ok());
        let (local, remote) = names(&mut pair.client, far);
        assert_eq!(served.connections(), [(remote, local)], "{mode:?}");

        // Closing the listener resets them.
        pair.server.close(listener).expect("it is open");
        pair.until(|_| served.connections().is_empty().then_some(()));
        let reset = pair.retry(|pair| pair.client.read(far, &mut [0; 8])).expect_err("a reset");
        assert_eq!(reset.raw_os_error(), Some(libc::ECONNRESET), "{mode:?}");
    }
}

#[test]
fn a_handshake_and_an_end_on_the_way_are_recorded() {
    let mut pair = Pair::new(Mode::Complete);
    let (served, made) = (record(&mut pair.server), record(&mut pair.client));
    let listener = pair.listen(80);
    let far = begin(&mut pair);
    // The peer is resolved first.
    pair.until(|_| served.connections().first().copied());
    assert_eq!(made.connections().len(), 1);
    pair.server.close(listener).expect("it is open");
    pair.until(|_| served.connections().is_empty().then_some(()));
    pair.until(|_| made.connections().is_empty().then_some(()));
    pair.client.close(far).expect("it is open");

    let listener = pair.listen(80);
    let (near, far) = pair.connect(listener, 80);
    pair.server.close(near).expect("it is open");
    pair.server.turn().expect("a device");
    assert_eq!(served.connections().len(), 1, "the peer has not acknowledged the end");
    pair.client.close(far).expect("it is open");
    pair.until(|_| {
        (served.connections().is_empty() && made.connections().is_empty()).then_some(())
    });
}
