//! Tests of what flows between hosts survive, what names do not survive, and what strangers cannot
//! do, with complete daemons and processes that use the raw protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use fable::protocol::{
    Answer, FlowId, NameEntry, Operation, Peer, Role, ToDaemon, ToProcess, Trust,
};
use fable::transport::TlsKeys;

use super::connections::{assert_refused, do_fit, show};
use super::etcd::Etcd;
use super::hosts::{LEASE_S, SHORT_LEASE, SHORT_LEASE_S};
use super::network::Network;
use super::programs::start_daemon_by;
use systemtests_flows::{Daemon, Process, TIME_LIMIT, within};

/// The lease of daemons in tests that do not wait for the end of one.
const LONG_LEASE_S: u32 = 60;

/// Starts a daemon on one of the network's hosts.
fn start(network: &Network, index: usize, lease_s: u32, more: &[&str]) -> Daemon {
    let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
    start_daemon_by(network, index, "", lease_s, move |policy, arguments| {
        let more = more.iter().map(String::as_str);
        Daemon::with_arguments(policy, &arguments.iter().copied().chain(more).collect::<Vec<_>>())
    })
}

/// Returns a name of another host, as the operator of this host sees it.
fn known(daemon: &Daemon, wanted: &str) -> Option<NameEntry> {
    let mut operator = Process::connect(daemon);
    let Ok(Answer::Names { names, .. }) = operator.operate(Operation::Names) else {
        panic!("no names")
    };
    names.into_iter().find(|entry| entry.name.to_string() == wanted)
}

/// An end of a flow between hosts.
struct RemoteEnd {
    flow: FlowId,
    peer: Peer,
    stream: TcpStream,
}

/// Connects from host number `index` to a name of another one.
fn connect(network: &Network, index: usize, process: &mut Process, name: &str) -> RemoteEnd {
    let (request, name) = (process.next_request(), name.parse().unwrap());
    let transport = None;
    let (trust, owner) = (Trust::Untrusted, None);
    process.say(&ToDaemon::Connect { request, name, trust, transport, owner });
    match process.hear() {
        ToProcess::Elsewhere { flow, peer, addresses, ticket, protected, .. } => {
            assert!(protected, "the network between them is none that is trusted");
            RemoteEnd { flow, peer, stream: show(network, index, addresses[0], &ticket) }
        }
        other => panic!("{other:?}"),
    }
}

fn incoming(process: &Process) -> RemoteEnd {
    let (message, descriptors) = process.hear_with_descriptors();
    let ToProcess::Incoming { flow, peer, local: false, protected: true, .. } = message else {
        panic!("{message:?}")
    };
    let [stream, _page] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
    let mut stream = TcpStream::from(stream);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"hello", "what followed the ticket");
    RemoteEnd { flow, peer, stream }
}

fn keys(process: &mut Process, flow: FlowId, role: Role) -> TlsKeys {
    let request = process.next_request();
    process.say(&ToDaemon::GetKeys { request, flow, role });
    match process.hear() {
        ToProcess::Keys { keys, .. } => keys,
        other => panic!("{other:?}"),
    }
}

/// Checks that a byte gets to the other end and back.
fn assert_alive(end: &mut RemoteEnd, other: &mut RemoteEnd) {
    let mut bytes = *b"ping";
    end.stream.write_all(&bytes).unwrap();
    other.stream.read_exact(&mut bytes).unwrap();
    other.stream.write_all(&bytes).unwrap();
    end.stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"ping");
}

#[test]
fn flows_between_hosts_outlive_etcd_and_the_daemons() {
    let Some(network) = Network::start("flows between hosts", 2) else { return };
    let mut etcd = Etcd::start(&network);
    let mut a = start(&network, 0, SHORT_LEASE_S, &[]);
    let b = start(&network, 1, SHORT_LEASE_S, &[]);
    let (mut server, mut client) = (Process::connect(&a), Process::connect(&b));
    server.register("fable://kv/1");
    let entry = within("b knows the name", || known(&b, "fable://kv/1"));
    assert_eq!(entry.owner.host, "a");
    assert!(entry.epoch.is_some());

    let mut following = connect(&network, 1, &mut client, "fable://kv");
    let mut leading = incoming(&server);
    assert_eq!(leading.flow, following.flow);
    assert_eq!((leading.peer.host.as_str(), following.peer.host.as_str()), ("b", "a"));
    let leader = keys(&mut server, leading.flow, Role::Leader);
    let follower = keys(&mut client, leading.flow, Role::Follower);
    assert!(do_fit(&leader, &follower));

    // etcd is killed: the flow continues, and new flows can be made.
    etcd.kill();
    assert_alive(&mut following, &mut leading);
    let mut second = connect(&network, 1, &mut client, "fable://kv/1");
    let mut second_leading = incoming(&server);
    assert_alive(&mut second, &mut second_leading);
    etcd.start_again_without_data(&network);
    within("a has registered again", || {
        let keys = Etcd::control(&network, "get --prefix --keys-only /fable/default/names/");
        keys.contains("/fable/default/names/kv/1").then_some(())
    });

    // The lease is renewed: otherwise it would have expired by now.
    thread::sleep(SHORT_LEASE * 3 / 2);
    assert!(known(&b, "fable://kv/1").is_some());
    a.crash();
    let killed = Instant::now();
    within("the name is gone", || known(&b, "fable://kv/1").is_none().then_some(()));
    let after = killed.elapsed().as_millis();
    println!("gone {after} ms after its host, with a lease of {SHORT_LEASE:?}");
    assert_alive(&mut following, &mut leading);
    assert_alive(&mut second, &mut second_leading);
}

#[test]
fn a_daemon_that_comes_back_has_its_names_at_once() {
    let Some(network) = Network::start("a daemon that comes back", 2) else { return };
    let _etcd = Etcd::start(&network);
    let state = tempfile::tempdir().unwrap();
    let directory: PathBuf = state.path().into();
    let directory = ["--state-directory", directory.to_str().unwrap()];
    let b = start(&network, 1, LONG_LEASE_S, &[]);
    let epoch_of = |daemon: &Daemon| known(daemon, "fable://kv/1").and_then(|entry| entry.epoch);
    let key = "/fable/default/names/kv/1";
    let mut before = None;
    for round in 0..3 {
        let mut a = start(&network, 0, LONG_LEASE_S, &directory);
        let mut server = Process::connect(&a);
        server.register("fable://kv/1");
        // The daemon succeeds its predecessor, whose lease has not ended.
        let is_later = |next: &i64| before.is_none_or(|(epoch, _)| *next > epoch);
        let epoch = within("a later epoch", || epoch_of(&b).filter(is_later));
        if let Some((_, lease)) = before {
            Etcd::revoke(&network, lease);
            // This name was published later: a host that knows it also knows what ended with the
            // lease.
            let behind = format!("fable://behind/{round}");
            server.register(&behind);
            within("what came behind is known", || known(&b, &behind));
            assert_eq!(epoch_of(&b), Some(epoch), "the end of the first lease took it along");
        }
        before = Some((epoch, Etcd::lease_of(&network, key)));
        a.crash();
    }
}

#[test]
fn a_stranger_without_a_ticket_gets_nowhere() {
    let Some(network) = Network::start("a stranger without a ticket", 2) else { return };
    let _etcd = Etcd::start(&network);
    let a = start(&network, 0, LEASE_S, &[]);
    let b = start(&network, 1, LEASE_S, &[]);
    let (mut server, mut client) = (Process::connect(&a), Process::connect(&b));
    server.register("fable://kv/1");
    within("b knows the name", || known(&b, "fable://kv/1"));
    let (request, name) = (client.next_request(), "fable://kv/1".parse().unwrap());
    let (trust, transport, owner) = (Trust::Untrusted, None, None);
    client.say(&ToDaemon::Connect { request, name, trust, transport, owner });
    let ToProcess::Elsewhere { addresses, ticket, .. } = client.hear() else { panic!("not there") };
    let forged = ticket.replace("\\\"uid\\\":0", "\\\"uid\\\":7");
    assert_ne!(forged, ticket);
    for line in [forged.as_str(), "{}", ""] {
        assert_refused(show(&network, 1, addresses[0], line));
    }
    within("the log says so", || a.log().contains("its signature is wrong").then_some(()));
    // The genuine ticket is still valid, and the server gets its connection.
    show(&network, 1, addresses[0], &ticket);
    assert_eq!(incoming(&server).peer.uid, 0);
}
