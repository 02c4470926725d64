//! Tests of nginx with clients that are slow, faulty or many.

use crate::{server, with};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;
use systemtests_programs::http::Client;
use systemtests_programs::nginx::{Nginx, Setup};
use systemtests_programs::{TIME_LIMIT, send_signal};
use testkit::{content, eventually};

fn returns_to(nginx: &Nginx, descriptors: usize) {
    let back = || nginx.descriptors() <= descriptors;
    assert!(eventually(TIME_LIMIT, back), "{} of {descriptors}", nginx.descriptors());
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    for events in ["", "megapipe_driver epoll;"] {
        let nginx = server(&Setup {
            events: events.to_string(),
            server: "location /n/ { return 200 $uri; }".to_string(),
            ..Setup::module()
        });
        let mut client = Client::connect(nginx.port()).unwrap();
        let requests: String =
            (0..200).map(|n| format!("GET /n/{n} HTTP/1.1\r\nHost: t\r\n\r\n")).collect();
        client.send(requests).unwrap();
        for n in 0..200 {
            let body = client.response().unwrap().body;
            assert_eq!(String::from_utf8(body).unwrap(), format!("/n/{n}"));
        }
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn a_request_that_comes_byte_by_byte_is_answered() {
    let nginx = server(&Setup::module());
    let mut client = Client::connect(nginx.port()).unwrap();
    for byte in b"GET /f HTTP/1.1\r\nHost: test\r\nX-Long: value\r\n\r\n" {
        client.send([*byte]).unwrap();
        thread::yield_now();
    }
    assert_eq!(client.response().unwrap().body, b"0123456789");
    assert_eq!(client.get("/f").unwrap().status, 200, "and the connection goes on");
}

#[test]
fn a_slow_reader_gets_everything_and_does_not_hold_up_others() {
    let nginx = server(&Setup::module());
    let content: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    nginx.place("large", &content).unwrap();
    let mut slow = Client::connect(nginx.port()).unwrap();
    slow.send("GET /large HTTP/1.0\r\n\r\n").unwrap();
    let mut other = Client::connect(nginx.port()).unwrap();
    for _ in 0..50 {
        assert_eq!(other.get("/f").unwrap().status, 200);
    }
    slow.head().unwrap();
    assert!(slow.rest().unwrap() == content);
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn uploads_reach_an_upstream_whole_chunked_or_not() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let nginx = server(&with(&format!(
        "client_max_body_size 64m; client_body_buffer_size 16k;
         location /buffered {{ proxy_pass http://{address}; }}
         location /streamed {{ proxy_pass http://{address}; proxy_request_buffering off;
                               proxy_http_version 1.1; }}"
    )));
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(7) >> 3) as u8).collect();
    let expected = body.clone();
    let answering = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = upstream.accept().unwrap();
            stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            let mut got = Vec::new();
            let mut room = [0; 65536];
            let mut start = None;
            while start.is_none_or(|start| got.len() < start + expected.len()) {
                let count = stream.read(&mut room).unwrap();
                assert!(count > 0, "the upload ended after {} bytes", got.len());
                got.extend_from_slice(&room[..count]);
                let end = || got.windows(4).position(|four| four == b"\r\n\r\n");
                start = start.or_else(|| Some(end()? + 4));
            }
            assert!(got[start.unwrap()..] == expected[..], "what arrived is not what was sent");
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for path in ["/buffered", "/streamed"] {
        let mut client = Client::connect(nginx.port()).unwrap();
        let length = body.len();
        client
            .send(format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"))
            .unwrap();
        client.send(&body).unwrap();
        assert_eq!(client.response().unwrap().body, b"ok", "{path}");
    }
    answering.join().unwrap();
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn aborted_uploads_and_downloads_leave_nothing_behind() {
    let nginx = server(&with(
        "client_max_body_size 64m;
         location /up { proxy_pass http://127.0.0.1:{port}/f; }",
    ));
    nginx.place("large", &vec![b'x'; 5_000_000]).unwrap();
    let before = nginx.descriptors();
    for round in 0..60 {
        let mut client = Client::connect(nginx.port()).unwrap();
        if round % 2 == 0 {
            client.send("POST /up HTTP/1.1\r\nHost: t\r\nContent-Length: 5000000\r\n\r\n").unwrap();
            client.send(vec![b'y'; 30_000]).unwrap();
        } else {
            client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
            client.head().unwrap();
        }
        if round % 3 == 0 {
            client.stream().shutdown(Shutdown::Write).unwrap();
        }
    }
    assert_eq!(Client::connect(nginx.port()).unwrap().get("/f").unwrap().status, 200);
    returns_to(&nginx, before);
}

#[test]
fn two_thousand_connections_at_once_are_served() {
    let nginx = server(&Setup::module());
    let before = nginx.descriptors();
    let mut clients: Vec<Client> =
        (0..2_000).map(|_| Client::connect(nginx.port()).unwrap()).collect();
    for _ in 0..2 {
        for client in &mut clients {
            client.send("GET /f HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        }
        for client in &mut clients {
            assert_eq!(client.response().unwrap().body, b"0123456789");
        }
    }
    assert!(nginx.descriptors() < before + 100, "they are lightweight");
    drop(clients);
    returns_to(&nginx, before);
}

#[test]
fn clients_that_say_nothing_are_let_go() {
    let nginx = server(&with(
        "client_header_timeout 1s; keepalive_timeout 1s; client_body_timeout 1s;
         send_timeout 1s; reset_timedout_connection on;
         location /up { proxy_pass http://127.0.0.1:{port}/f; }",
    ));
    nginx.place("large", &vec![b'x'; 30_000_000]).unwrap();
    let before = nginx.descriptors();
    let silent = Client::connect(nginx.port()).unwrap();
    let mut served = None;
    // A client whose request was not read within its second is closed like the silent one.
    let heard = || {
        let mut client = Client::connect(nginx.port()).unwrap();
        let answer = client.get("/f");
        served = answer.ok().map(|answer| (client, answer.status));
        served.is_some()
    };
    assert!(eventually(TIME_LIMIT, heard), "{}", nginx.log());
    let (idle, status) = served.unwrap();
    assert_eq!(status, 200);
    let mut half = Client::connect(nginx.port()).unwrap();
    half.send("GET /f HT").unwrap();
    let mut body = Client::connect(nginx.port()).unwrap();
    body.send("POST /up HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n12").unwrap();
    let mut stuck = Client::connect(nginx.port()).unwrap();
    stuck.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    assert_eq!(silent.rest().unwrap(), b"");
    assert_eq!(idle.rest().unwrap(), b"");
    // Both get an answer or a reset; neither may hang.
    for client in [half, body] {
        let hangs = client.rest().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!hangs, "{}", nginx.log());
    }
    returns_to(&nginx, before);
    let rest = stuck.rest().map_or(0, |bytes| bytes.len());
    assert!(rest < 30_000_000, "the stuck reader was let go");
}

/// Output that a client did not take in time is discarded, and the client must not take the rest
/// for a complete answer: it gets a reset and no end of the stream.
#[test]
fn what_is_discarded_ends_with_a_reset() {
    for events in ["", "megapipe_lwsockets off;", "megapipe_driver epoll;"] {
        let setup = with("keepalive_requests 100000; send_timeout 1s;");
        let nginx = server(&Setup { events: events.to_string(), ..setup });
        nginx.place("small", &[b'x'; 4_000]).unwrap();
        let before = nginx.descriptors();
        let mut client = TcpStream::connect(("127.0.0.1", nginx.port())).unwrap();
        client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        client.write_all(&b"GET /small HTTP/1.1\r\nHost: t\r\n\r\n".repeat(5_000)).unwrap();
        let timed_out = || nginx.log().contains("client timed out");
        assert!(eventually(TIME_LIMIT, timed_out), "{events}: {}", nginx.log());
        let mut got = Vec::new();
        let end = client.read_to_end(&mut got).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset, "{events}: {} bytes", got.len());
        assert!(got.len() < 20_000_000, "{events}: nothing was left to discard");
        returns_to(&nginx, before);
    }
}

#[test]
fn a_client_that_half_closes_still_gets_its_answer() {
    let nginx = server(&Setup::module());
    let mut client = Client::connect(nginx.port()).unwrap();
    client.send("GET /f HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    client.stream().shutdown(Shutdown::Write).unwrap();
    let answer = client.rest().unwrap();
    assert!(answer.ends_with(b"\r\n\r\n0123456789"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn an_upgraded_connection_passes_bytes_both_ways() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let nginx = server(&with(&format!(
        "location /ws {{ proxy_pass http://{address}; proxy_http_version 1.1;
                         proxy_set_header Upgrade $http_upgrade;
                         proxy_set_header Connection upgrade; }}"
    )));
    let echoing = thread::spawn(move || {
        let (stream, _) = upstream.accept().unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let mut head = Vec::new();
        let mut one = [0];
        while !head.ends_with(b"\r\n\r\n") {
            reader.read_exact(&mut one).unwrap();
            head.push(one[0]);
        }
        let mut writer = stream;
        let answer = "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";
        writer.write_all(answer.as_bytes()).unwrap();
        std::io::copy(&mut reader, &mut writer).unwrap()
    });
    let mut client = Client::connect(nginx.port()).unwrap();
    client
        .send("GET /ws HTTP/1.1\r\nHost: t\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
        .unwrap();
    assert_eq!(client.head().unwrap().0, 101);
    let sent: Vec<u8> = (0..500_000_u32).map(|n| (n % 253) as u8).collect();
    let mut sender = client.stream().try_clone().unwrap();
    let bytes = sent.clone();
    let sending = thread::spawn(move || sender.write_all(&bytes).unwrap());
    assert!(client.bytes(sent.len()).unwrap() == sent, "what came back is not what was sent");
    sending.join().unwrap();
    // nginx ends a tunnel as soon as one side has ended.
    drop(client);
    assert_eq!(echoing.join().unwrap(), 500_000);
}

/// A stopped worker finds the request and the end at once, as a busy one does. Clients of `nc -N`
/// send both together, and get what they get from stock nginx: the whole answer, unless it is
/// proxied.
#[test]
fn a_client_that_ends_with_its_request_gets_a_long_answer() {
    let mut stock = Vec::new();
    let main = "thread_pool default threads=2;".to_string();
    let server_text = "location = /aio { aio threads; sendfile off; output_buffers 2 16k;
                                         alias html/long; }
                       location = /limited { limit_rate 200k; alias html/long; }
                       location = /proxied { proxy_pass http://127.0.0.1:{port}/long; }"
        .to_string();
    for (module, events) in [(false, ""), (true, ""), (true, "megapipe_driver epoll;")] {
        let (main, server_text) = (main.clone(), server_text.clone());
        let events = events.to_string();
        let setup = Setup { module, main, events, server: server_text, ..Setup::module() };
        let nginx = server(&setup);
        nginx.place("long", &[b'x'; 100_000]).unwrap();
        for path in ["aio", "limited", "proxied"] {
            let worker = nginx.workers()[0];
            send_signal(worker, libc::SIGSTOP).unwrap();
            let clients: Vec<Client> = (0..20)
                .map(|_| {
                    let mut client = Client::connect(nginx.port()).unwrap();
                    client.send(format!("GET /{path} HTTP/1.0\r\n\r\n")).unwrap();
                    client.stream().shutdown(Shutdown::Write).unwrap();
                    client
                })
                .collect();
            send_signal(worker, libc::SIGCONT).unwrap();
            let mut lengths: Vec<usize> =
                clients.into_iter().map(|client| client.rest().unwrap().len()).collect();
            lengths.sort_unstable();
            lengths.dedup();
            if module {
                let expected = stock.iter().find(|(other, _)| *other == path);
                assert_eq!(Some(&(path, lengths)), expected, "{:?}", setup.events);
            } else {
                stock.push((path, lengths));
            }
        }
    }
}

/// A connection that is closed before its request was read to the end is reset, so that the client
/// does not take that for an empty answer.
#[test]
fn a_close_with_unread_input_is_a_reset() {
    for (module, events) in [(false, ""), (true, ""), (true, "megapipe_driver epoll;")] {
        let setup = with("location = /closed { return 444; }");
        let nginx = server(&Setup { module, events: events.to_string(), ..setup });
        for bytes in [3_000, 30_000] {
            let mut client = Client::connect(nginx.port()).unwrap();
            let head = format!("POST /closed HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}");
            client.send([head.as_bytes(), b"\r\n\r\n", &vec![b'x'; bytes]].concat()).unwrap();
            let end = client.rest().unwrap_err();
            assert_eq!(end.kind(), ErrorKind::ConnectionReset, "{module} {events} {bytes}");
        }
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

/// The last block of a closed connection is sent as long as the client takes some of it within each
/// `send_timeout`.
#[test]
fn a_slow_reader_of_a_closed_connection_gets_everything() {
    const SIZE: usize = 60_000;
    let http = "server { listen 127.0.0.1:{port2} sndbuf=8k; root html; send_timeout 2s;
                         sendfile off; output_buffers 1 64k; }";
    let read = |events: &str| {
        let setup = Setup { events: events.to_string(), http: http.into(), ..Setup::module() };
        let nginx = server(&setup);
        nginx.place("long", &content(SIZE)).unwrap();
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, nginx.ports()[1]));
        socket.connect(&address.into()).unwrap();
        let mut client = TcpStream::from(socket);
        client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        client.write_all(b"GET /long HTTP/1.0\r\n\r\n").unwrap();
        let mut got = Vec::new();
        let mut room = [0; 1000];
        // Takes more than twice the time-out.
        loop {
            match client.read(&mut room) {
                Ok(0) => break,
                Ok(bytes) => got.extend_from_slice(&room[..bytes]),
                Err(error) => panic!("{events}: {error} after {} bytes", got.len()),
            }
            thread::sleep(Duration::from_millis(90));
        }
        assert!(got.ends_with(&content(SIZE)), "{events}: {} bytes", got.len());
        assert_eq!(nginx.complaints(), [""; 0]);
    };
    thread::scope(|scope| {
        for events in ["", "megapipe_lwsockets off;", "megapipe_driver epoll;"] {
            scope.spawn(move || read(events));
        }
    });
}
