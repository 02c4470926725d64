//! Whole daemons on different hosts: a process of one connects to a name of the other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use fable::protocol::{
    Answer, FlowEntry, FlowId, NameEntry, Operation, Role, ToDaemon, ToProcess, Trust,
};

use super::common::{Daemon, PATIENCE, Process, within};
use super::etcd::Etcd;
use super::hosts::{LEASE_S, SHORT_LEASE_S};
use super::network::Network;
use super::programs::{TRUSTING, start_daemon};

fn names(process: &mut Process) -> Vec<NameEntry> {
    match process.operate(Operation::Names) {
        Ok(Answer::Names { names, .. }) => names,
        other => panic!("{other:?}"),
    }
}

fn flows(process: &mut Process) -> Vec<FlowEntry> {
    match process.operate(Operation::Flows) {
        Ok(Answer::Flows { flows, .. }) => flows,
        other => panic!("{other:?}"),
    }
}

/// Asks for a flow to a name of the other host: its number, where to connect with which ticket,
/// and whether it must be protected.
fn elsewhere(client: &mut Process) -> (FlowId, SocketAddr, String, bool) {
    let request = client.next_request();
    let name = "fable://kv".parse().unwrap();
    client.say(&ToDaemon::Connect { request, name, trust: Trust::Untrusted, transport: None });
    let (message, page) = client.hear_with_descriptors();
    assert_eq!(page.len(), 1);
    match message {
        ToProcess::Elsewhere { flow, name, peer, addresses, ticket, protected, .. } => {
            assert_eq!((name.to_string().as_str(), peer.host.as_str()), ("fable://kv/a-1", "a"));
            (flow, addresses[0], ticket, protected)
        }
        other => panic!("{other:?}"),
    }
}

/// What the server is told, and its end of the connection.
fn incoming(server: &Process) -> (FlowId, bool, String, TcpStream) {
    let (message, mut descriptors) = server.hear_with_descriptors();
    assert_eq!(descriptors.len(), 2);
    match message {
        ToProcess::Incoming { flow, peer, local: false, protected, transport, .. } => {
            assert_eq!((peer.host.as_str(), peer.pid), ("b", std::process::id() as i32));
            (flow, protected, transport, TcpStream::from(descriptors.remove(0)))
        }
        other => panic!("{other:?}"),
    }
}

fn keys(process: &mut Process, flow: FlowId, role: Role) -> fable::transport::TlsKeys {
    let request = process.next_request();
    process.say(&ToDaemon::GetKeys { request, flow, role });
    match process.hear() {
        ToProcess::Keys { keys, .. } => keys,
        other => panic!("{other:?}"),
    }
}

/// A server on host a, a client on host b, and a flow between them.
fn connected(network: &Network, daemons: &[Daemon; 2]) -> (Process, Process, FlowId, bool, String) {
    let (mut server, mut client) = (Process::connect(&daemons[0]), Process::connect(&daemons[1]));
    assert_eq!(server.register("fable://kv"), "fable://kv/a-1");
    within("the name is known to the other host", || {
        names(&mut client).into_iter().find(|entry| entry.epoch.is_some())
    });
    let (flow, address, ticket, must) = elsewhere(&mut client);
    let mut link = network.hosts[1].run(move || TcpStream::connect(address).unwrap());
    link.write_all(format!("{ticket}\nfirst").as_bytes()).unwrap();
    let (arrived, protected, transport, mut accepted) = incoming(&server);
    assert_eq!((arrived, protected), (flow, must));
    accepted.set_nonblocking(false).unwrap();
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 5];
    accepted.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"first", "nothing behind the ticket is lost");
    (server, client, flow, protected, transport)
}

#[test]
fn a_process_connects_to_a_name_of_another_host() {
    let Some(network) = Network::start("a process on one host, a name on another", 2) else {
        return;
    };
    let _etcd = Etcd::start(&network);
    let daemons = [0, 1].map(|index| start_daemon(&network, index, TRUSTING, SHORT_LEASE_S));
    let (server, mut client, flow, protected, transport) = connected(&network, &daemons);
    assert_eq!((protected, transport.as_str()), (false, "tcp-nodelay"));
    server.moved(flow, 1, &transport);
    client.moved(flow, 1, &transport);
    for daemon in &daemons {
        let mut watcher = Process::connect(daemon);
        let entry = within("the path stands", || {
            flows(&mut watcher).into_iter().find(|entry| entry.epoch == 1)
        });
        assert_eq!((entry.leader.host.as_str(), entry.follower.host.as_str()), ("a", "b"));
    }
    // What shares memory does not reach another host.
    let pipe = Operation::Move { flow, transport: "mempipe-spin".to_owned() };
    let refused = Process::connect(&daemons[1]).operate(pipe).unwrap_err();
    assert!(refused.contains("another host"), "{refused}");
    // Protection is followed at once.
    let protect = Operation::Protect { flow, protected: true };
    Process::connect(&daemons[1]).operate(protect).unwrap();
    assert!(matches!(client.hear(), ToProcess::Protect { protected: true, .. }));
    assert_eq!(client.ordered_move(flow).0, "tls");
    let mut server = server;
    let leader = keys(&mut server, flow, Role::Leader);
    let follower = keys(&mut client, flow, Role::Follower);
    assert_ne!(leader.authorities, follower.authorities);
    assert_ne!(leader.peer_name, follower.peer_name);
    // The host dies, and with it the name.
    let [first, second] = daemons;
    drop((server, first));
    let mut watcher = Process::connect(&second);
    within("the name is gone", || names(&mut watcher).is_empty().then_some(()));
}

#[test]
fn over_a_network_that_is_not_trusted_a_flow_is_protected() {
    let Some(network) = Network::start("a flow over a network that is not trusted", 2) else {
        return;
    };
    let _etcd = Etcd::start(&network);
    let daemons = [0, 1].map(|index| start_daemon(&network, index, "", LEASE_S));
    let (server, _client, flow, protected, transport) = connected(&network, &daemons);
    assert_eq!((protected, transport.as_str()), (true, "tls"));
    server.moved(flow, 1, "tls");
    let mut operator = Process::connect(&daemons[0]);
    within("the path stands", || flows(&mut operator).into_iter().find(|entry| entry.epoch == 1));
    let plain = Operation::Move { flow, transport: "tcp".to_owned() };
    let refused = operator.operate(plain).unwrap_err();
    assert!(refused.contains("must be protected"), "{refused}");
    let off = Operation::Protect { flow, protected: false };
    assert!(operator.operate(off).unwrap_err().contains("trusted_networks"));
}
