use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};
use testkit::within;

use super::*;
use crate::cluster::records::HostRecord;
use crate::cluster::registry::State;
use crate::cluster::wire::Bytes;
use crate::cluster::{EtcdAccess, outbox::Outbox};

/// Ends a test that hangs; no test's result depends on it.
const GUARD: Duration = Duration::from_secs(60);
const ZONE: &str = "z";
const REVISION: &str = "5";

/// Answers as etcd does, for one host whose transactions always succeed.
#[derive(Default)]
struct Fake {
    /// The calls, with the number of the connection.
    calls: Vec<(usize, String, Value)>,
    connections: Vec<TcpStream>,
    /// The record of the store.
    store: Option<Value>,
    /// Listings wait until a lease is renewed.
    is_slow: bool,
}

type Shareable = Arc<Mutex<Fake>>;

impl Fake {
    fn start(fake: Fake) -> (Shareable, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let fake = Arc::new(Mutex::new(fake));
        let shared = Arc::clone(&fake);
        // These threads end with the test's process: they own only sockets.
        thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                lock(&shared).connections.push(stream.try_clone().unwrap());
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(&shared, stream, number));
            }
        });
        (fake, address)
    }

    fn count(&self, method: &str) -> usize {
        self.calls.iter().filter(|(_, called, _)| called == method).count()
    }

    /// Returns whether the last listing was one of the whole zone.
    fn has_listed_all(&self) -> bool {
        let mut calls = self.calls.iter().rev();
        let (_, _, last) = calls.find(|(_, method, _)| method == "kv/range").unwrap();
        last["key"] == json!(Bytes::of(&prefix(ZONE)))
    }

    /// Closes all connections.
    fn hang_up(&mut self) {
        for connection in self.connections.drain(..) {
            // Fails if the client has closed it.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn lock(fake: &Mutex<Fake>) -> MutexGuard<'_, Fake> {
    fake.lock().unwrap()
}

/// Answers the requests of one connection until it ends.
fn serve(fake: &Mutex<Fake>, stream: TcpStream, number: usize) {
    let mut output = stream.try_clone().unwrap();
    let mut input = BufReader::new(stream);
    while let Some((method, body)) = read_request(&mut input) {
        let renewals = lock(fake).count("lease/keepalive");
        lock(fake).calls.push((number, method.clone(), body.clone()));
        let answer = match &*method {
            "lease/grant" => json!({"ID": "7", "TTL": "2"}),
            "lease/keepalive" => json!({"result": {"ID": "7", "TTL": "2"}}),
            "kv/range" => {
                if lock(fake).is_slow {
                    let renewed = || lock(fake).count("lease/keepalive") > renewals;
                    testkit::eventually(GUARD, renewed);
                }
                let fake = lock(fake);
                let entries: Vec<&Value> = fake.store.iter().collect();
                json!({"header": {"revision": REVISION}, "kvs": entries})
            }
            "lease/revoke" => json!({}),
            "kv/txn" => {
                let put = &body["success"][0]["request_put"];
                let path = Key::Secret.path(ZONE).unwrap();
                if put["key"] == json!(Bytes::of(&path)) {
                    let entry = json!({"key": put["key"], "value": put["value"],
                        "mod_revision": REVISION});
                    lock(fake).store = Some(entry);
                }
                json!({"header": {"revision": REVISION}, "succeeded": true})
            }
            "watch" => {
                let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                let _ = output.write_all(head.as_bytes());
                continue;
            }
            other => panic!("unexpected call: {other}"),
        };
        let body = answer.to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if output.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

fn read_request(input: &mut impl BufRead) -> Option<(String, Value)> {
    let mut method = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("post /v3/") {
            method = rest.split(' ').next()?.to_owned();
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        } else if line.is_empty() {
            let mut body = vec![0; length];
            input.read_exact(&mut body).ok()?;
            return Some((method, serde_json::from_slice(&body).ok()?));
        }
    }
}

fn client(address: SocketAddr) -> Client {
    let url = format!("http://{address}");
    Client::new(&[url], &EtcdAccess::default(), Duration::from_secs(1)).unwrap()
}

/// Runs a session until the condition holds.
fn run_until(fake: &Shareable, address: SocketAddr, what: &str, holds: impl Fn(&mut Fake) -> bool) {
    let state = State::new(ZONE, "a", HostRecord::new(&[], "identity"));
    let shared = Shared::new(state, Outbox::new().unwrap());
    let session = Session {
        shared: Arc::clone(&shared),
        client: client(address),
        zone: ZONE.to_owned(),
        ttl_s: 2,
        port: None,
        lease: None,
        told: Cell::new(None),
        is_copied: Cell::new(false),
    };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let thread = thread::spawn(move || runtime().block_on(session.run()));
    within(GUARD, what, || holds(&mut lock(fake)).then_some(()));
    shared.stop.notify_one();
    thread.join().unwrap();
}

#[test]
fn calls_follow_each_other_on_one_connection() {
    let (fake, address) = Fake::start(Fake::default());
    let client = client(address);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lease = client.grant(2).await.unwrap();
        for _ in 0..3 {
            assert!(client.keep_alive(lease).await.unwrap());
        }
        assert!(lock(&fake).calls.iter().all(|(connection, ..)| *connection == 0));
        lock(&fake).hang_up();
        assert!(client.keep_alive(lease).await.unwrap(), "it connects again");
        assert_eq!(lock(&fake).calls.last().unwrap().0, 1);
    });
}

#[test]
fn a_lease_is_renewed_while_the_zone_is_listed() {
    let (fake, address) = Fake::start(Fake { is_slow: true, ..Fake::default() });
    run_until(&fake, address, "the watch", |fake| fake.count("watch") > 0);
}

#[test]
fn a_watch_that_broke_continues_without_a_listing() {
    let (fake, address) = Fake::start(Fake::default());
    let hang_up = Cell::new(true);
    run_until(&fake, address, "the second watch", |fake| {
        if fake.count("watch") == 1 && hang_up.replace(false) {
            assert!(fake.has_listed_all());
            fake.hang_up();
        }
        fake.count("watch") == 2
    });
    assert!(!lock(&fake).has_listed_all());
}

#[test]
fn hosts_that_join_together_renew_at_different_moments() {
    let ttl = Duration::from_secs(12);
    assert_eq!([0.0, 1.0].map(|share| first_pause(ttl, share).as_secs()), [0, 4]);
    assert_eq!([0.0, 1.0].map(|share| next_pause(ttl, share).as_secs()), [3, 4]);
}
