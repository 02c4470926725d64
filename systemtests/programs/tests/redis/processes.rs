//! Replicas, children that save, and the end of the server.

use crate::{ADAPTED, ALL, figure, start};
use std::fs;
use std::thread;
use std::time::Duration;
use systemtests_programs::TIME_LIMIT;
use systemtests_programs::redis::{Build, Client, Redis, request};
use testkit::eventually;

/// Writes many keys with pipelined requests.
fn write(client: &mut Client, keys: std::ops::Range<usize>, bytes: usize) {
    let value = testkit::content(bytes);
    let count = keys.len();
    let requests: Vec<u8> =
        keys.flat_map(|key| request(&[b"SET", format!("k{key}").as_bytes(), &value])).collect();
    client.send(&requests).unwrap();
    for _ in 0..count {
        assert_eq!(client.answer().unwrap(), b"+OK\r\n");
    }
}

fn digest(server: &Redis) -> String {
    server.client().unwrap().ask("DEBUG DIGEST").unwrap()
}

#[test]
fn replicas_of_both_builds_follow() {
    for build in ADAPTED {
        for (diskless, follower) in [("yes", Build::Stock), ("no", build)] {
            let options = ["--enable-debug-command", "yes", "--repl-diskless-sync", diskless];
            let options = [&options[..], &["--repl-diskless-sync-delay", "0"]].concat();
            let master = start(build, &options);
            let mut client = master.client().unwrap();
            write(&mut client, 0..3_000, 2_000);
            let port = master.port().to_string();
            let replica = start(follower, &["--enable-debug-command", "yes"]);
            let mut order = replica.client().unwrap();
            assert_eq!(order.ask(&format!("REPLICAOF 127.0.0.1 {port}")).unwrap(), "+OK\r\n");
            // While the snapshot is sent.
            write(&mut client, 2_000..6_000, 3_000);
            let same =
                || figure(&replica, "master_repl_offset") == figure(&master, "master_repl_offset");
            let up = || order.ask("INFO replication").unwrap().contains("master_link_status:up");
            assert!(eventually(TIME_LIMIT, up), "{build:?}: {}", replica.log());
            write(&mut client, 0..100, 200_000);
            assert_eq!(client.ask("WAIT 1 20000").unwrap(), ":1\r\n", "{build:?}");
            assert!(eventually(TIME_LIMIT, same), "{build:?}");
            assert_eq!(digest(&replica), digest(&master), "{build:?}");
            assert_eq!(figure(&master, "sync_full"), 1, "{build:?}");
        }
    }
}

#[test]
fn children_save_while_clients_are_served() {
    for build in ADAPTED {
        let options = ["--appendonly", "yes", "--appendfsync", "always"];
        let options = [&options[..], &["--enable-debug-command", "yes"]].concat();
        let server = start(build, &options);
        let mut client = server.client().unwrap();
        write(&mut client, 0..5_000, 1_000);
        for command in ["BGSAVE", "BGREWRITEAOF"] {
            assert!(client.ask(command).unwrap().starts_with("+Background"), "{build:?}");
            write(&mut client, 0..500, 1_000);
            let text = || server.client().unwrap().ask("INFO persistence").unwrap();
            let done = || {
                let text = text();
                text.contains("rdb_bgsave_in_progress:0")
                    && text.contains("aof_rewrite_in_progress:0")
                    && text.contains("aof_rewrite_scheduled:0")
            };
            assert!(eventually(TIME_LIMIT, done), "{build:?}: {}", text());
            let text = text();
            assert!(text.contains("rdb_last_bgsave_status:ok"), "{build:?}: {text}");
            assert!(text.contains("aof_last_bgrewrite_status:ok"), "{build:?}: {text}");
        }
        let before = digest(&server);
        assert_eq!(client.ask("DEBUG LOADAOF").unwrap(), "+OK\r\n");
        assert_eq!(digest(&server), before, "{build:?}");
    }
}

/// The last answers arrive, the data is saved, and the port is free for the next server.
#[test]
fn the_server_ends_cleanly_with_clients_in_all_states() {
    for build in ALL {
        for by_signal in [true, false] {
            let mut server = start(build, &["--appendonly", "yes"]);
            let mut clients: Vec<Client> = (0..50).map(|_| server.client().unwrap()).collect();
            for (number, client) in clients.iter_mut().enumerate() {
                match number % 3 {
                    0 => client.send(&request(&[b"BLPOP", b"none", b"0"])).unwrap(),
                    1 => assert_eq!(client.ask("RPUSH list a").unwrap().as_bytes()[0], b':'),
                    _ => client.send(b"*2\r\n$4\r\nhalf").unwrap(),
                }
            }
            if by_signal {
                server.process.signal(libc::SIGTERM).unwrap();
            } else {
                server.client().unwrap().send(&request(&[b"SHUTDOWN"])).unwrap();
            }
            let status = server.process.wait(TIME_LIMIT).unwrap();
            assert!(status.success(), "{build:?}: {status}: {}", server.log());
            assert!(server.log().contains("bye bye"), "{build:?}: {}", server.log());
            let files = fs::read_dir(server.directory.path().join("appendonlydir")).unwrap();
            assert!(files.count() >= 2, "{build:?}");
        }
    }
}

/// A daemon forks before it has a channel.
#[test]
fn a_daemon_serves() {
    for build in ADAPTED {
        let directory = tempfile::TempDir::new().unwrap();
        let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        let (socket, pid, log, data) = (path("socket"), path("pid"), path("log"), path(""));
        let options =
            ["--port", "0", "--unixsocket", &socket, "--pidfile", &pid, "--logfile", &log];
        let options = [&options[..], &["--daemonize", "yes", "--dir", &data]].concat();
        let mut daemon = systemtests_programs::redis::command(build, &options).unwrap();
        assert!(daemon.status().unwrap().success());
        let mut stream = None;
        assert!(eventually(TIME_LIMIT, || {
            stream = std::os::unix::net::UnixStream::connect(&socket).ok();
            stream.is_some()
        }));
        let mut client = Client(std::io::BufReader::new(stream.unwrap()));
        assert_eq!(client.ask("PING").unwrap(), "+PONG\r\n", "{build:?}");
        let log = fs::read_to_string(&log).unwrap();
        assert!(log.contains("driver "), "{build:?}: {log}");
        client.send(&request(&[b"SHUTDOWN", b"NOSAVE"])).unwrap();
        while fs::exists(&pid).unwrap() {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
