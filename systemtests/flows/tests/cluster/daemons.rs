//! Tests with complete daemons on different hosts: a process of one host connects to a name of the
//! other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use fable::protocol::{
    Access, Answer, FlowEntry, FlowId, NameEntry, Operation, Role, ToDaemon, ToProcess, Trust,
};

use super::connections::do_fit;
use super::etcd::Etcd;
use super::hosts::{LEASE_S, SHORT_LEASE_S};
use super::network::Network;
use super::programs::{TRUSTING, start_daemon};
use systemtests_flows::{Daemon, Process, QUICK_POLICY, TIME_LIMIT, within};

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

/// Requests a flow to a name of the other host: returns its number, the address and ticket to
/// connect with, and whether it must be protected.
fn elsewhere(client: &mut Process) -> (FlowId, SocketAddr, String, bool) {
    let request = client.next_request();
    let name = "fable://kv".parse().unwrap();
    let (trust, transport, owner) = (Trust::Untrusted, None, None);
    client.say(&ToDaemon::Connect { request, name, trust, transport, owner });
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

/// Returns what the server gets for a new flow, with its end of the connection.
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

/// Makes a server on host a, a client on host b, and a flow between them.
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
    accepted.set_read_timeout(Some(TIME_LIMIT)).unwrap();
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
    // Transports in shared memory do not reach another host.
    let pipe = Operation::Move { flow, transport: "mempipe-futex".to_owned() };
    let refused = Process::connect(&daemons[1]).operate(pipe).unwrap_err();
    assert!(refused.contains("another host"), "{refused}");
    // A demand for protection is followed at once.
    let protect = Operation::Protect { flow, protected: true };
    Process::connect(&daemons[1]).operate(protect).unwrap();
    assert!(matches!(client.hear(), ToProcess::Protect { protected: true, .. }));
    assert_eq!(client.ordered_move(flow).0, "tls");
    let mut server = server;
    let leader = keys(&mut server, flow, Role::Leader);
    let follower = keys(&mut client, flow, Role::Follower);
    assert!(do_fit(&leader, &follower));
    // The host dies, and so does the name.
    let [first, second] = daemons;
    drop((server, first));
    let mut watcher = Process::connect(&second);
    within("the name is gone", || names(&mut watcher).is_empty().then_some(()));
}

/// Asks for a flow to the service `bank`, whose other end must run as this user: the host where it
/// is, or the user to whom the service belongs.
fn connect_to_owner(client: &mut Process, owner: Option<u32>) -> Result<String, u32> {
    let (request, name) = (client.next_request(), "fable://bank".parse().unwrap());
    let (trust, transport) = (Trust::Untrusted, None);
    client.say(&ToDaemon::Connect { request, name, trust, transport, owner });
    match client.hear() {
        ToProcess::Elsewhere { peer, .. } | ToProcess::Connected { peer, .. } => Ok(peer.host),
        ToProcess::OtherOwner { owner, .. } => Err(owner),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_has_one_owner_on_all_hosts() {
    const ALICE: u32 = 1000;
    const MALLORY: u32 = 12_345;
    let Some(network) = Network::start("owners of services on two hosts", 2) else { return };
    let _etcd = Etcd::start(&network);
    let daemons = [0, 1].map(|index| start_daemon(&network, index, TRUSTING, LEASE_S));
    let mut alice = Process::connect_as(&daemons[0], ALICE, &[]);
    assert_eq!(alice.register("fable://bank"), "fable://bank/a-1");
    let mut watchers = [0, 1].map(|index| Process::connect(&daemons[index]));
    within("the name is known to the other host", || {
        names(&mut watchers[1]).into_iter().find(|entry| entry.service_owner == Some(ALICE))
    });
    let mut mallory = Process::connect_as(&daemons[1], MALLORY, &[]);
    let refused = mallory.try_register("fable://bank", Access::default()).unwrap_err();
    assert!(refused.contains("user 1000") && refused.contains("on another host"), "{refused}");
    // The operator of one host gives the name to somebody else.
    daemons[1].reload(&format!("{TRUSTING}owner = {{ bank = {MALLORY} }}\n{QUICK_POLICY}"));
    within("the policy is read again", || {
        mallory.try_register("fable://bank", Access::default()).ok()
    });
    within("the name is known to the other host", || {
        (names(&mut watchers[0]).len() == 2).then_some(())
    });
    // That has no effect on other hosts, not even for a client that requires that user.
    let [a, b] = &mut watchers;
    assert_eq!(connect_to_owner(a, None), Ok("a".to_owned()));
    assert_eq!(connect_to_owner(a, Some(MALLORY)), Err(ALICE));
    for _ in 0..4 {
        assert_eq!(connect_to_owner(b, None), Ok("b".to_owned()));
    }
    assert_eq!(connect_to_owner(b, Some(ALICE)), Err(MALLORY));
    // Without its instance on this host, the other host's is not used in its place.
    drop(mallory);
    within("the name is gone", || (names(b).len() == 1).then_some(()));
    let request = b.next_request();
    let (name, trust) = ("fable://bank".parse().unwrap(), Trust::Untrusted);
    b.say(&ToDaemon::Connect { request, name, trust, transport: None, owner: None });
    match b.hear() {
        ToProcess::Refused { reason, .. } => {
            assert!(
                reason.contains("user 1000") && reason.contains("the policy gives"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
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
