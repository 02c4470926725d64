//! Tests of other addresses and prefixes of connections, and of bodies forwarded to an upstream.

use crate::{assert_lightweight, with};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use systemtests_programs::TIME_LIMIT;
use systemtests_programs::http::{Client, exchange};
use systemtests_programs::nginx::{Nginx, Setup};
use testkit::eventually;

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn ipv6_clients_are_served_and_known_by_their_address() {
    for (events, workers) in [("", 1), ("", 2), ("megapipe_driver epoll;", 1)] {
        let server = "listen [::1]:{port2};
             location = /peer { return 200 \"$remote_addr $server_addr $megapipe_socket\"; }";
        let setup = Setup { events: events.into(), workers, ..with(server) };
        let nginx = Nginx::start(&setup).unwrap();
        let [_, port, _] = nginx.ports();
        assert_lightweight(10, "::1 ::1 lightweight", || {
            let mut client = Client::connect_to(&format!("[::1]:{port}")).unwrap();
            let first = text(client.get("/peer").unwrap().body);
            assert_eq!(text(client.get("/peer").unwrap().body), first);
            first
        });
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

/// nginx asks the socket for the address to which the client has connected: for a redirect of a
/// client that names no host, and for the identifier of a user.
#[test]
fn a_client_of_a_wildcard_address_is_told_the_address() {
    for (module, events) in [(false, ""), (true, ""), (true, "megapipe_driver epoll;")] {
        let server = "listen *:{port2}; location = /moved { return 301 /to; }
                      location = /marked { userid on; return 204; }";
        let setup = Setup { module, events: events.into(), ..with(server) };
        let nginx = Nginx::start(&setup).unwrap();
        let [_, port, _] = nginx.ports();
        let ask = |request: &str| text(exchange(port, request.as_bytes()).unwrap());
        for _ in 0..10 {
            let moved = ask("GET /moved HTTP/1.0\r\n\r\n");
            let expected = format!("\r\nLocation: http://127.0.0.1:{port}/to\r\n");
            assert!(moved.contains(&expected), "{module} {events}: {moved}");
            let marked = ask("GET /marked HTTP/1.0\r\n\r\n");
            assert!(marked.contains("\r\nSet-Cookie: uid="), "{module} {events}: {marked}");
        }
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn the_proxy_protocol_tells_the_client_behind_the_proxy() {
    let nginx = Nginx::start(&with(
        "listen 127.0.0.1:{port2} proxy_protocol;
         location = /peer { return 200 \"$proxy_protocol_addr $remote_addr\"; }",
    ))
    .unwrap();
    let [_, port, _] = nginx.ports();
    let mut client = Client::connect(port).unwrap();
    client.send("PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\n").unwrap();
    for _ in 0..2 {
        assert_eq!(text(client.get("/peer").unwrap().body), "192.0.2.7 127.0.0.1");
    }
    let mut without = Client::connect(port).unwrap();
    assert!(without.get("/peer").is_err(), "there must be a header of the proxy");
    assert_eq!(nginx.complaints(), [""; 0]);
}

/// Returns the head of a request, and the bytes received after it.
fn head_of(stream: &mut TcpStream) -> (String, Vec<u8>) {
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let mut got = Vec::new();
    let mut room = [0; 4096];
    loop {
        let count = stream.read(&mut room).unwrap();
        assert!(count > 0, "no whole head: {got:?}");
        got.extend_from_slice(&room[..count]);
        if let Some(at) = got.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = got.split_off(at + 4);
            return (text(got), rest);
        }
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Returns the bytes of a complete chunked body; `None` if it is incomplete.
fn unchunked(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = bytes.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).ok()?, 16).ok()?;
        body.extend_from_slice(bytes.get(line + 2..line + 2 + size)?);
        bytes = bytes.get(line + 2 + size + 2..)?;
        if size == 0 {
            return Some(body);
        }
    }
}

#[test]
fn a_chunked_upload_reaches_an_upstream_whole() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let nginx = Nginx::start(&with(&format!(
        "client_max_body_size 64m; client_body_buffer_size 16k; proxy_http_version 1.1;
         location /buffered {{ proxy_pass http://{address}; }}
         location /streamed {{ proxy_pass http://{address}; proxy_request_buffering off; }}"
    )))
    .unwrap();
    let body: Vec<u8> = (0..500_000_u32).map(|n| (n.wrapping_mul(13) >> 2) as u8).collect();
    let expected = body.clone();
    let answering = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = upstream.accept().unwrap();
            let (head, mut got) = head_of(&mut stream);
            let chunked = head.contains("Transfer-Encoding: chunked");
            let whole = |got: &[u8]| match chunked {
                true => unchunked(got),
                false => (got.len() == expected.len()).then(|| got.to_vec()),
            };
            let mut room = [0; 65536];
            let arrived = loop {
                if let Some(body) = whole(&got) {
                    break body;
                }
                let count = stream.read(&mut room).unwrap();
                assert!(count > 0, "the upload ended after {} bytes", got.len());
                got.extend_from_slice(&room[..count]);
            };
            assert!(arrived == expected, "what arrived is not what was sent");
            stream.write_all(OK).unwrap();
        }
    });
    for path in ["/buffered", "/streamed"] {
        let mut client = Client::connect(nginx.port()).unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(head).unwrap();
        for (number, part) in body.chunks(7_777).enumerate() {
            client.send(format!("{:x}\r\n", part.len())).unwrap();
            client.send(part).unwrap();
            client.send("\r\n").unwrap();
            if number % 16 == 0 {
                thread::yield_now();
            }
        }
        client.send("0\r\n\r\n").unwrap();
        assert_eq!(client.response().unwrap().body, b"ok", "{path}");
        assert_eq!(client.get("/who").unwrap().status, 200, "the connection goes on");
    }
    answering.join().unwrap();
    assert_eq!(nginx.complaints(), [""; 0]);
}

/// Returns how many received bytes the program has not read from an IPv4 connection that it has not
/// closed; `None` if there is no such connection.
fn unread_bytes(local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let hexadecimal = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => {
            format!("{:08X}:{:04X}", u32::from_ne_bytes(v4.ip().octets()), v4.port())
        }
        SocketAddr::V6(_) => panic!("{address} is not IPv4"),
    };
    let ends = [hexadecimal(local), hexadecimal(remote)];
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // ESTABLISHED or CLOSE_WAIT.
        let is_it = words.get(1..3)? == ends && ["01", "08"].contains(words.get(3)?);
        let (_, unread) = words.get(4)?.split_once(':')?;
        is_it.then(|| u64::from_str_radix(unread, 16).unwrap())
    })
}

/// nginx shuts a connection down as soon as it has submitted the whole response, if the client has
/// sent more. The data that the channel still has in flight must be sent completely.
#[test]
fn a_response_that_ends_late_is_whole_although_the_client_has_sent_more() {
    const HEAD: &[u8] = b"HTTP/1.0 200 OK\r\n\r\n";
    // Whole buffers of nginx, because otherwise the end of the response is sent with bytes.
    const BYTES: usize = 14 * 4096 - HEAD.len();
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let nginx = Nginx::start(&with(&format!(
        "listen 127.0.0.1:{{port2}} sndbuf=8k;
         location /late {{ proxy_pass http://{address}; }}"
    )))
    .unwrap();
    let [_, port, _] = nginx.ports();
    let body: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
    let expected = body.clone();
    let (more_was_sent, wait) = std::sync::mpsc::channel();
    let (addresses, upstream_of_nginx) = std::sync::mpsc::channel();
    let answering = thread::spawn(move || {
        let (mut stream, _) = upstream.accept().unwrap();
        head_of(&mut stream);
        stream.write_all(HEAD).unwrap();
        stream.write_all(&body).unwrap();
        addresses.send((stream.peer_addr().unwrap(), stream.local_addr().unwrap())).unwrap();
        wait.recv_timeout(TIME_LIMIT).unwrap();
    });
    // A small buffer, so that most of the response is in flight in the worker.
    let domain = socket2::Domain::IPV4;
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let mut client = TcpStream::from(socket);
    client.write_all(b"GET /late HTTP/1.0\r\nHost: t\r\n\r\n").unwrap();
    let (_, mut got) = head_of(&mut client);
    // One after the other: nginx has read the whole response, then what the client has sent more,
    // then the end of the response.
    let (its_end, our_end) = upstream_of_nginx.recv_timeout(TIME_LIMIT).unwrap();
    assert!(eventually(TIME_LIMIT, || unread_bytes(its_end, our_end) == Some(0)));
    client.write_all(b"GET /more HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let (server_end, client_end) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
    assert!(eventually(TIME_LIMIT, || unread_bytes(server_end, client_end) == Some(0)));
    more_was_sent.send(()).unwrap();
    answering.join().unwrap();
    assert!(eventually(TIME_LIMIT, || unread_bytes(its_end, our_end).is_none()));
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), BYTES, "the response was cut off");
    assert!(got == expected);
    assert_eq!(nginx.complaints(), [""; 0]);
}

/// Returns the resident memory of a process, in KiB.
fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn uploads_that_an_upstream_does_not_take_hold_up_nobody_else() {
    const UPLOADS: usize = 40;
    const BYTES: usize = 20_000_000;
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let nginx = Nginx::start(&with(&format!(
        "client_max_body_size 64m;
         location /up {{ proxy_pass http://{address}; proxy_request_buffering off;
                         proxy_http_version 1.1; }}"
    )))
    .unwrap();
    nginx.place("f", b"0123456789").unwrap();
    let before_kib = resident_kib(nginx.workers()[0]);
    let mut uploading = Vec::new();
    let mut held = Vec::new();
    for _ in 0..UPLOADS {
        let mut client = Client::connect(nginx.port()).unwrap();
        let head = format!("POST /up HTTP/1.1\r\nHost: t\r\nContent-Length: {BYTES}\r\n\r\n");
        client.send(head).unwrap();
        uploading.push(thread::spawn(move || {
            client.send(vec![b'u'; BYTES]).unwrap();
            client.response().unwrap().body
        }));
        // Accepted, but not read from.
        held.push(upstream.accept().unwrap().0);
    }
    for _ in 0..100 {
        let mut other = Client::connect(nginx.port()).unwrap();
        assert_eq!(other.get("/f").unwrap().body, b"0123456789");
    }
    let grown_kib = || resident_kib(nginx.workers()[0]).saturating_sub(before_kib);
    assert!(grown_kib() < 64 * 1024, "{} KiB more", grown_kib());
    // Closes all but the first two, whose bytes must all arrive.
    for mut stream in held.drain(2..) {
        let (head, _) = head_of(&mut stream);
        assert!(head.starts_with("POST /up "));
        stream.write_all(OK).unwrap();
    }
    for stream in &mut held {
        let (_, rest) = head_of(stream);
        let mut left = BYTES - rest.len();
        let mut room = vec![0; 65536];
        while left > 0 {
            let count = stream.read(&mut room).unwrap();
            assert!(count > 0 && room[..count].iter().all(|byte| *byte == b'u'), "{left} left");
            left -= count;
        }
        stream.write_all(OK).unwrap();
    }
    let mut answers = uploading.into_iter().map(thread::JoinHandle::join);
    for _ in 0..2 {
        assert_eq!(answers.next().unwrap().unwrap(), b"ok");
    }
    // Uploads whose upstream answered early are cut off or answered, but none hangs.
    assert_eq!(answers.count(), UPLOADS - 2);
    assert_eq!(nginx.complaints(), [""; 0]);
}
