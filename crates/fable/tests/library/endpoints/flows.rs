//! Tests of flows that a daemon connects: opened, accepted, moved, announced, and refused.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use fable::protocol::{ToDaemon, ToProcess};
use fable::{Endpoint, Error, Flow, FlowEvent, FlowId, Kind, Listener, Name, Role, Trust, packet};

use crate::endpoints::rig::{Deed, GUARD, TestDaemon, eventually, somebody};

fn send(flow: &Flow, bytes: &[u8]) {
    let mut buffer = flow.write(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer.commit().unwrap();
}

/// Sends a message in each direction.
fn check(client: &Flow, server: &Flow) {
    for (from, to) in [(client, server), (server, client)] {
        send(from, b"hello");
        assert_eq!(&to.read_timeout(GUARD).unwrap().unwrap()[..], b"hello");
    }
}

fn kv(daemon: &TestDaemon) -> (Endpoint, Listener) {
    let kv = daemon.options().register("fable://kv").unwrap();
    let listener = kv.listen().unwrap();
    (kv, listener)
}

/// Returns an `Incoming` message of a peer that does not exist.
fn incoming(flow: u64) -> ToProcess {
    ToProcess::Incoming {
        flow: FlowId(flow),
        name: "fable://kv".parse().unwrap(),
        peer: somebody(),
        trust: Trust::Untrusted,
        local: true,
        protected: false,
        transport: "mempipe-futex-safe".into(),
        reason: "a test".into(),
    }
}

#[test]
fn a_flow_is_opened_used_and_reported() {
    let daemon = TestDaemon::start();
    let (_kv, listener) = kv(&daemon);
    let client = daemon.options().anonymous().connect("fable://kv").unwrap();
    let server = listener.accept_timeout(GUARD).unwrap();
    assert_eq!((client.role(), server.role()), (Role::Follower, Role::Leader));
    assert_eq!(client.id(), server.id());
    assert_eq!(client.name(), &"fable://kv".parse::<Name>().unwrap());
    assert_eq!(server.peer(), &somebody());
    assert_eq!(client.transport().to_string(), "mempipe-futex-safe");
    check(&client, &server);

    let id = client.id();
    daemon.wait_to_hear(
        "the first epoch",
        |said| matches!(said, ToDaemon::Moved { flow, epoch: 1, .. } if *flow == id),
    );
    client.finish().unwrap();
    assert!(server.read_timeout(GUARD).unwrap().is_none());
    drop((client, server));
    daemon.wait_to_hear(
        "the end",
        |said| matches!(said, ToDaemon::Ended { flow, .. } if *flow == id),
    );
}

#[test]
fn what_the_endpoint_insists_on_is_what_it_gets() {
    let daemon = TestDaemon::start();
    let (_kv, listener) = kv(&daemon);
    let anonymous = daemon.options().transport(Kind::Unix).anonymous();
    let client = anonymous.connect("fable://kv").unwrap();
    assert_eq!(client.transport(), Kind::Unix);
    check(&client, &listener.accept_timeout(GUARD).unwrap());
}

#[test]
fn the_daemon_moves_a_flow() {
    let daemon = TestDaemon::start();
    let (_kv, listener) = kv(&daemon);
    let client = daemon.options().anonymous().connect("fable://kv").unwrap();
    let server = listener.accept_timeout(GUARD).unwrap();
    let flow = client.id();
    let reason = "an operator said so".to_owned();
    let order = |transport: &str| {
        let transport = transport.to_owned();
        ToProcess::Move { flow, transport, reason: reason.clone(), sequence: None, epoch: None }
    };
    daemon.order(order("unix"), vec![]);
    for end in [&client, &server] {
        eventually("the move is an event", || {
            // A move happens during calls of the flow's own thread.
            assert!(matches!(end.try_read(), Err(Error::WouldBlock)));
            let event = end.take_event();
            event.is_some_and(|event| {
                matches!(event, FlowEvent::Moved { epoch: 2, transport: Kind::Unix, .. })
            })
        });
    }
    daemon.wait_to_hear("the move", |said| matches!(said, ToDaemon::Moved { epoch: 2, .. }));
    check(&client, &server);

    daemon.order(order("carrier-pigeon"), vec![]);
    let said = daemon.wait_to_hear("no", |said| matches!(said, ToDaemon::MoveFailed { .. }));
    let ToDaemon::MoveFailed { reason, .. } = said else { unreachable!() };
    assert!(reason.contains("unknown transport"), "{reason}");
    check(&client, &server);
}

#[test]
fn flows_outlive_the_daemon_and_are_announced_to_the_next() {
    let first = TestDaemon::start();
    let path = first.path().to_owned();
    let (_kv, listener) = kv(&first);
    let client = first.options().trust(Trust::Trusted).anonymous().connect("fable://kv").unwrap();
    let server = listener.accept_timeout(GUARD).unwrap();
    drop(first);
    check(&client, &server);

    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let second = TestDaemon::at(&path, |_| Deed::Serve);
    for wanted in [Role::Leader, Role::Follower] {
        let said = second.wait_to_hear(
            "both ends",
            |said| matches!(said, ToDaemon::Announce(said) if said.role == wanted),
        );
        let ToDaemon::Announce(said) = said else { unreachable!() };
        let facts = (said.flow, &said.name, said.epoch, said.local);
        assert_eq!(facts, (client.id(), client.name(), 1, true));
        assert_eq!(said.transport, "mempipe-futex-safe");
        assert_eq!(said.trust == Trust::Trusted, wanted == Role::Follower);
    }
    assert_eq!(second.pages(), 2, "an announcement comes with its page");
    let reason = "the new daemon wants it".to_owned();
    let flow = client.id();
    let transport = "unix".to_owned();
    second.order(ToProcess::Move { flow, transport, reason, sequence: None, epoch: None }, vec![]);
    eventually("the flow has moved", || {
        check(&client, &server);
        second.heard().iter().any(|said| matches!(said, ToDaemon::Moved { epoch: 2, .. }))
    });
    check(&client, &server);
    let third = second.options().anonymous().connect("fable://kv").unwrap();
    check(&third, &listener.accept_timeout(GUARD).unwrap());
    drop(second);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn peers_that_stall_hold_up_nobody_and_are_bounded() {
    let daemon = TestDaemon::start();
    let (_kv, listener) = kv(&daemon);
    let mut stalling = Vec::new();
    for flow in 0..100 {
        let (link, other) = packet::pair().unwrap();
        stalling.push(other);
        daemon.order(incoming(1000 + flow), vec![link, fable::page::create().unwrap()]);
    }
    let client = daemon.options().anonymous().connect("fable://kv").unwrap();
    check(&client, &listener.accept_timeout(GUARD).unwrap());

    for flow in 0..100 {
        let (link, other) = packet::pair().unwrap();
        stalling.push(other);
        daemon.order(incoming(2000 + flow), vec![link, fable::page::create().unwrap()]);
    }
    daemon.wait_to_hear(
        "a refusal",
        |said| matches!(said, ToDaemon::Ended { reason, .. } if reason.contains("too many")),
    );
    // The stalling peers close, so there is room again.
    drop(stalling);
    eventually("room", || {
        // A call of the listener removes failed openings from the queue.
        let _ = listener.try_accept();
        let short = daemon.options().timeout(Duration::from_millis(500));
        short.anonymous().connect("fable://kv").is_ok()
    });
}

#[test]
fn bad_descriptors_of_an_incoming_flow_harm_nobody() {
    let daemon = TestDaemon::start();
    let (_kv, listener) = kv(&daemon);
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let (link, _other) = packet::pair().unwrap();
    daemon.order(incoming(1), vec![link, null()]);
    daemon.order(incoming(2), vec![null(), fable::page::create().unwrap()]);
    daemon.order(incoming(3), vec![null(), null()]);
    let client = daemon.options().anonymous().connect("fable://kv").unwrap();
    check(&client, &listener.accept_timeout(GUARD).unwrap());
    assert!(matches!(listener.try_accept(), Err(Error::WouldBlock)));
}

#[test]
fn a_dropped_listener_refuses_what_waits() {
    let daemon = TestDaemon::start();
    let (kv, listener) = kv(&daemon);
    let client = daemon.options().anonymous().connect("fable://kv").unwrap();
    drop(listener);
    assert!(matches!(client.read_timeout(GUARD), Ok(None) | Err(Error::PeerDied)));
    let error = daemon.options().anonymous().connect("fable://kv").unwrap_err();
    assert!(matches!(&error, Error::Refused { .. }), "{error}");
    // The name is still registered and can listen again.
    let listener = kv.listen().unwrap();
    let client = daemon.options().anonymous().connect("fable://kv").unwrap();
    check(&client, &listener.accept_timeout(GUARD).unwrap());
}

/// Returns a daemon that answers every `Connect` with `Elsewhere`.
fn sending_elsewhere(addresses: Vec<SocketAddr>) -> TestDaemon {
    TestDaemon::with_whims(move |said| match said {
        ToDaemon::Connect { request, name, .. } => {
            let elsewhere = ToProcess::Elsewhere {
                request: *request,
                flow: FlowId(4711),
                name: name.clone(),
                peer: somebody(),
                addresses: addresses.clone(),
                ticket: r#"{"ticket":"of this daemon"}"#.into(),
                protected: false,
            };
            let page = fable::page::create().unwrap();
            Deed::Send(vec![(serde_json::to_vec(&elsewhere).unwrap(), vec![page])])
        }
        _ => Deed::Serve,
    })
}

#[test]
fn a_name_of_another_host_is_reached_with_its_ticket() {
    let other_host = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let daemon = sending_elsewhere(vec![dead, other_host.local_addr().unwrap()]);
    let (_kv, listener) = kv(&daemon);
    let options = daemon.options();
    let client = std::thread::spawn(move || {
        let client = options.anonymous().connect("fable://kv").unwrap();
        send(&client, b"from afar");
        assert_eq!(&client.read_timeout(GUARD).unwrap().unwrap()[..], b"answer");
        client.transport()
    });
    let (link, _) = other_host.accept().unwrap();
    let mut ticket = String::new();
    BufReader::new(&link).read_line(&mut ticket).unwrap();
    assert_eq!(ticket, "{\"ticket\":\"of this daemon\"}\n");
    let ToProcess::Incoming { name, peer, trust, reason, .. } = incoming(4711) else {
        unreachable!()
    };
    let (flow, transport) = (FlowId(4711), "tcp-nodelay".to_owned());
    let (local, protected) = (false, false);
    let order =
        ToProcess::Incoming { flow, name, peer, trust, local, protected, transport, reason };
    daemon.order(order, vec![link.into(), fable::page::create().unwrap()]);
    let server = listener.accept_timeout(GUARD).unwrap();
    assert_eq!(&server.read_timeout(GUARD).unwrap().unwrap()[..], b"from afar");
    send(&server, b"answer");
    assert_eq!(client.join().unwrap(), Kind::TcpNodelay);
}

#[test]
fn another_host_that_cannot_be_reached_is_an_error_in_time() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for addresses in [vec![], vec![dead], vec![silent.local_addr().unwrap()]] {
        let daemon = sending_elsewhere(addresses);
        let options = daemon.options().timeout(Duration::from_millis(500));
        let begin = Instant::now();
        let error = options.anonymous().connect("fable://kv").unwrap_err();
        assert!(matches!(error, Error::Refused { .. } | Error::TimedOut), "{error}");
        assert!(begin.elapsed() < GUARD);
    }
}

#[test]
fn a_daemon_that_dies_with_the_keys_costs_the_move_and_not_the_flow() {
    let daemon = TestDaemon::with_whims(|said| match said {
        ToDaemon::GetKeys { .. } => Deed::Ignore,
        _ => Deed::Serve,
    });
    let (_kv, listener) = kv(&daemon);
    let client = daemon.options().anonymous().connect("fable://kv").unwrap();
    let server = listener.accept_timeout(GUARD).unwrap();
    server.move_to(Kind::Tls).unwrap();
    let said = daemon.wait_to_hear("it", |said| matches!(said, ToDaemon::GetKeys { .. }));
    let ToDaemon::GetKeys { flow, role, .. } = said else { unreachable!() };
    assert_eq!((flow, role), (server.id(), Role::Leader));
    drop(daemon);
    eventually("the move has failed", || {
        check(&client, &server);
        let event = server.take_event();
        event.is_some_and(|event| match event {
            FlowEvent::MoveFailed { reason, .. } => {
                assert!(reason.contains("went away"), "{reason}");
                true
            }
            _ => false,
        })
    });
    // Moves need no daemon.
    server.move_to(Kind::Tls).unwrap();
    eventually("the move has failed", || {
        check(&client, &server);
        matches!(server.take_event(), Some(FlowEvent::MoveFailed { .. }))
    });
}

#[test]
fn many_threads_connect_and_accept_at_once() {
    const THREADS: usize = 4;
    const FLOWS: usize = 20;
    fn assert_shareable<T: Send + Sync>(_: &T) {}
    let daemon = TestDaemon::start();
    let (kv, listener) = kv(&daemon);
    assert_shareable(&kv);
    assert_shareable(&listener);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..FLOWS {
                    let flow = listener.accept_timeout(GUARD).unwrap();
                    let message = flow.read_timeout(GUARD).unwrap().unwrap();
                    send(&flow, &message);
                }
            });
            let kv = &kv;
            scope.spawn(move || {
                for number in 0..FLOWS {
                    let flow = kv.connect("fable://kv").unwrap();
                    let message = format!("{thread} {number}");
                    send(&flow, message.as_bytes());
                    let answer = flow.read_timeout(GUARD).unwrap().unwrap();
                    assert_eq!(&answer[..], message.as_bytes());
                }
            });
        }
    });
}
