//! Tests of nginx at its limits of descriptors, connections and time, and at its end.

use crate::{assert_lightweight, server};
use systemtests_programs::http::Client;
use systemtests_programs::nginx::{Nginx, Setup};
use systemtests_programs::{TIME_LIMIT, raise_descriptor_limit};
use testkit::eventually;

/// Returns whether a new connection is served.
fn serves(nginx: &Nginx) -> bool {
    let answer = Client::connect(nginx.port()).and_then(|mut client| client.get("/f"));
    answer.is_ok_and(|answer| answer.body == b"0123456789")
}

/// Returns the number of lines of the log that contain the text.
fn lines_with(nginx: &Nginx, text: &str) -> usize {
    nginx.log().lines().filter(|line| line.contains(text)).count()
}

#[test]
fn workers_that_are_bound_to_cpus_start_and_serve() {
    for (workers, affinity) in [(1, "01"), (1, "auto"), (2, "auto"), (2, "01 01")] {
        let main = format!("worker_cpu_affinity {affinity};");
        let nginx = server(&Setup { main, workers, ..Setup::module() });
        let first = nginx.workers();
        for _ in 0..40 {
            assert!(serves(&nginx), "{workers} {affinity}: {}", nginx.log());
        }
        nginx.reload().unwrap();
        assert!(serves(&nginx), "{workers} {affinity}: {}", nginx.log());
        assert_eq!(lines_with(&nginx, "exited on signal"), 0, "{first:?} {}", nginx.log());
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

/// Returns the drivers of the channels that were created so far, once there are `channels`.
#[track_caller]
fn drivers(nginx: &Nginx, channels: usize) -> Vec<String> {
    let told = || lines_with(nginx, "megapipe: driver") == channels;
    assert!(eventually(TIME_LIMIT, told), "{channels} channels: {}", nginx.log());
    let log = nginx.log();
    let after = log.lines().filter_map(|line| line.split_once("megapipe: driver "));
    let mut names: Vec<String> =
        after.map(|(_, rest)| rest.split(':').next().unwrap_or_default().to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// A ring takes 104 KiB of the locked memory that all workers share.
#[test]
fn all_workers_use_epoll_if_memory_for_a_ring_is_short_for_some() {
    let setup = Setup { workers: 24, locked_bytes: 1 << 20, ..Setup::module() };
    let nginx = server(&setup);
    let told = || lines_with(&nginx, "the rings of 26 channels take 2704 KiB of locked memory");
    if told() == 0 && drivers(&nginx, 24) == ["uring"] {
        return testkit::skip("nginx::limits", "rings do not count as locked memory here");
    }
    assert_eq!(drivers(&nginx, 24), ["epoll"]);
    assert_eq!(told(), 1, "{}", nginx.log());
    for _ in 0..60 {
        assert!(serves(&nginx), "{}", nginx.log());
    }
    nginx.reload().unwrap();
    assert_eq!(drivers(&nginx, 48), ["epoll"]);
    assert_eq!(told(), 2, "{}", nginx.log());
    assert_eq!(nginx.complaints(), [""; 0]);

    let events = "megapipe_driver uring;".to_string();
    let error = Nginx::start(&Setup { events, ..setup }).unwrap_err().to_string();
    assert!(error.contains("[emerg]") && error.contains("raise the limit"), "{error}");

    let nginx = server(&Setup { workers: 2, locked_bytes: 1 << 20, ..Setup::module() });
    assert_eq!(drivers(&nginx, 2), ["uring"]);
    assert_eq!(lines_with(&nginx, "locked memory"), 0, "{}", nginx.log());
}

#[test]
fn a_worker_without_descriptors_pauses_and_goes_on() {
    for events in ["megapipe_lwsockets off;", "megapipe_driver epoll;"] {
        let main = "worker_rlimit_nofile 40;".to_string();
        let nginx = server(&Setup { main, events: events.into(), ..Setup::module() });
        let waiting: Vec<Client> =
            (0..60).map(|_| Client::connect(nginx.port()).unwrap()).collect();
        let failures = || lines_with(&nginx, "accept() through the channel failed");
        assert!(eventually(TIME_LIMIT, || failures() >= 3), "{events}: {}", nginx.log());
        assert!(failures() < 30, "it pauses: {}", nginx.log());
        assert!(nginx.log().contains("[crit]"), "{}", nginx.log());
        drop(waiting);
        for _ in 0..20 {
            assert!(eventually(TIME_LIMIT, || serves(&nginx)), "{events}: {}", nginx.log());
        }
    }
}

#[test]
fn a_worker_that_pauses_can_end() {
    for workers in [1, 2] {
        let main = "worker_rlimit_nofile 40; worker_shutdown_timeout 1s;".to_string();
        let events = "megapipe_lwsockets off;".to_string();
        let mut nginx = server(&Setup { main, events, workers, ..Setup::module() });
        let waiting: Vec<Client> =
            (0..60 * workers).map(|_| Client::connect(nginx.port()).unwrap()).collect();
        let pauses = || lines_with(&nginx, "accept() through the channel failed") > 0;
        assert!(eventually(TIME_LIMIT, pauses), "{}", nginx.log());
        nginx.signal(libc::SIGQUIT).unwrap();
        assert!(nginx.wait().unwrap().success(), "{}", nginx.log());
        assert_eq!(lines_with(&nginx, "exited on signal"), 0, "{}", nginx.log());
        drop(waiting);
    }
}

#[test]
fn connections_above_the_limit_are_closed_and_the_worker_goes_on() {
    for events in ["", "megapipe_lwsockets off;", "megapipe_driver epoll;"] {
        let events = format!("worker_connections 24; {events}");
        let nginx = server(&Setup { events: events.clone(), ..Setup::module() });
        let mut clients: Vec<Client> =
            (0..100).map(|_| Client::connect(nginx.port()).unwrap()).collect();
        let served = clients.iter_mut().filter_map(|client| client.get("/f").ok()).count();
        assert!(served >= 1, "{events}: {}", nginx.log());
        let refused = lines_with(&nginx, "worker_connections are not enough");
        assert!((1..=300).contains(&refused), "{events}: {refused} lines");
        drop(clients);
        assert!(eventually(TIME_LIMIT, || serves(&nginx)), "{events}: {}", nginx.log());
        for _ in 0..30 {
            assert!(serves(&nginx), "{events}: {}", nginx.log());
        }
    }
}

#[test]
fn a_graceful_end_does_not_wait_for_idle_connections() {
    for workers in [1, 2] {
        let mut nginx = server(&Setup { workers, ..Setup::module() });
        let mut idle: Vec<Client> =
            (0..300).map(|_| Client::connect(nginx.port()).unwrap()).collect();
        for client in &mut idle {
            assert_eq!(client.get("/f").unwrap().status, 200);
        }
        nginx.signal(libc::SIGQUIT).unwrap();
        assert!(nginx.wait().unwrap().success());
        for client in idle {
            assert_eq!(client.rest().unwrap(), b"");
        }
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn silent_clients_and_stuck_readers_are_let_go_when_the_shutdown_is_to_end() {
    let main = "worker_shutdown_timeout 1s;".to_string();
    let server_text = "location = /limited { limit_rate 1k; alias html/small; }".to_string();
    let mut nginx = server(&Setup { main, server: server_text, ..Setup::module() });
    nginx.place("large", &vec![b'x'; 30_000_000]).unwrap();
    nginx.place("small", &vec![b'x'; 60_000]).unwrap();
    let silent: Vec<Client> = (0..300).map(|_| Client::connect(nginx.port()).unwrap()).collect();
    let mut stuck: Vec<Client> = (0..4).map(|_| Client::connect(nginx.port()).unwrap()).collect();
    for (client, path) in stuck.iter_mut().zip(["large", "limited", "large", "small"]) {
        client.send(format!("GET /{path} HTTP/1.1\r\nHost: t\r\n\r\n")).unwrap();
        client.head().unwrap();
    }
    // The client never reads the data that the channel has in flight for it.
    let mut pipelining = Client::connect(nginx.port()).unwrap();
    pipelining.send("GET /small HTTP/1.1\r\nHost: t\r\n\r\n".repeat(400)).unwrap();
    pipelining.head().unwrap();
    nginx.signal(libc::SIGQUIT).unwrap();
    assert!(nginx.wait().unwrap().success());
    for client in silent {
        assert!(client.rest().is_ok_and(|bytes| bytes.is_empty()));
    }
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn a_worker_that_is_terminated_in_the_middle_of_its_work_ends_at_once() {
    let main = "thread_pool default threads=2;".to_string();
    let text = "aio threads; sendfile off; output_buffers 1 4k;".to_string();
    let mut nginx = server(&Setup { main, server: text, ..Setup::module() });
    nginx.place("large", &vec![b'x'; 3_000_000]).unwrap();
    let mut clients: Vec<Client> =
        (0..40).map(|_| Client::connect(nginx.port()).unwrap()).collect();
    for client in &mut clients {
        client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    }
    clients[0].head().unwrap();
    nginx.signal(libc::SIGTERM).unwrap();
    assert!(nginx.wait().unwrap().success());
    assert_eq!(lines_with(&nginx, "exited on signal"), 0, "{}", nginx.log());
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn a_worker_with_thousands_of_connections_ends_before_it_is_killed() {
    // Each connection has requests with the channel. After a second the master kills a worker that
    // has not ended.
    raise_descriptor_limit().unwrap();
    for events in ["", "megapipe_driver epoll;"] {
        let main = "worker_rlimit_nofile 10000;".to_string();
        let events = format!("worker_connections 10000; {events}");
        let mut nginx = server(&Setup { main, events, ..Setup::module() });
        let clients: Vec<Client> = (0..8_000)
            .map(|_| {
                let mut client = Client::connect(nginx.port()).unwrap();
                assert_eq!(client.get("/f").unwrap().status, 200);
                client
            })
            .collect();
        nginx.signal(libc::SIGTERM).unwrap();
        assert!(nginx.wait().unwrap().success());
        assert_eq!(lines_with(&nginx, "exited on signal"), 0, "{}", nginx.log());
        assert_eq!(nginx.complaints(), [""; 0]);
        drop(clients);
    }
}

/// The kernel reports the first clients' addresses and then fails for the others. The log has one
/// message about it, and the worker then accepts connections as descriptors, whose addresses the
/// kernel reports.
#[test]
fn a_kernel_that_stops_telling_addresses_is_told_once_and_replaced() {
    let location = "location = /peer { return 200 \"$remote_addr $megapipe_socket\"; }";
    // IORING_OP_URING_CMD with SOCKET_URING_OP_GETSOCKOPT, and IORING_OP_FIXED_FD_INSTALL.
    let hidden = "op=46 cmd=2 after=6; op=54 after=1".into();
    let nginx = server(&Setup { server: location.into(), hidden, ..Setup::module() });
    let ask = || Client::connect(nginx.port())?.get("/peer");
    let is_replaced = || ask().is_ok_and(|answer| answer.body == b"127.0.0.1 descriptor");
    assert!(eventually(TIME_LIMIT, is_replaced), "{}", nginx.log());
    for _ in 0..40 {
        assert_eq!(ask().unwrap().body, b"127.0.0.1 descriptor");
    }
    let alerts = nginx.complaints();
    let text = "does not tell the address of a client on a lightweight socket";
    assert!(alerts.len() == 1 && alerts[0].contains(text), "{alerts:?}");
    assert_eq!(lines_with(&nginx, "has gone"), 0);
}

/// A kernel without such requests is detected when the worker starts.
#[test]
fn what_the_kernel_lacks_is_told_at_the_start_and_replaced() {
    let location = "location = /peer { return 200 \"$remote_addr $megapipe_socket\"; }";
    let hidden = "op=46".into();
    let nginx = server(&Setup { server: location.into(), hidden, ..Setup::module() });
    assert_lightweight(40, "127.0.0.1 lightweight", || {
        let body = Client::connect(nginx.port()).unwrap().get("/peer").unwrap().body;
        String::from_utf8(body).unwrap()
    });
    let told = "getsockopt as a request (Linux 6.7): lightweight sockets are descriptors";
    assert!(lines_with(&nginx, told) > 0, "{}", nginx.log());
    assert_eq!(nginx.complaints(), [""; 0]);
}

/// A channel has room for a million handles.
#[test]
fn more_connections_than_a_channel_takes_are_refused_before_the_start() {
    let nginx = server(&Setup::module());
    let text = std::fs::read_to_string(nginx.directory().join("nginx.conf")).unwrap();
    let with = |connections: &str| {
        let path = nginx.directory().join("other.conf");
        let changed = text.replace("worker_connections 4096", connections);
        assert_ne!(changed, text);
        std::fs::write(&path, changed).unwrap();
        nginx.test(&path).unwrap()
    };
    for driver in ["", "megapipe_driver epoll;"] {
        let (said, good) = with(&format!("{driver} worker_connections 1000000"));
        assert!(good, "{driver}: {said}");
        let (said, good) = with(&format!("{driver} worker_connections 1100000"));
        assert!(!good && said.contains("worker_connections is 1100000"), "{driver}: {said}");
    }
    let events = "worker_connections 600000;".to_string();
    let many = server(&Setup { events, ..Setup::module() });
    assert!(serves(&many), "{}", many.log());
    assert_eq!(many.complaints(), [""; 0]);
}

/// The master has the accept queues of all workers: 8 for each of 5 sockets.
#[test]
fn accept_queues_leave_the_master_its_descriptors() {
    let listeners = "listen 127.0.0.1:{port2}; listen 127.0.0.1:{port3};
                     listen [::1]:{port}; listen [::1]:{port2};";
    let shared = "the workers share one queue for each socket";
    for (soft, hard, warnings) in [(64, 4096, 0), (64, 64, 1)] {
        let descriptors = Some((soft, hard));
        let main = "worker_rlimit_nofile 64;".to_string();
        let (server_text, events) = (listeners.to_string(), "worker_connections 32;".to_string());
        let setup = Setup { workers: 8, main, events, descriptors, ..Setup::module() };
        let nginx = server(&Setup { server: server_text, ..setup });
        assert_eq!(lines_with(&nginx, shared), warnings, "{soft} {hard}: {}", nginx.log());
        for _ in 0..40 {
            assert!(serves(&nginx), "{soft} {hard}: {}", nginx.log());
        }
        nginx.reload().unwrap();
        assert!(serves(&nginx), "{soft} {hard}: {}", nginx.log());
        assert_eq!(lines_with(&nginx, "mp_partition() failed"), 0, "{}", nginx.log());
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}
