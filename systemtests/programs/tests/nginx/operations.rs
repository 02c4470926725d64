//! Tests of operators' actions on a running server, and of clients.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use systemtests_programs::TIME_LIMIT;
use systemtests_programs::http::{Client, exchange};
use systemtests_programs::nginx::{Nginx, Setup};
use testkit::eventually;

/// Configurations: with lightweight sockets or descriptors, on both drivers.
const WAYS: [&str; 3] = ["", "megapipe_lwsockets off;", "megapipe_driver epoll;"];

fn setup(events: &str) -> Setup {
    Setup { events: events.to_string(), ..Setup::module() }
}

/// Changes the configuration, and reloads it.
fn reconfigure(nginx: &Nginx, change: impl FnOnce(String) -> String) {
    let path = nginx.directory().join("nginx.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = change(text.clone());
    assert_ne!(changed, text);
    std::fs::write(&path, changed).unwrap();
    nginx.reload().unwrap();
}

/// Closes a connection with a reset.
fn reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (address, bytes) = (&raw const linger, size_of_val(&linger) as libc::socklen_t);
    // SAFETY: `linger` is readable for its size and outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            address.cast(),
            bytes,
        )
    };
    assert_eq!(rc, 0);
}

#[test]
fn readers_that_stall_do_not_stop_a_worker() {
    let asking = "location = /address { return 200 \"$server_addr\"; }";
    for (events, server) in
        WAYS.map(|preload_command| (preload_command, "")).into_iter().chain([("", asking)])
    {
        let setup = Setup { server: server.to_string(), ..setup(events) };
        let nginx = Nginx::start(&setup).unwrap();
        nginx.place("large", &vec![b'x'; 5_000_000]).unwrap();
        let stalled: Vec<Client> = (0..50)
            .map(|_| {
                let mut client = Client::connect(nginx.port()).unwrap();
                client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
                client.head().unwrap();
                client
            })
            .collect();
        for _ in 0..20 {
            let mut client = Client::connect(nginx.port()).unwrap();
            assert_eq!(client.get("/who").unwrap().status, 200, "{events} {server}");
        }
        // The stalled clients are still served.
        let mut late = stalled.into_iter().next().unwrap();
        assert_eq!(late.bytes(5_000_000).unwrap().len(), 5_000_000);
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn a_configuration_without_the_module_serves_all_new_connections() {
    let nginx = Nginx::start(&Setup { workers: 2, ..Setup::module() }).unwrap();
    let module = "ngx_megapipe_module.so;";
    let path = nginx.directory().join("nginx.conf");
    let with = std::fs::read_to_string(&path).unwrap();
    let load = with.lines().find(|line| line.contains(module)).unwrap().to_string();
    for _ in 0..2 {
        reconfigure(&nginx, |text| {
            let text = text.replace("$megapipe_driver $megapipe_socket", "none");
            text.replace(&load, "").replace("use megapipe;", "use epoll;")
        });
        for _ in 0..40 {
            let mut client = Client::connect(nginx.port()).unwrap();
            assert_eq!(client.get("/who").unwrap().status, 200);
        }
        reconfigure(&nginx, |_| with.clone());
        for _ in 0..40 {
            let mut client = Client::connect(nginx.port()).unwrap();
            assert_eq!(client.get("/who").unwrap().status, 200);
        }
    }
    assert_eq!(nginx.complaints(), [""; 0]);
    assert!(!nginx.log().contains("share the one accept queue"), "{}", nginx.log());
}

#[test]
fn a_worker_that_ends_with_an_open_resolver_does_not_complain() {
    for signal in [libc::SIGTERM, libc::SIGQUIT] {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let http = format!("resolver {}; resolver_timeout 1s;", silent.local_addr().unwrap());
        let server = "location /ask { proxy_pass http://$arg_name/; }".to_string();
        let mut nginx = Nginx::start(&Setup { http, server, ..Setup::module() }).unwrap();
        let mut client = Client::connect(nginx.port()).unwrap();
        assert_eq!(client.get("/ask?name=host.example").unwrap().status, 502);
        nginx.signal(signal).unwrap();
        assert!(nginx.wait().unwrap().success());
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn values_that_the_channel_would_refuse_are_refused_by_the_configuration_test() {
    for (directive, text) in [
        ("megapipe_completions 100;", "a power of two from 64 to 65536"),
        ("megapipe_completions 32;", "a power of two from 64 to 65536"),
        ("megapipe_completions 131072;", "a power of two from 64 to 65536"),
        ("megapipe_batch 0;", "1"),
        ("megapipe_batch 1025;", "1024"),
        ("megapipe_driver kqueue;", "kqueue"),
    ] {
        let error = Nginx::start(&setup(directive)).unwrap_err().to_string();
        assert!(error.contains("[emerg]") && error.contains(text), "{directive}: {error}");
    }
}

#[test]
fn a_proxied_response_goes_to_the_client_without_a_temporary_file() {
    for events in WAYS {
        let http = "proxy_buffering on;".to_string();
        let server = "location /proxied { proxy_pass http://127.0.0.1:{port}/origin; }".to_string();
        let nginx = Nginx::start(&Setup { http, server, ..setup(events) }).unwrap();
        let content: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
        nginx.place("origin", &content).unwrap();
        let mut client = Client::connect(nginx.port()).unwrap();
        for _ in 0..100 {
            let response = client.get("/proxied").unwrap();
            assert!(response.body == content, "{events}");
        }
        let spilled = nginx.log().matches("buffered to a temporary file").count();
        assert!(spilled <= 2, "{events}: {spilled} of 100 went to a file");
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn one_worker_gets_all_datagrams_of_a_client() {
    for events in ["", "megapipe_driver epoll;"] {
        let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = echo.local_addr().unwrap();
        let main = format!(
            "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n\
             stream {{ server {{ listen 127.0.0.1:{{port2}} udp; proxy_pass {address}; \
             proxy_timeout 5s; }} }}"
        );
        let nginx = Nginx::start(&Setup { workers: 2, main, ..setup(events) }).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(("127.0.0.1", nginx.ports()[1])).unwrap();
        echo.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let mut sources = BTreeSet::new();
        let mut room = [0; 64];
        for _ in 0..100 {
            client.send(b"x").unwrap();
            // A session of nginx has one socket to the server.
            sources.insert(echo.recv_from(&mut room).unwrap().1);
        }
        assert_eq!(sources.len(), 1, "{events}");
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn connections_that_are_reset_count_as_handled() {
    for events in WAYS {
        let server = "location = /status { stub_status; }".to_string();
        let nginx = Nginx::start(&Setup { server, ..setup(events) }).unwrap();
        for _ in 0..300 {
            reset(&TcpStream::connect(("127.0.0.1", nginx.port())).unwrap());
        }
        let counts = || {
            let answer = Client::connect(nginx.port()).unwrap().get("/status").unwrap();
            let text = String::from_utf8(answer.body).unwrap();
            let numbers = text.lines().nth(2).unwrap().split_whitespace();
            numbers.map(|word| word.parse::<u64>().unwrap()).collect::<Vec<u64>>()
        };
        let balanced = || matches!(counts()[..], [accepted, handled, _] if accepted == handled);
        assert!(eventually(TIME_LIMIT, balanced), "{events}: {:?}", counts());
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn more_workers_than_cpus_all_serve() {
    let cpus = thread::available_parallelism().unwrap().get() as u32;
    for affinity in ["", "worker_cpu_affinity auto;"] {
        let workers = 2 * cpus;
        let main = affinity.to_string();
        let nginx = Nginx::start(&Setup { workers, main, ..Setup::module() }).unwrap();
        let mut serving = BTreeSet::new();
        let all = || {
            let answer = exchange(
                nginx.port(),
                b"GET /who HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
            );
            let text = String::from_utf8(answer.unwrap()).unwrap();
            serving.insert(text.rsplit("\r\n").next().unwrap().to_string());
            serving.len() == workers as usize
        };
        // Clients on all CPUs.
        assert!(eventually(TIME_LIMIT, all), "{affinity} {serving:?}");
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn a_table_of_descriptors_that_is_full_makes_clients_wait() {
    for events in WAYS {
        let main = "worker_rlimit_nofile 64;".to_string();
        let nginx = Nginx::start(&Setup { main, ..setup(events) }).unwrap();
        nginx.place("f", b"0123456789").unwrap();
        let clients: Vec<TcpStream> = (0..200)
            .map(|_| {
                let mut stream = TcpStream::connect(("127.0.0.1", nginx.port())).unwrap();
                let close = b"GET /who HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
                stream.write_all(close).unwrap();
                stream
            })
            .collect();
        let mut served = 0;
        for mut stream in clients {
            stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            let mut text = String::new();
            if std::io::Read::read_to_string(&mut stream, &mut text).is_ok() {
                served += usize::from(text.starts_with("HTTP/1.1 200"));
            }
        }
        assert_eq!(served, 200, "{events}: {}", nginx.log());
    }
}

#[test]
fn nothing_listens_twice() {
    // A server's port is free again after its end, with all its accept queues.
    for workers in [1, 2] {
        let mut nginx = Nginx::start(&Setup { workers, ..Setup::module() }).unwrap();
        let port = nginx.port();
        nginx.signal(libc::SIGTERM).unwrap();
        assert!(nginx.wait().unwrap().success());
        assert!(TcpListener::bind(("127.0.0.1", port)).is_ok());
    }
}
