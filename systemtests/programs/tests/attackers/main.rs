//! Tests servers under many attackers at once: silent connections, slow bytes, requests whose
//! answers are never read, half handshakes and resets, beside an honest client whose requests must
//! all be answered.
//!
//! Each server runs on the kernel's sockets in a network namespace of its own. Nothing asserts how
//! long an answer takes, except that it comes within a minute. No server ends an attacker in that
//! time, so that an honest client cannot be served only because of that.
//!
//! iobench's `blocking-pool` is left out: 16 peers for each CPU that do not read stop it, as its
//! documentation says. `systemtests/tcp/tests/interop/crowd.rs` attacks the user-level TCP, and
//! `systemtests/flows/tests/users` the daemon.

mod attack;
mod tls;

use attack::{Attack, Attackers, Requests, echo, honest};
use std::io;
use std::net::TcpStream;
use std::process::Command;
use systemtests_programs::http::Client;
use systemtests_programs::memcached::{self, Build, Memcached};
use systemtests_programs::nginx::{self, Nginx, Setup};
use testkit::process::{Guard, await_port, program};
use testkit::{Namespace, can_make_networks};

/// Connections of the honest client, one after the other.
const HONEST_CONNECTIONS: usize = 20;

/// Bytes of the answers that attackers request.
const LARGE_BYTES: usize = 900_000;

/// Whether this test can run; if not, skips it with the reason.
fn can_run(test: &str) -> bool {
    can_make_networks(test, &[("ip", "iproute2")])
}

/// A connection whose attacker needs no preparation.
fn plain(stream: TcpStream) -> io::Result<Requests> {
    Ok(Box::new(stream))
}

fn attack_on_echo(port: u16) -> Attack {
    let (slow, half) = (&b"slow"[..], b"half".to_vec());
    Attack { port, slow, greedy: vec![b'g'; 64 << 10], half, prepare: Box::new(plain) }
}

fn attack_an_echo_server(server: &str) {
    if !can_run(&format!("echo::{server}")) {
        return;
    }
    let network = Namespace::new();
    let mut command = Command::new(program("iobench"));
    command.args(["serve", "--server", server, "--bind", "7000", "--cores", "2"]);
    let mut serving = Guard::spawn_in(&network, command);
    await_port(&network, "127.0.0.1", 7000, &mut serving);
    network.run(|| {
        Attackers::start(attack_on_echo(7000)).run(|port| {
            for _ in 0..HONEST_CONNECTIONS {
                echo(honest(port));
            }
        });
        echo(honest(7000));
    });
    assert!(serving.end(libc::SIGINT).success(), "{server} failed");
}

/// Makes a test of each of iobench's servers.
macro_rules! echo_servers {
    ($($name:ident: $server:literal,)+) => {
        mod echo {
            $(#[test]
            fn $name() {
                super::attack_an_echo_server($server);
            })+
        }
    };
}

echo_servers! {
    megapipe: "megapipe",
    megapipe_epoll: "megapipe-epoll",
    megapipe_stealing: "megapipe-stealing",
    megapipe_p: "megapipe-p",
    megapipe_pb: "megapipe-pb",
    epoll: "epoll",
    epoll_partitioned: "epoll-partitioned",
    epoll_edge: "epoll-edge",
    poll: "poll",
    select: "select",
    thread: "thread",
    process: "process",
}

#[test]
fn tls_proxy_serves_beside_attackers() {
    if !can_run("tls_proxy_serves_beside_attackers") {
        return;
    }
    let network = Namespace::new();
    let identity = tls::Identity::new();
    let mut echoing = Command::new(program("iobench"));
    echoing.args(["serve", "--server", "epoll", "--bind", "7000"]);
    let mut echoing = Guard::spawn_in(&network, echoing);
    await_port(&network, "127.0.0.1", 7000, &mut echoing);
    let mut proxy = Command::new(program("tls-proxy"));
    proxy.args(["--listen", "127.0.0.1:7443", "--to", "127.0.0.1:7000", "--driver", "auto"]);
    proxy.arg("--certificate").arg(identity.certificate()).arg("--key").arg(identity.key());
    let mut proxy = Guard::spawn_in(&network, proxy);
    await_port(&network, "127.0.0.1", 7443, &mut proxy);
    let settings = identity.client();
    network.run(|| {
        let attacker = settings.clone();
        let attack = Attack {
            slow: b"\x16\x03\x01\x02\x00\x01",
            half: tls::client_hello(&settings)[..100].to_vec(),
            prepare: Box::new(move |stream| Ok(Box::new(tls::attacker(&attacker, stream)?))),
            ..attack_on_echo(7443)
        };
        Attackers::start(attack).run(|port| {
            for _ in 0..HONEST_CONNECTIONS {
                echo(tls::client(&settings, honest(port)));
            }
        });
        echo(tls::client(&settings, honest(7443)));
    });
    assert!(proxy.end(libc::SIGTERM).success(), "the proxy failed");
}

/// The time-outs of nginx for silent and slow clients, which are far longer than the test.
const NGINX_TIMEOUTS: &str =
    "client_header_timeout 600s; client_body_timeout 600s; send_timeout 600s;";

#[test]
fn nginx_serves_beside_attackers_over_uring() {
    attack_nginx("nginx_serves_beside_attackers_over_uring", "uring");
}

#[test]
fn nginx_serves_beside_attackers_over_epoll() {
    attack_nginx("nginx_serves_beside_attackers_over_epoll", "epoll");
}

fn attack_nginx(test: &str, driver: &str) {
    if !can_run(test) {
        return;
    }
    nginx::built_module("").unwrap();
    Namespace::new().run(|| {
        let (http, events) = (NGINX_TIMEOUTS.into(), format!("megapipe_driver {driver};"));
        let setup = Setup { workers: 2, http, events, ..Setup::module() };
        let nginx = Nginx::start(&setup).unwrap();
        let large = testkit::content(LARGE_BYTES);
        nginx.place("large", &large).unwrap();
        nginx.place("small", b"0123456789").unwrap();
        let workers = nginx.workers();
        let attack = Attack {
            port: nginx.port(),
            slow: b"GET /small HTTP/1.1\r\n",
            greedy: b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n".repeat(100),
            half: b"GET /large HTTP/1.1\r\nHost: te".to_vec(),
            prepare: Box::new(plain),
        };
        Attackers::start(attack).run(|port| {
            for _ in 0..HONEST_CONNECTIONS {
                let mut client = Client::connect(port).unwrap();
                assert_eq!(client.get("/small").unwrap().body, b"0123456789");
                assert!(client.get("/large").unwrap().body == large);
            }
        });
        assert_eq!(nginx.workers(), workers, "a worker ended: {}", nginx.log());
        assert_eq!(nginx.complaints(), [""; 0]);
    });
}

#[test]
fn memcached_serves_beside_attackers_over_uring() {
    attack_memcached("memcached_serves_beside_attackers_over_uring", "uring");
}

#[test]
fn memcached_serves_beside_attackers_over_epoll() {
    attack_memcached("memcached_serves_beside_attackers_over_epoll", "epoll");
}

fn attack_memcached(test: &str, driver: &'static str) {
    if !can_run(test) {
        return;
    }
    memcached::program(Build::Adapted(driver)).unwrap();
    Namespace::new().run(|| {
        // Room for the values of which the attackers send only a part.
        let options = ["-t", "2", "-m", "1024"];
        let server = Memcached::start(Build::Adapted(driver), None, &options).unwrap();
        let large = testkit::content(LARGE_BYTES);
        server.client(attack::TIME_LIMIT).unwrap().set("large", &large).unwrap();
        let attack = Attack {
            port: server.port(),
            slow: b"get slow-and-slower\r\n",
            greedy: b"get large\r\n".repeat(100),
            half: b"set half 0 0 900000\r\nhalf".to_vec(),
            prepare: Box::new(plain),
        };
        Attackers::start(attack).run(|_| {
            for round in 0..HONEST_CONNECTIONS {
                let mut client = server.client(attack::TIME_LIMIT).unwrap();
                let (key, value) = (format!("key{round}"), testkit::content(100 * round + 1));
                client.set(&key, &value).unwrap();
                assert_eq!(client.get(&key).unwrap(), Some(value));
                assert!(client.get("large").unwrap().as_ref() == Some(&large));
            }
        });
        let mut client = server.client(attack::TIME_LIMIT).unwrap();
        assert_eq!(client.get("half").unwrap(), None, "a part was stored");
    });
}
