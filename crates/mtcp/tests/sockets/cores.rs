//! Tests several cores: each connection has one owner, wherever its packets arrive, and its reports
//! are correct.

use crate::pair::{GUARD, address, config};
use mtcp::config::Mode;
use mtcp::{Context, Family, Mtcp, StartError, stat};
use std::time::Instant;

const CORES: u16 = 2;
const CONNECTIONS: usize = 60;

fn contexts(mtcp: &Mtcp) -> Vec<Context> {
    (0..mtcp.cores()).map(|core| mtcp.context(core).expect("a context")).collect()
}

#[test]
fn packets_are_handed_to_the_core_that_owns_them() {
    for mode in [Mode::Complete, Mode::Paired] {
        let (mut left, mut right) = (config("10.0.0.1", mode), config("10.0.0.2", mode));
        left.engine.cores = CORES;
        right.engine.cores = CORES;
        let (left, right) = Mtcp::pair(left, right, Default::default()).expect("stacks");
        let (mut servers, mut clients) = (contexts(&left), contexts(&right));
        let listeners: Vec<_> = servers
            .iter_mut()
            .map(|server| {
                let listener = server.socket(Family::V4).expect("a socket");
                server.set_nonblocking(listener, true).expect("a socket");
                server.bind(listener, address(80)).expect("a free port");
                server.listen(listener, 1024).expect("to listen");
                listener
            })
            .collect();
        let mut sockets = Vec::new();
        for index in 0..CONNECTIONS {
            let client = &mut clients[index % usize::from(CORES)];
            let socket = client.socket(Family::V4).expect("a socket");
            client.set_nonblocking(socket, true).expect("a socket");
            client.connect(socket, address(80)).expect_err("not at once");
            sockets.push(socket);
        }
        let (mut accepted, mut connected) = (vec![0; servers.len()], 0);
        let end = Instant::now() + GUARD;
        while accepted.iter().sum::<usize>() < CONNECTIONS || connected < CONNECTIONS {
            assert!(Instant::now() < end, "{accepted:?}, {connected}");
            for (core, server) in servers.iter_mut().enumerate() {
                server.turn().expect("a device");
                while server.accept(listeners[core]).is_ok() {
                    accepted[core] += 1;
                }
            }
            clients.iter_mut().for_each(|client| client.turn().expect("a device"));
            connected = (0..CONNECTIONS)
                .filter(|index| {
                    let client = &mut clients[index % usize::from(CORES)];
                    client.getpeername(sockets[*index]).is_ok()
                })
                .count();
        }
        // Each client's connections arrive through its own device, and their owners differ.
        assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
        for client in &mut clients {
            let counters = client.counters();
            assert_eq!(counters.drop_other_core, 0);
            assert_eq!(counters.connections_opened, CONNECTIONS as u64 / u64::from(CORES));
        }
        for server in &mut servers {
            assert_eq!(server.counters().drop_other_core, 0, "handed over, not dropped");
        }
    }
}

#[test]
fn each_core_is_had_once() {
    let (left, _right) = Mtcp::pair(
        config("10.0.0.1", Mode::Complete),
        config("10.0.0.2", Mode::Complete),
        Default::default(),
    )
    .expect("stacks");
    let _context = left.context(0).expect("a context");
    assert!(matches!(left.context(0), Err(StartError::Taken(0))));
    assert!(matches!(left.context(1), Err(StartError::NoCore { core: 1, cores: 1 })));
}

#[test]
fn statistics_are_told_while_the_stack_turns_and_the_socket_goes_with_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stat");
    let mut left = config("10.0.0.1", Mode::Paired);
    left.stat.socket = Some(path.clone());
    let (left, right) =
        Mtcp::pair(left, config("10.0.0.2", Mode::Paired), Default::default()).expect("stacks");
    let (mut server, client) =
        (left.context(0).expect("a context"), right.context(0).expect("a context"));
    let listener = server.socket(Family::V4).expect("a socket");
    server.bind(listener, address(80)).expect("a free port");
    server.listen(listener, 16).expect("to listen");
    let name = path.to_str().expect("plain").to_owned();
    let report = stat::ask(&name, true).expect("an answer");
    assert_eq!(report.process, std::process::id());
    assert_eq!(report.cores[0].states["LISTEN"], 1);
    assert_eq!(report.cores[0].connections[0].local, address(80));
    assert!(stat::table(&report).contains("LISTEN"));
    assert!(stat::processes().expect("/proc").iter().any(|name| name.starts_with("@mtcp/")));
    drop((server, client, left, right));
    assert!(!path.exists());
    assert!(stat::ask(&name, false).is_err());
}
