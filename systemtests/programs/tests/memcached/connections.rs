//! Tests of connections that are opened, kept, reset and rejected.

use crate::server::{Client, DRIVERS, Server, TIME_LIMIT, pattern};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::thread;
use testkit::stalled::{Stalled, allowed_for_each, held_for_each};
use testkit::{allowed_cpus, eventually, pin};

fn accepted(watcher: &mut Client<TcpStream>, worker: usize) -> u64 {
    watcher.number("megapipe", &format!("{worker}:accepted"))
}

/// Connections that a round makes from each CPU.
const PER_CPU: usize = 100;

/// Makes served connections from all CPUs in turn.
fn connect_in_turn(server: &Server, cpus: &[usize]) -> Vec<Client<TcpStream>> {
    let connect = || {
        let turns = (0..PER_CPU).flat_map(|_| cpus);
        let clients = turns.map(|cpu| {
            pin(*cpu);
            let mut client = server.client();
            assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
            client
        });
        clients.collect()
    };
    // The thread's affinity ends with the thread.
    thread::scope(|scope| scope.spawn(connect).join().unwrap())
}

/// Serves a round of connections, the same number from each CPU; returns how many each worker
/// accepted.
fn round(
    driver: &str,
    server: &Server,
    watcher: &mut Client<TcpStream>,
    cpus: &[usize],
) -> [u64; 2] {
    let before = [0, 1].map(|worker| accepted(watcher, worker));
    let clients = connect_in_turn(server, cpus);
    let expected = (clients.len() + 1) as u64;
    assert_eq!(watcher.number("", "curr_connections"), expected, "{driver}");
    let after = [0, 1].map(|worker| accepted(watcher, worker));
    drop(clients);
    let gone = || watcher.number("", "curr_connections") == 1;
    assert!(eventually(TIME_LIMIT, gone), "{driver}: connections are left over");
    [after[0] - before[0], after[1] - before[1]]
}

/// The workers claim their parts of the listening socket shortly after it is created. Until then
/// the main thread accepts, and the first connections may all go to one part; the channels then
/// distribute the next ones at random for a while. So the test makes rounds until one is
/// distributed by CPU. After such an even round, the next ones must be distributed by CPU, too.
#[test]
fn every_worker_accepts_for_its_cpus() {
    let cpus = allowed_cpus();
    let its = [0, 1].map(|worker| {
        let own = cpus.iter().filter(|cpu| *cpu % 2 == worker);
        (own.count() * PER_CPU) as u64
    });
    // A worker without a CPU gets a part of the other's connections: the channels keep distributing
    // at random.
    let is_right = |accepted: [u64; 2]| match its.contains(&0) {
        true => !accepted.contains(&0),
        false => accepted == its,
    };
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2", "-v"]);
        let mut watcher = server.client();
        watcher.set("key", b"value");
        let mut rounds = Vec::new();
        let goes_by_cpu = || {
            rounds.push(round(driver, &server, &mut watcher, &cpus));
            rounds.last().copied().is_some_and(is_right)
        };
        assert!(eventually(TIME_LIMIT, goes_by_cpu), "{driver}: {rounds:?}, never {its:?}");
        for _ in 0..3 {
            let next = round(driver, &server, &mut watcher, &cpus);
            assert!(is_right(next), "{driver}: {next:?} after {rounds:?}, not {its:?}");
        }
    }
}

#[test]
fn connections_that_break_off_leave_nothing() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2"]);
        let mut watcher = server.client();
        watcher.set("value", &pattern(2, 500_000));
        let before = watcher.number("", "curr_connections");
        for round in 0..40 {
            let mut client = server.client();
            match round % 4 {
                0 => client.send(b"set half 0 0 100\r\nonly a part"),
                1 => client.send("get value\r\n".repeat(50).as_bytes()),
                2 => client.send(b"get val"),
                _ => client.send(b"set half 0 0 900000\r\n"),
            }
            if round % 2 == 0 {
                reset(client.stream());
            }
        }
        let gone = || watcher.number("", "curr_connections") == before;
        assert!(eventually(TIME_LIMIT, gone), "{driver}: connections are left over");
        assert_eq!(watcher.get("half"), None, "{driver}: a part was stored");
        assert!(watcher.get("value") == Some(pattern(2, 500_000)), "{driver}");
    }
}

/// Closes the connection with a reset when it is dropped.
fn reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the value outlives the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}

#[test]
fn what_was_asked_before_quitting_is_answered() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1"]);
        let mut client = server.client();
        client.set("value", &pattern(4, 10_000));
        client.send("get value\r\n".repeat(300).as_bytes());
        client.send(b"quit\r\n");
        for i in 0..300 {
            assert!(client.answer("value") == Some(pattern(4, 10_000)), "{driver}: {i}");
        }
        assert!(client.rest().is_empty(), "{driver}");
    }
}

#[test]
fn a_client_that_has_said_everything_is_answered() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1"]);
        let mut client = server.client();
        client.send(b"set key 0 0 5\r\nvalue\r\nget key\r\n");
        client.stream().shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.rest(), b"STORED\r\nVALUE key 0 5\r\nvalue\r\nEND\r\n", "{driver}");
    }
}

#[test]
fn too_many_connections_are_told_so() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2", "-c", "64"]);
        let mut watcher = server.served_client();
        let mut kept = Vec::new();
        let mut refused = 0;
        for _ in 0..100 {
            let mut client = server.client();
            match client.ask("version\r\n").as_str() {
                "ERROR Too many open connections" => refused += 1,
                version => {
                    assert!(version.starts_with("VERSION "), "{driver}: {version}");
                    kept.push(client);
                }
            }
        }
        assert!(refused > 0 && !kept.is_empty(), "{driver}: {refused} of 100 were refused");
        assert_eq!(watcher.number("", "rejected_connections"), refused, "{driver}");
        drop(kept);
        let free = || server.client().ask("version\r\n").starts_with("VERSION ");
        assert!(eventually(TIME_LIMIT, free), "{driver}: nobody is accepted any more");
    }
}

/// Returns the number of connections that a server accepts before it rejects one.
fn taken_by(server: &Server) -> usize {
    let mut kept = Vec::new();
    loop {
        let mut client = server.client();
        match client.ask("version\r\n").as_str() {
            "ERROR Too many open connections" => return kept.len(),
            version => assert!(version.starts_with("VERSION "), "{version}"),
        }
        kept.push(client);
        assert!(kept.len() < 1000, "nobody is refused");
    }
}

/// The limit is one of descriptors, and the adapted server raises it by those of its channels: two
/// for each worker, one for each address and one more. A worker that starts late, or has no CPU,
/// opens some after the first connections; the unmodified server also does so with one descriptor.
#[test]
fn as_many_connections_are_taken_as_by_the_unmodified_server() {
    for (threads, connections) in [(1, "64"), (3, "100")] {
        let options = ["-t", &threads.to_string(), "-c", connections];
        let expected = taken_by(&Server::start_stock(&options));
        for driver in DRIVERS {
            let taken = taken_by(&Server::start(driver, &options));
            let right = (expected - 1..=expected + 1 + 2 + 2 * threads).contains(&taken);
            assert!(right, "{driver}: {taken} with {options:?}, unmodified {expected}");
        }
    }
}

/// Closes connections, and waits until the server's kernel has processed their ends: packets that
/// are sent later on another CPU may arrive earlier.
fn end(clients: Vec<Client<TcpStream>>) {
    const FIN_WAIT_1: u8 = 4;
    clients.iter().for_each(|client| client.stream().shutdown(Shutdown::Write).unwrap());
    let known = || clients.iter().all(|client| tcp_state(client.stream()) != FIN_WAIT_1);
    assert!(eventually(TIME_LIMIT, known));
}

/// Returns the state of a TCP connection, numbered as in the kernel's include/net/tcp_states.h: the
/// first byte of TCP_INFO.
fn tcp_state(stream: &TcpStream) -> u8 {
    let (mut state, mut length) = (0_u8, 1);
    // SAFETY: the kernel writes at most one byte, for which there is room.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0);
    state
}

/// The server is stopped meanwhile, so that it handles the ends and the new connections together.
#[test]
fn connections_that_have_ended_make_room_for_new_ones() {
    const CLIENTS: usize = 40;
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1", "-c", "64"]);
        let mut watcher = server.served_client();
        let connect = || (0..CLIENTS).map(|_| server.client()).collect::<Vec<_>>();
        let mut clients = connect();
        for round in 0..10 {
            for client in &mut clients {
                let answer = client.ask("version\r\n");
                assert!(answer.starts_with("VERSION "), "{driver}: {round}: {answer}");
            }
            server.process.signal(libc::SIGSTOP).unwrap();
            end(clients);
            clients = connect();
            server.process.signal(libc::SIGCONT).unwrap();
        }
        assert_eq!(watcher.number("", "rejected_connections"), 0, "{driver}");
    }
}

#[test]
fn without_free_descriptors_connections_wait() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2", "-c", "64", "-o", "no_maxconns_fast"]);
        let mut watcher = server.served_client();
        let mut clients = Vec::new();
        while watcher.number("", "listen_disabled_num") == 0 {
            assert!(clients.len() < 1000, "{driver}: accepting was never stopped");
            clients.extend(server.client_at_once());
        }
        let served = clients.len();
        clients.extend((0..10).filter_map(|_| server.client_at_once()));
        drop(clients.drain(..served - 5));
        for mut client in clients {
            assert!(client.ask("version\r\n").starts_with("VERSION "), "{driver}");
        }
    }
}

/// Everything that arrives on a new connection until memcached closes; `None` after a reset.
fn until_closed(server: &Server, request: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let mut all = Vec::new();
    match stream.write_all(request).and_then(|()| stream.read_to_end(&mut all)) {
        Ok(_) => Some(all),
        Err(error) => {
            let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            assert!(kinds.contains(&error.kind()), "{error}");
            None
        }
    }
}

/// A client that does not send in time counts as idle, and can connect again.
#[test]
fn idle_connections_are_closed() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2", "-o", "idle_timeout=1"]);
        let served_and_closed = || {
            let all = until_closed(&server, b"set key 0 0 5\r\nvalue\r\n").unwrap_or_default();
            let right = [&b""[..], b"STORED\r\n"].contains(&all.as_slice());
            assert!(right, "{driver}: {}", String::from_utf8_lossy(&all));
            !all.is_empty()
        };
        assert!(eventually(TIME_LIMIT, served_and_closed), "{driver}: nobody is served");
        let counted = || {
            let all = until_closed(&server, b"stats\r\nquit\r\n").unwrap_or_default();
            let all = String::from_utf8(all).unwrap();
            let kicks = all.lines().find_map(|line| line.strip_prefix("STAT idle_kicks "));
            kicks.is_some_and(|kicks| kicks != "0")
        };
        assert!(eventually(TIME_LIMIT, counted), "{driver}: nobody was kicked");
    }
}

#[test]
fn a_watcher_sees_the_log() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2"]);
        let mut watcher = server.client();
        assert_eq!(watcher.ask("watch mutations\r\n"), "OK", "{driver}");
        let mut client = server.client();
        client.set("key", b"value");
        let line = watcher.line();
        assert!(line.contains("type=item_store key=key status=stored"), "{driver}: {line}");
        let before = client.number("", "curr_connections");
        drop(watcher);
        let gone = || {
            client.set("key", b"again");
            client.number("", "curr_connections") == before - 1
        };
        assert!(eventually(TIME_LIMIT, gone), "{driver}: the watcher is left over");
    }
}

#[test]
fn connections_lent_to_side_threads_disturb_nobody() {
    for driver in DRIVERS {
        lend_connections(&Server::start(driver, &["-t", "2"]), driver, 300);
    }
}

/// A side thread may close a connection before the worker has returned from the command that passed
/// the connection to it.
#[test]
fn side_threads_are_quicker_than_the_workers() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("late_workers.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memcached/late_workers.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    compiler.arg(&library).arg(source).arg("-ldl");
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    for driver in DRIVERS {
        lend_connections(&Server::start_with(&library, driver, &["-t", "2"]), driver, 150);
    }
}

/// Sends commands that a side thread executes, from clients that disconnect soon.
fn lend_connections(server: &Server, driver: &str, rounds: usize) {
    const COMMANDS: [&str; 3] =
        ["watch mutations fetchers\r\n", "lru_crawler metadump all\r\n", "watch evictions\r\n"];
    let mut other = server.client();
    let before = other.number("", "curr_connections");
    for round in 0..rounds {
        let mut lent = server.client();
        lent.send(COMMANDS[round % COMMANDS.len()].as_bytes());
        if round % 2 == 0 {
            reset(lent.stream());
        }
        drop(lent);
        other.set(&format!("key{round}"), b"value");
    }
    let mut left = 0;
    let gone = || {
        other.set("key", b"value");
        left = other.number("", "curr_connections");
        left == before
    };
    let all_gone = eventually(TIME_LIMIT, gone);
    assert!(all_gone, "{driver}: {left} connections and not {before}");
}

#[test]
fn a_local_socket_works() {
    for driver in DRIVERS {
        let server = Server::start_local(driver);
        let mut clients: Vec<_> = (0..20).map(|_| server.local_client()).collect();
        for (i, client) in clients.iter_mut().enumerate() {
            client.set(&format!("key{i}"), &pattern(i, 50_000));
        }
        for (seed, client) in clients.iter_mut().rev().enumerate() {
            let key = format!("key{seed}");
            assert!(client.get(&key) == Some(pattern(seed, 50_000)), "{driver}: {key}");
        }
    }
}

#[test]
fn the_port_belongs_to_one_server() {
    let server = Server::start("auto", &["-t", "2"]);
    server.client().set("key", b"value");
    let second = std::net::TcpListener::bind(server.address());
    assert_eq!(second.unwrap_err().kind(), ErrorKind::AddrInUse);
}

/// memcached's own statistics count what the channel's connections hold.
#[test]
fn statistics_count_what_stalled_clients_hold() {
    const CLIENTS: usize = 20;
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1"]);
        let mut client = server.client();
        client.set("key", &pattern(1, 3_000));
        let held = |client: &mut Client<TcpStream>| client.number("megapipe", "0:held_bytes");
        let before = client.number("", "read_buf_bytes");
        let requests = "get key\r\n".repeat(100);
        let stalled = Stalled::connect(server.port(), CLIENTS, requests.as_bytes()).unwrap();
        // A write in flight of each, and one that is collected behind it.
        let bytes = held(&mut client);
        assert!(bytes >= (stalled.count() * 8_000) as u64, "{driver}: {bytes} bytes");
        let more = client.number("", "read_buf_bytes") - before;
        assert!(more >= bytes, "{driver}: {more} bytes of {bytes}");
        drop(stalled);
        assert!(eventually(TIME_LIMIT, || held(&mut client) <= 8_000), "{driver}");
    }
}

/// Clients that send requests and read no answers.
#[test]
fn stalled_clients_cost_little_more_than_in_the_unmodified_server() {
    const CLIENTS: usize = 40;
    let held = |server: Server, request: &str| {
        let mut client = server.client();
        for bytes in [100, 3_000, 30_000] {
            client.set(&format!("k{bytes}"), &pattern(1, bytes));
        }
        let requests = request.repeat(100);
        let processes = [server.process.id()];
        held_for_each(server.port(), CLIENTS, requests.as_bytes(), &processes).unwrap()
    };
    let options = ["-t", "1"];
    for key in ["missing", "k100", "k3000", "k30000"] {
        let request = format!("get {key}\r\n");
        let stock = held(Server::start_stock(&options), &request);
        for driver in DRIVERS {
            let bytes = held(Server::start(driver, &options), &request);
            println!("{driver} {key}: {bytes} bytes for each client, unmodified {stock}");
            let most = allowed_for_each(stock, CLIENTS);
            assert!(bytes <= most, "{driver} {key}: {bytes} bytes, unmodified {stock}");
        }
    }
}
