//! Tests of masters and workers: reloading, ending, dying, and sharing the listeners.

use crate::assert_lightweight;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use systemtests_programs::http::{Client, exchange};
use systemtests_programs::nginx::{Nginx, Setup};
use systemtests_programs::{Daemon, TIME_LIMIT, send_signal};
use testkit::eventually;

fn two_workers() -> Setup {
    Setup { workers: 2, ..Setup::module() }
}

/// Returns the worker that answers a new connection.
fn answering(port: u16) -> String {
    let answer =
        exchange(port, b"GET /who HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let text = String::from_utf8(answer).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    text.rsplit("\r\n").next().unwrap().to_string()
}

/// Binds the thread to one CPU; false if the machine does not have it.
fn pin_to(cpu: usize) -> bool {
    sys::cpus::pin_to(cpu).is_ok()
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes short connections from several threads while `disturb` runs; returns how many were served.
fn under_load(port: u16, disturb: impl FnOnce()) -> u64 {
    let done = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Each thread makes at least one, even if `disturb` ends before the thread has
                // begun.
                loop {
                    answering(port);
                    served.fetch_add(1, Ordering::Relaxed);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        // Stops the clients even if this function fails; they would never end otherwise.
        let _stop = Stop(&done);
        disturb();
    });
    served.into_inner()
}

#[test]
fn no_request_fails_while_the_configuration_is_read_again() {
    for setup in [Setup::module(), two_workers()] {
        let nginx = Nginx::start(&setup).unwrap();
        let served = under_load(nginx.port(), || {
            for _ in 0..6 {
                nginx.reload().unwrap();
            }
        });
        assert!(served > 6, "{served}");
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn more_or_fewer_workers_after_a_reload_serve_all_queues() {
    let nginx = Nginx::start(&two_workers()).unwrap();
    let path = nginx.directory().join("nginx.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    for workers in [3, 1, 2] {
        let changed = text.replace("worker_processes 2", &format!("worker_processes {workers}"));
        std::fs::write(&path, changed).unwrap();
        under_load(nginx.port(), || {
            let old = nginx.workers();
            nginx.signal(libc::SIGHUP).unwrap();
            let renewed = || {
                let now = nginx.workers();
                now.len() == workers && now.iter().all(|id| !old.contains(id))
            };
            assert!(eventually(TIME_LIMIT, renewed), "{workers} workers: {:?}", nginx.workers());
        });
    }
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn partitioning_can_be_switched_off_and_on_by_a_reload() {
    let events = "megapipe_partition on;".to_string();
    let nginx = Nginx::start(&Setup { events, ..two_workers() }).unwrap();
    let path = nginx.directory().join("nginx.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    for state in ["off", "on"] {
        let changed = text.replace("megapipe_partition on", &format!("megapipe_partition {state}"));
        std::fs::write(&path, changed).unwrap();
        under_load(nginx.port(), || nginx.reload().unwrap());
        for _ in 0..20 {
            answering(nginx.port());
        }
    }
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn a_graceful_end_finishes_what_runs() {
    let server = "limit_rate 400k;".to_string();
    let mut nginx = Nginx::start(&Setup { server, ..Setup::module() }).unwrap();
    let content = vec![b'z'; 600_000];
    nginx.place("slow", &content).unwrap();
    let mut running = Client::connect(nginx.port()).unwrap();
    running.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    running.head().unwrap();
    nginx.signal(libc::SIGQUIT).unwrap();
    let refused = || Client::connect(nginx.port()).is_err();
    assert!(eventually(TIME_LIMIT, refused), "the listener is closed first");
    assert!(running.rest().unwrap() == content, "what ran was cut off");
    assert!(nginx.wait().unwrap().success());
    assert_eq!(nginx.complaints(), [""; 0]);
    assert!(nginx.log().contains("megapipe: connections: "), "{}", nginx.log());
}

/// Sets the soft limit of descriptors of a process.
fn limit_descriptors(process: u32, descriptors: u64) {
    let process = process.cast_signed();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let (what, none) = (libc::RLIMIT_NOFILE, std::ptr::null());
    // SAFETY: the kernel writes the two numbers, for which there is room.
    assert_eq!(unsafe { libc::prlimit(process, what, none, &raw mut limit) }, 0);
    limit.rlim_cur = descriptors;
    // SAFETY: the kernel reads the two numbers.
    let result = unsafe { libc::prlimit(process, what, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Without descriptors the worker pauses accepting, so clients wait in the accept queue when the
/// worker is asked to end; by then there are descriptors again. Over epoll, because an accept of
/// io_uring keeps the limit of its submission.
#[test]
fn a_graceful_end_serves_those_that_wait_in_the_queue() {
    let events = "megapipe_driver epoll;".to_string();
    let main = "# no worker_rlimit_nofile\n".to_string();
    let mut nginx = Nginx::start(&Setup { events, main, ..Setup::module() }).unwrap();
    let worker = nginx.workers()[0];
    limit_descriptors(worker, nginx.descriptors() as u64 + 10);
    let silent: Vec<Client> = (0..20).map(|_| Client::connect(nginx.port()).unwrap()).collect();
    let failures = || nginx.log().matches("accept() through the channel failed").count();
    assert!(eventually(TIME_LIMIT, || failures() >= 6), "{}", nginx.log());
    let ask = |_| {
        let mut client = Client::connect(nginx.port()).unwrap();
        client.send("GET /who HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
        client
    };
    let clients: Vec<Client> = (0..10).map(ask).collect();
    // A half-open handshake is not in the queue yet, and is reset.
    testkit::await_handshakes(nginx.port());
    limit_descriptors(worker, 1000);
    nginx.signal(libc::SIGQUIT).unwrap();
    for mut client in clients {
        assert_eq!(client.response().unwrap().status, 200, "{}", nginx.log());
    }
    drop(silent);
    assert!(nginx.wait().unwrap().success());
}

/// The ring's table has room for `worker_connections` whatever the soft limit of descriptors is.
/// The hard limit bounds it; then clients wait until others have closed.
#[test]
fn the_table_of_lightweight_sockets_is_as_large_as_the_hard_limit_allows() {
    let socket = |nginx: &Nginx| {
        let answer = Client::connect(nginx.port()).unwrap().get("/socket").unwrap();
        String::from_utf8(answer.body).unwrap()
    };
    let events = "megapipe_driver uring;";
    let main = "worker_rlimit_nofile 64;".to_string();
    let nginx = Nginx::start(&Setup { main, events: events.into(), ..Setup::module() }).unwrap();
    assert_lightweight(3, "uring lightweight", || socket(&nginx));
    let ask = |_| {
        let mut client = Client::connect(nginx.port()).unwrap();
        client.send("GET /who HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        client
    };
    let clients: Vec<Client> = (0..150).map(ask).collect();
    // No client closes before the table is full.
    let is_full = || nginx.log().contains("all lightweight sockets are in use");
    assert!(eventually(TIME_LIMIT, is_full), "{}", nginx.log());
    for mut client in clients {
        assert_eq!(client.response().unwrap().status, 200, "{}", nginx.log());
    }

    let (events, main) = (format!("{events} worker_connections 300;"), "# no worker_rlimit_nofile");
    let setup = Setup { events, main: main.to_string(), ..Setup::module() };
    let nginx = Nginx::start(&setup).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", nginx.workers()[0])).unwrap();
    let master = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    limit_descriptors(master.trim().parse().unwrap(), 200);
    nginx.reload().unwrap();
    assert_lightweight(3, "uring lightweight", || socket(&nginx));
    let mut clients: Vec<Client> =
        (0..250).map(|_| Client::connect(nginx.port()).unwrap()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/who").unwrap().status, 200, "{}", nginx.log());
    }
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", nginx.workers()[0])).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("200"), "the limit is as it was");
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn a_worker_that_is_killed_is_replaced_and_its_queue_served() {
    let nginx = Nginx::start(&two_workers()).unwrap();
    for _ in 0..2 {
        let before = nginx.workers();
        let victim = before[0];
        // SAFETY: kill(2) takes numbers only; the worker is a child of the server that this test
        // started.
        assert_eq!(unsafe { libc::kill(victim.cast_signed(), libc::SIGKILL) }, 0);
        let replaced = || {
            let now = nginx.workers();
            now.len() == 2 && !now.contains(&victim)
        };
        assert!(eventually(TIME_LIMIT, replaced));
        for _ in 0..40 {
            answering(nginx.port());
        }
    }
}

/// A worker that is stopped or blocked, or that has ended while the master has no descriptors for
/// another one, leaves its clients to the worker behind it.
#[test]
fn clients_of_a_worker_that_does_not_run_are_served_by_another() {
    for events in ["", "megapipe_driver epoll;"] {
        let (events, main) = (events.to_string(), "# no worker_rlimit_nofile\n".to_string());
        let nginx = Nginx::start(&Setup { events, main, ..two_workers() }).unwrap();
        let [victim, other] = nginx.workers()[..] else { panic!("{:?}", nginx.workers()) };
        let all_by_other = || {
            for answers in [answering_on(0, nginx.port()), answering_on(1, nginx.port())] {
                let expected = BTreeSet::from([other.to_string()]);
                assert!(answers.is_none_or(|answers| answers == expected), "{}", nginx.log());
            }
        };
        send_signal(victim, libc::SIGSTOP).unwrap();
        // Until it has stopped it could accept.
        let status = || std::fs::read_to_string(format!("/proc/{victim}/status")).unwrap();
        assert!(eventually(TIME_LIMIT, || status().contains("State:\tT")), "{}", status());
        all_by_other();
        send_signal(victim, libc::SIGCONT).unwrap();
        let apart = || {
            let answers = [answering_on(0, nginx.port()), answering_on(1, nginx.port())];
            answers[1].is_none() || answers[0] != answers[1]
        };
        assert!(eventually(TIME_LIMIT, apart), "{}", nginx.log());

        limit_descriptors(nginx.id(), 3);
        send_signal(victim, libc::SIGKILL).unwrap();
        assert!(eventually(TIME_LIMIT, || nginx.workers() == [other]), "{:?}", nginx.workers());
        all_by_other();
    }
}

#[test]
fn each_of_two_workers_serves_the_clients_of_its_cpus() {
    let nginx = Nginx::start(&two_workers()).unwrap();
    assert_each_cpu_has_its_worker(nginx.port());
}

/// Returns the workers that answer clients on a CPU; `None` if the machine does not have it.
fn answering_on(cpu: usize, port: u16) -> Option<BTreeSet<String>> {
    let clients =
        thread::spawn(move || pin_to(cpu).then(|| (0..20).map(|_| answering(port)).collect()));
    clients.join().unwrap()
}

fn assert_each_cpu_has_its_worker(port: u16) {
    let (first, second) = (answering_on(0, port), answering_on(1, port));
    let first = first.expect("CPU 0 is there");
    assert_eq!(first.len(), 1, "one worker has the CPU: {first:?}");
    if let Some(second) = second {
        assert_eq!(second.len(), 1, "one worker has the CPU: {second:?}");
        assert_ne!(first, second, "each CPU has a worker of its own");
    }
}

#[test]
fn other_ways_to_share_a_listener_work_too() {
    for (events, listen) in [
        ("megapipe_partition off;", ""),
        ("accept_mutex on; accept_mutex_delay 50ms;", ""),
        ("multi_accept on;", ""),
        ("debug_connection 127.0.0.1;", ""),
        ("", "listen 127.0.0.1:{port2} reuseport; listen 127.0.0.1:{port3} deferred;"),
    ] {
        let setup =
            Setup { events: events.to_string(), server: listen.to_string(), ..two_workers() };
        let nginx = Nginx::start(&setup).unwrap();
        under_load(nginx.port(), || nginx.reload().unwrap());
        assert_eq!(nginx.complaints(), [""; 0], "{events} {listen}");
    }
}

#[test]
fn a_server_without_a_master_serves_and_ends() {
    for signal in [libc::SIGTERM, libc::SIGQUIT] {
        let main = "master_process off;".to_string();
        let mut nginx = Nginx::start(&Setup { main, ..Setup::module() }).unwrap();
        let served = under_load(nginx.port(), || {
            for _ in 0..50 {
                answering(nginx.port());
            }
        });
        assert!(served > 0);
        nginx.signal(signal).unwrap();
        assert!(nginx.wait().unwrap().success());
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn a_new_binary_takes_over_without_a_failed_request() {
    upgrade("megapipe_partition off;", |_| {});
}

#[test]
fn a_new_binary_takes_the_queues_of_the_workers_over() {
    for events in ["", "megapipe_driver epoll;"] {
        upgrade(events, |nginx| {
            assert!(!nginx.log().contains("[warn]"), "{}", nginx.log());
            assert_each_cpu_has_its_worker(nginx.port());
        });
    }
}

/// Starts a server with two workers as a daemon: nginx does not replace its binary in the
/// foreground.
fn daemon(events: &str) -> (Nginx, Daemon) {
    let events = events.to_string();
    let mut nginx = Nginx::start(&Setup { events, ..two_workers() }).unwrap();
    let daemon = Daemon::start(&mut nginx).unwrap();
    let started = || nginx.log().matches("megapipe: driver").count() >= 4;
    assert!(eventually(TIME_LIMIT, started), "{}", nginx.log());
    (nginx, daemon)
}

#[test]
fn a_new_binary_without_the_module_serves_when_the_old_one_has_ended() {
    let (nginx, old) = daemon("");
    let path = nginx.directory().join("nginx.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    let load = text.lines().find(|line| line.contains("ngx_megapipe_module.so;")).unwrap();
    let text = text.replace(load, "").replace("use megapipe;", "use epoll;");
    std::fs::write(&path, text.replace("$megapipe_driver $megapipe_socket", "none")).unwrap();
    let new = old.upgrade(&nginx).unwrap();
    old.signal(libc::SIGQUIT).unwrap();
    assert!(eventually(TIME_LIMIT, || !old.runs()), "{}", nginx.log());
    for _ in 0..40 {
        answering(nginx.port());
    }
    drop(new);
    assert_eq!(nginx.complaints(), [""; 0]);
}

/// Replaces the binary, twice, under load; calls `check` when only the new one runs.
fn upgrade(events: &str, check: impl Fn(&Nginx)) {
    let (nginx, mut old) = daemon(events);
    let log = || nginx.log();
    let started = |workers| log().matches("megapipe: driver").count() >= workers;
    for round in 1..=2 {
        let mut new = None;
        under_load(nginx.port(), || {
            new = Some(old.upgrade(&nginx).unwrap());
            assert!(eventually(TIME_LIMIT, || started(4 + 2 * round)), "{}", log());
            old.signal(libc::SIGWINCH).unwrap();
            let idle = || log().matches("megapipe: connections: ").count() >= 2 + 2 * round;
            assert!(eventually(TIME_LIMIT, idle), "the old workers stay: {}", log());
            old.signal(libc::SIGQUIT).unwrap();
            assert!(eventually(TIME_LIMIT, || !old.runs()), "{}", log());
        });
        for _ in 0..20 {
            answering(nginx.port());
        }
        check(&nginx);
        old = new.unwrap();
    }
    drop(old);
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn a_wrong_directive_is_named() {
    let events = "megapipe_batch 5000;".to_string();
    let error = Nginx::start(&Setup { events, ..Setup::module() }).unwrap_err().to_string();
    assert!(error.contains("megapipe_batch") || error.contains("between 1 and 1024"), "{error}");
}

/// A worker that is stopped finds new connections and the signal to end at once. It has accepted
/// them, so it serves them, although the kernel has not told their addresses yet.
#[test]
fn what_a_worker_accepts_at_its_end_is_served() {
    let nginx = Nginx::start(&Setup::module()).unwrap();
    for _ in 0..12 {
        let mut workers = Vec::new();
        let is_there = || {
            workers = nginx.workers();
            workers.len() == 1
        };
        assert!(eventually(TIME_LIMIT, is_there), "{}", nginx.log());
        let [worker] = workers[..] else { unreachable!() };
        send_signal(worker, libc::SIGSTOP).unwrap();
        let clients: Vec<Client> = (0..40)
            .map(|_| {
                let mut client = Client::connect(nginx.port()).unwrap();
                client.send("GET /who HTTP/1.0\r\n\r\n").unwrap();
                client
            })
            .collect();
        send_signal(worker, libc::SIGQUIT).unwrap();
        send_signal(worker, libc::SIGCONT).unwrap();
        for client in clients {
            let answer = client.rest().unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", nginx.log());
        }
        let is_gone = || !nginx.workers().contains(&worker);
        assert!(eventually(TIME_LIMIT, is_gone), "{}", nginx.log());
    }
    assert_eq!(nginx.complaints(), [""; 0]);
}
