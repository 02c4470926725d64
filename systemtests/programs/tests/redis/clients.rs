//! What clients do: many, slow, rude, blocked, subscribed.

use crate::{ADAPTED, ALL, figure, figure_by, read_to_end, start};
use std::io::{BufReader, Read};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};
use systemtests_programs::TIME_LIMIT;
use systemtests_programs::redis::{Client, command, request};
use testkit::eventually;

/// Sets how a close of the socket works: by a reset.
fn reset(client: Client) {
    let socket = socket2::Socket::from(client.0.into_inner());
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn a_slow_reader_gets_everything_and_disturbs_nobody() {
    for build in ADAPTED {
        let server = start(build, &[]);
        let (mut slow, mut other) = (server.client().unwrap(), server.client().unwrap());
        let value = testkit::content(100_000);
        slow.send(&request(&[b"SET", b"v", &value])).unwrap();
        assert_eq!(slow.answer().unwrap(), b"+OK\r\n");
        slow.send(&request(&[b"GET", b"v"]).repeat(300)).unwrap();
        for number in 0..200 {
            assert_eq!(other.ask("INCR n").unwrap(), format!(":{}\r\n", number + 1), "{build:?}");
        }
        let expected = [&b"$100000\r\n"[..], &value, b"\r\n"].concat();
        for number in 0..300 {
            assert!(slow.answer().unwrap() == expected, "{build:?}: {number}");
        }
    }
}

#[test]
fn clients_that_leave_or_reset_in_the_middle_are_forgotten() {
    for build in ADAPTED {
        let server = start(build, &[]);
        let value = testkit::content(1 << 20);
        server.client().unwrap().send(&request(&[b"SET", b"v", &value])).unwrap();
        let get = request(&[b"GET", b"v"]);
        for count in 0..60 {
            let mut client = server.client().unwrap();
            match count % 6 {
                0 => client.send(&get.repeat(30)).unwrap(),
                1 => client.send(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\nhalf").unwrap(),
                2 => client.send(&request(&[b"BLPOP", b"none", b"0"])).unwrap(),
                3 => client.send(&request(&[b"SUBSCRIBE", b"news"])).unwrap(),
                4 => client.send(&get).unwrap(),
                _ => {}
            }
            if count % 3 == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            if count % 2 == 0 { reset(client) } else { drop(client) }
        }
        let gone = || figure(&server, "connected_clients") == 1;
        assert!(eventually(TIME_LIMIT, gone), "{build:?}: {}", server.log());
        let descriptors =
            || fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap().count();
        assert!(eventually(TIME_LIMIT, || descriptors() < 40), "{build:?}: {}", descriptors());
    }
}

#[test]
fn blocked_and_subscribed_clients_get_what_others_send() {
    for build in ADAPTED {
        let server = start(build, &[]);
        let mut clients: Vec<Client> = (0..20).map(|_| server.client().unwrap()).collect();
        for client in &mut clients[..10] {
            client.send(&request(&[b"BLPOP", b"list", b"0"])).unwrap();
        }
        for client in &mut clients[10..] {
            assert!(client.ask("SUBSCRIBE news").unwrap().contains("subscribe"));
        }
        assert!(eventually(TIME_LIMIT, || figure(&server, "blocked_clients") == 10));
        let mut other = server.client().unwrap();
        for number in 0..10 {
            other.ask(&format!("RPUSH list {number}")).unwrap();
            assert_eq!(other.ask("PUBLISH news hello").unwrap(), ":10\r\n");
        }
        for (number, client) in clients[..10].iter_mut().enumerate() {
            let expected = format!("*2\r\n$4\r\nlist\r\n$1\r\n{number}\r\n");
            assert_eq!(client.answer().unwrap(), expected.as_bytes(), "{build:?}");
        }
        for client in &mut clients[10..] {
            for _ in 0..10 {
                assert!(client.answer().unwrap().ends_with(b"$5\r\nhello\r\n"), "{build:?}");
            }
        }
    }
}

#[test]
fn clients_are_killed_and_limited() {
    for build in ALL {
        let server = start(build, &["--maxclients", "10"]);
        let mut first = server.client().unwrap();
        let mut victim = server.client().unwrap();
        let id = |client: &mut Client| client.ask("CLIENT ID").unwrap()[1..].trim().to_owned();
        let kill = format!("CLIENT KILL ID {}", id(&mut victim));
        assert_eq!(first.ask(&kill).unwrap(), ":1\r\n");
        assert_eq!(victim.0.read(&mut [0; 10]).unwrap_or(0), 0, "{build:?}");
        let kill = format!("CLIENT KILL ID {} SKIPME no", id(&mut first));
        assert_eq!(first.ask(&kill).unwrap(), ":1\r\n");
        assert!(read_to_end(&mut first.0).is_empty(), "{build:?}");
        let mut only = server.client().unwrap();
        let alone = || figure_by(&mut only, "connected_clients") == 1;
        assert!(eventually(TIME_LIMIT, alone), "{build:?}");
        let mut clients: Vec<Client> = (0..9).map(|_| server.client().unwrap()).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("PING").unwrap(), "+PONG\r\n"));
        let refused = read_to_end(&mut server.client().unwrap().0);
        assert_eq!(refused, b"-ERR max number of clients reached\r\n", "{build:?}");
    }
}

#[test]
fn unix_sockets_are_served() {
    for build in ADAPTED {
        let server = start(build, &[]);
        let stream = UnixStream::connect(server.directory.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let mut client = Client(BufReader::new(stream));
        for bytes in [10, 20_000, 3 << 20] {
            let value = testkit::content(bytes);
            client.send(&request(&[b"ECHO", &value])).unwrap();
            assert!(client.answer().unwrap().len() > bytes, "{build:?}");
        }
        client.send(&request(&[b"PING"]).repeat(3)).unwrap();
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut client.0), b"+PONG\r\n".repeat(3), "{build:?}");
    }
}

/// While a script runs too long, redis serves others from an inner event loop.
#[test]
fn others_are_answered_while_a_script_runs() {
    for build in ADAPTED {
        let server = start(build, &["--busy-reply-threshold", "20"]);
        let mut busy = server.client().unwrap();
        busy.send(&request(&[b"EVAL", b"while true do end", b"0"])).unwrap();
        busy.send(&request(&[b"PING"]).repeat(2_000)).unwrap();
        let mut other = server.client().unwrap();
        assert!(eventually(TIME_LIMIT, || other.ask("PING").unwrap().starts_with("-BUSY")));
        let mut more: Vec<Client> = (0..20).map(|_| server.client().unwrap()).collect();
        for client in &mut more {
            assert!(client.ask("GET a").unwrap().starts_with("-BUSY"), "{build:?}");
        }
        more.truncate(10);
        assert_eq!(other.ask("SCRIPT KILL").unwrap(), "+OK\r\n");
        assert!(busy.answer().unwrap().starts_with(b"-"), "{build:?}");
        for _ in 0..2_000 {
            assert_eq!(busy.answer().unwrap(), b"+PONG\r\n", "{build:?}");
        }
        more.iter_mut().for_each(|client| assert_eq!(client.ask("PING").unwrap(), "+PONG\r\n"));
    }
}

/// The debugger of scripts reads and writes in blocking mode, in redis or in a forked child.
#[test]
fn the_debugger_of_scripts_works() {
    for build in ALL {
        let server = start(build, &[]);
        for mode in ["SYNC", "YES"] {
            let mut client = server.client().unwrap();
            assert_eq!(client.ask(&format!("SCRIPT DEBUG {mode}")).unwrap(), "+OK\r\n");
            client.send(&request(&[b"EVAL", b"local a = 5\nreturn a", b"0"])).unwrap();
            let stopped = String::from_utf8(client.answer().unwrap()).unwrap();
            assert!(stopped.contains("Stopped at 1"), "{build:?} {mode}: {stopped}");
            assert!(client.ask("step").unwrap().contains("Stopped at 2"), "{build:?} {mode}");
            assert!(client.ask("print a").unwrap().contains("5"), "{build:?} {mode}");
            client.send(&request(&[b"continue"])).unwrap();
            assert!(client.answer().unwrap().ends_with(b"<endsession>\r\n"), "{build:?} {mode}");
            assert_eq!(client.answer().unwrap(), b":5\r\n", "{build:?} {mode}");
            assert_eq!(server.client().unwrap().ask("PING").unwrap(), "+PONG\r\n");
        }
    }
}

#[test]
fn tls_clients_are_served_as_before() {
    let keys = tempfile::TempDir::new().unwrap();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let path = |name: &str| keys.path().join(name).to_string_lossy().into_owned();
    fs::write(path("certificate.pem"), certified.cert.pem()).unwrap();
    fs::write(path("key.pem"), certified.signing_key.serialize_pem()).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (certificate, key, port) = (path("certificate.pem"), path("key.pem"), free.to_string());
    let options = ["--tls-port", &port, "--tls-cert-file", &certificate, "--tls-key-file", &key];
    let options = [&options[..], &["--tls-auth-clients", "no", "--tls-ca-cert-file", &certificate]];
    for build in ADAPTED {
        let server = start(build, &options.concat());
        let mut tls = Command::new("timeout");
        tls.args(["60", "openssl", "s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")]);
        let mut tls =
            tls.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let value = testkit::content(500_000);
        let bytes = [request(&[b"SET", b"v", &value]), request(&[b"GET", b"v"])].concat();
        let mut input = tls.stdin.take().unwrap();
        let sender = thread::spawn(move || {
            std::io::Write::write_all(&mut input, &bytes).unwrap();
            input
        });
        let mut plain = server.client().unwrap();
        (0..100).for_each(|_| assert_eq!(plain.ask("PING").unwrap(), "+PONG\r\n"));
        let mut answer = vec![0; 5 + 9 + value.len() + 2];
        tls.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(b"+OK\r\n$500000\r\n"), "{build:?}");
        drop(sender.join().unwrap());
        let _ = tls.kill();
        tls.wait().unwrap();
    }
}

#[test]
fn io_threads_are_refused_with_the_remedy() {
    for build in ADAPTED {
        let directory = tempfile::TempDir::new().unwrap();
        let socket = directory.path().join("socket").to_string_lossy().into_owned();
        let options = ["--io-threads", "2", "--port", "0", "--unixsocket", &socket];
        let mut server = command(build, &options).unwrap();
        let output = server.stdout(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("io-threads") && text.contains("set `io-threads 1`"), "{text}");
    }
}

/// Thousands of connections in a row, so that descriptors are used again.
#[test]
fn short_connections_are_served() {
    for build in ADAPTED {
        let server = start(build, &[]);
        for number in 0..3_000 {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            let bytes = [request(&[b"INCR", b"n"]), request(&[b"QUIT"])].concat();
            std::io::Write::write_all(&mut stream, &bytes).unwrap();
            let expected = format!(":{}\r\n+OK\r\n", number + 1);
            assert_eq!(read_to_end(&mut stream), expected.as_bytes(), "{build:?}");
        }
    }
}
