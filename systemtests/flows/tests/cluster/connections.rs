//! Tests of the steps from a found name to a connection in the other daemon.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use fable::protocol::{FlowId, Role};
use fable::transport::TlsKeys;
use fabled::cluster_link::{Cluster, ClusterEvent};

use super::etcd::Etcd;
use super::hosts::{GUARD, Host, address, join, ticket};
use super::network::Network;

impl Host {
    /// Returns the address of this host, whose number is `index`.
    pub(crate) fn find_self(&self, index: usize) -> SocketAddr {
        address(index, self.member.listening())
    }
}

/// Presents a ticket from host number `index`, with a greeting after it.
pub(crate) fn show(network: &Network, index: usize, to: SocketAddr, ticket: &str) -> TcpStream {
    let line = format!("{ticket}\nhello");
    network.hosts[index].run(move || {
        let mut stream = TcpStream::connect(to).expect("it listens");
        stream.set_read_timeout(Some(GUARD)).expect("a time-out");
        stream.write_all(line.as_bytes()).expect("it reads");
        stream
    })
}

/// Returns whether each of these keys is what the other end expects.
pub(crate) fn do_fit(one: &TlsKeys, other: &TlsKeys) -> bool {
    let shows = |keys: &TlsKeys| TlsKeys::new([0; 32], &keys.private_key).expect("a key").peer_key;
    shows(one) == other.peer_key && shows(other) == one.peer_key
}

/// Waits until the other side has closed, and asserts that it sent nothing.
pub(crate) fn assert_refused(mut stream: TcpStream) {
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_ticket_opens_a_connection_to_its_host_and_to_no_other() {
    let Some(network) = Network::start("a ticket opens a connection", 3) else { return };
    let _etcd = Etcd::start(&network);
    let [mut a, mut b, c] = [0, 1, 2].map(|index| join(&network, index, ["a", "b", "c"][index]));
    a.publish_well("fable://kv/1");
    let found = b.found("fable://kv");
    let wanted = ticket("fable://kv/1", "b");
    let line = b.member.ticket(&wanted, &found.owner.host).unwrap();

    assert_refused(show(&network, 1, c.find_self(2), &line));

    let mut client = show(&network, 1, found.addresses[0], &line);
    let admitted =
        a.expect("it is admitted", |event| matches!(event, ClusterEvent::Connection { .. }));
    let ClusterEvent::Connection { mut stream, ticket } = admitted else { unreachable!() };
    assert_eq!(ticket, wanted);
    assert_eq!(stream.peer_addr().unwrap(), client.local_addr().unwrap());
    stream.set_nonblocking(false).unwrap();
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"hello");
    stream.write_all(b"there").unwrap();
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"there");

    assert_refused(show(&network, 1, found.addresses[0], &line));
}

#[test]
fn both_ends_get_keys_that_fit() {
    let Some(network) = Network::start("keys for both ends", 2) else { return };
    let _etcd = Etcd::start(&network);
    let mut a = join(&network, 0, "a");
    let mut b = join(&network, 1, "b");
    let flow = ticket("fable://kv/1", "b").flow;
    let leader = a.member.keys(flow, Role::Leader).unwrap();
    let follower = b.member.keys(flow, Role::Follower).unwrap();
    assert!(do_fit(&leader, &follower));
    // Both ends are on one host.
    assert_eq!(a.member.keys(flow, Role::Follower).unwrap(), follower);
    let other = b.member.keys(FlowId(1), Role::Follower).unwrap();
    assert!(!do_fit(&leader, &other));
}
