//! Tests what depends on the client's address: the limit of handshakes, and the PROXY protocol.

use crate::backend;
use crate::client::{client, is_reset, over, read_all, say_goodbye, send};
use crate::site::{PEER, PROXY, PROXY_V6, Site, Testbed};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use testkit::process::{Guard, TIME_LIMIT, await_port};

/// The address of the honest client.
const OTHER_PEER: &str = "10.9.0.4";

/// Opens a connection from the other address of the peers.
fn connect_from_other_address(site: &Site) -> TcpStream {
    let socket = site.peers().run(|| {
        let (domain, kind) = (socket2::Domain::IPV4, socket2::Type::STREAM);
        let socket = socket2::Socket::new(domain, kind, None).expect("a socket");
        let at = |text: String| text.parse::<SocketAddr>().expect("an address").into();
        socket.bind(&at(format!("{OTHER_PEER}:0"))).expect("an address of the peers");
        socket.connect_timeout(&at(format!("{PROXY}:443")), TIME_LIMIT).expect("the proxy");
        socket
    });
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIME_LIMIT)).expect("a time-out");
    stream
}

pub(crate) fn one_address_does_not_hold_all_handshakes(testbed: Testbed) {
    let site = Site::new(testbed);
    let server = backend::serve(site.listen(80), 1, backend::echo);
    // Each of the two listening addresses accepts 20 connections at a time. The default limit
    // is a quarter of the 40.
    let (limit, words) = match testbed {
        Testbed::Epoll => (10, &[][..]),
        _ => (8, &["--handshakes-per-address", "8"][..]),
    };
    let others = ["--cores", "1", "--handshake-timeout", "600", "--max-connections", "40"];
    let proxy = site.proxy(&[&others[..], words].concat());
    let interface = if testbed == Testbed::Tap { "mtcp0" } else { "client" };
    site.peers().ip(&format!("addr add {OTHER_PEER}/24 dev {interface}"));
    // Connecting fails if the reset of a refused connection comes at once.
    let silent: Vec<_> = (0..30).map(|_| site.try_connect(&format!("{PROXY}:443"))).collect();
    let mut honest = over(&site, connect_from_other_address(&site));
    send(&mut honest, b"served");
    say_goodbye(&mut honest);
    assert_eq!(read_all(&mut honest), b"served");
    server.join().expect("the backend");
    let refused = silent.len() as u64 - limit;
    proxy.await_counts(&[("refused", refused), ("open", limit), ("handshakes", 1), ("whole", 1)]);
    // Connections that end make room for others of the address.
    drop(silent);
    proxy.await_counts(&[("failed", limit), ("open", 0)]);
    let _client = client(&site);
}

pub(crate) fn a_handshake_has_a_total_time_limit(testbed: Testbed) {
    let site = Site::new(testbed);
    let proxy = site.proxy(&["--handshake-timeout", "0.5"]);
    let mut slow = site.connect();
    let begin = Instant::now();
    // A record of 16 KiB, a byte at a time.
    let mut bytes = b"\x16\x03\x01\x40\x00\x01".iter().copied().chain(std::iter::repeat(0));
    let error = loop {
        assert!(begin.elapsed() < TIME_LIMIT, "it is never cut");
        let byte = bytes.next().expect("it is endless");
        if let Err(error) = slow.write_all(&[byte]) {
            break error;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let is_broken = error.kind() == std::io::ErrorKind::BrokenPipe;
    assert!(is_broken || is_reset(&error), "{error}");
    proxy.await_counts(&[("failed", 1), ("open", 0)]);
}

/// Starts a server of HTTP that requires the PROXY protocol, and answers with the addresses that
/// it was told.
fn start_backend(site: &Site, program: &str) -> Guard {
    let mut command = Command::new(program);
    let (file, directory) = (site.path("backend.conf"), site.path(""));
    let directory = directory.display();
    if program == "haproxy" {
        let settings = format!(
            "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 9s\n\
             frontend told\n bind {PEER}:80 accept-proxy\n \
             http-request return status 200 content-type text/plain \
             lf-string \"%[src] %[src_port] %[dst] %[dst_port].\"\n"
        );
        site.write("backend.conf", &settings);
        command.arg("-f").arg(file);
    } else {
        let settings = format!(
            "daemon off;\nmaster_process off;\npid {directory}/pid;\nerror_log {directory}/log;\n\
             events {{}}\nhttp {{ access_log off; client_body_temp_path {directory}/body;\n\
             proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;\n\
             uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;\n\
             server {{ listen {PEER}:80 proxy_protocol; location / {{ return 200 \
             \"$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr \
             $proxy_protocol_server_port.\"; }} }} }}\n"
        );
        site.write("backend.conf", &settings);
        command.arg("-c").arg(file);
    }
    let mut running = Guard::spawn_in(site.peers(), command);
    await_port(site.peers(), PEER, 80, &mut running);
    running
}

/// Asks the backend through the proxy which addresses it was told.
fn assert_told(site: &Site, proxy: &str) {
    let stream = site.connect_to(proxy);
    let (from, to) = (stream.local_addr().expect("bound"), stream.peer_addr().expect("connected"));
    let mut client = over(site, stream);
    send(&mut client, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = String::from_utf8(read_all(&mut client)).expect("it is text");
    let told = format!("{} {} {} {}.", from.ip(), from.port(), to.ip(), to.port());
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(&told), "{told}: {answer}");
}

pub(crate) fn backends_are_told_the_client(testbed: Testbed) {
    for program in ["haproxy", "nginx"] {
        let site = Site::new(testbed);
        let _backend = start_backend(&site, program);
        for version in ["v1", "v2"] {
            let proxy = site.proxy(&["--proxy-protocol", version]);
            for address in [format!("{PROXY}:443"), format!("[{PROXY_V6}]:443")] {
                assert_told(&site, &address);
            }
            assert_eq!(proxy.end().of("handshakes"), 2, "{program} {version}");
        }
    }
}

#[test]
fn without_a_header_such_a_backend_answers_nothing() {
    let site = Site::new(Testbed::Epoll);
    let _backend = start_backend(&site, "haproxy");
    let _proxy = site.proxy(&[]);
    let mut client = client(&site);
    send(&mut client, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    // The backend ends or resets the connection.
    let _ = std::io::Read::read_to_end(&mut client, &mut answer);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}
