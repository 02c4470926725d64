//! Tests what a client costs that sends or reads slowly, or not at all.

use crate::common::TIME_LIMIT;
use crate::http::{GET, Server, read_answer};
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use megapipe::DriverChoice;
use megapipe_rt::http::Limits;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use testkit::eventually;

on_both_drivers!(
    a_body_that_stalls_ends_its_connection,
    a_body_that_comes_slowly_is_read,
    a_client_that_does_not_read_is_reset,
    a_client_of_http2_without_window_is_reset,
    what_a_core_holds_is_bounded,
    requests_wait_while_their_connection_holds_much,
    further_connections_wait,
);

const SHORT: Option<Duration> = Some(Duration::from_millis(50));
/// No limits, so that each test shows the one that it sets.
const UNLIMITED: Limits = Limits {
    header: None,
    idle: None,
    body: None,
    send: None,
    connections: usize::MAX,
    output: usize::MAX,
    core_output: usize::MAX,
};
/// The length of a large answer: more than the buffers of the runtime, and than those of the kernel
/// for a connection on this host.
const LARGE: usize = 24_000_000;
/// The length of an answer of which attackers take none.
const ANSWER: usize = 500_000;

/// What the service of a test has answered, and what of it still is in memory.
#[derive(Clone, Default)]
struct Counts {
    answers: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

/// The memory of an answer.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), SeqCst);
    }
}

impl Counts {
    fn answer(&self, length: usize) -> Bytes {
        self.answers.fetch_add(1, SeqCst);
        self.bytes.fetch_add(length, SeqCst);
        Bytes::from_owner(Counted(vec![b'x'; length], Arc::clone(&self.bytes)))
    }

    fn app(&self) -> Router {
        let (large, small) = (self.clone(), self.clone());
        Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/large", get(|| async move { large.answer(LARGE) }))
            .route("/answer", get(|| async move { small.answer(ANSWER) }))
            .route("/echo", post(|body: Bytes| async { body }))
            .layer(DefaultBodyLimit::disable())
    }

    fn serve(&self, driver: DriverChoice, limits: Limits) -> Server {
        Server::of(self.app(), driver, 1, limits)
    }
}

/// Waits until the server has reset the connection. Nothing is read.
#[track_caller]
fn await_reset(client: &TcpStream) {
    let is_reset = || client.take_error().unwrap().is_some();
    assert!(eventually(TIME_LIMIT, is_reset), "the connection lives");
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

/// A setting for the initial window of streams.
fn window(bytes: u32) -> Vec<u8> {
    let setting = [&4_u16.to_be_bytes()[..], &bytes.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &setting)
}

/// The header of a request for a path (RFC 7541): GET and http are in the static table.
fn request(stream: u32, path: &str) -> Vec<u8> {
    const END: u8 = 0x1 | 0x4;
    let length = u8::try_from(path.len()).unwrap();
    let header = [&[0x82, 0x86, 0x01, 1, b'x', 0x04, length][..], path.as_bytes()].concat();
    frame(HEADERS, END, stream, &header)
}

/// A connection of HTTP/2 whose streams have no window, with requests for a path.
fn windowless(server: &Server, requests: u32, path: &str) -> TcpStream {
    let mut client = server.connect();
    let mut bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &window(0)].concat();
    for number in 0..requests {
        bytes.extend(request(2 * number + 1, path));
    }
    client.write_all(&bytes).unwrap();
    client
}

/// Reads frames until one of a kind, and returns its payload.
#[track_caller]
fn read_frame(client: &mut TcpStream, wanted: u8) -> Vec<u8> {
    loop {
        let mut header = [0; 9];
        client.read_exact(&mut header).unwrap();
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        client.read_exact(&mut payload).unwrap();
        if header[3] == wanted {
            return payload;
        }
    }
}

/// Lets the server's core finish its turn: the answer to a ping comes at the end of one.
fn ping(client: &mut TcpStream) {
    for _ in 0..2 {
        client.write_all(&frame(PING, 0, 0, b"01234567")).unwrap();
        read_frame(client, PING);
    }
}

fn a_body_that_stalls_ends_its_connection(driver: DriverChoice) {
    let server = Counts::default().serve(driver, Limits { body: SHORT, ..UNLIMITED });
    for beginning in ["content-length: 1000\r\n\r\nhalf", "transfer-encoding: chunked\r\n\r\n"] {
        let mut client = server.connect();
        client.write_all(b"POST /echo HTTP/1.1\r\nhost: x\r\n").unwrap();
        client.write_all(beginning.as_bytes()).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
    }
    server.stop();
}

fn a_body_that_comes_slowly_is_read(driver: DriverChoice) {
    let server = Counts::default().serve(driver, Limits { body: Some(TIME_LIMIT), ..UNLIMITED });
    let mut client = server.connect();
    client.write_all(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n").unwrap();
    for byte in b"hello" {
        client.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    read_answer(&mut client, b"hello");
    server.stop();
}

fn a_client_that_does_not_read_is_reset(driver: DriverChoice) {
    let counts = Counts::default();
    let server = counts.serve(driver, Limits { send: SHORT, ..UNLIMITED });
    let mut client = server.connect();
    client.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    await_reset(&client);
    assert!(eventually(TIME_LIMIT, || counts.bytes.load(SeqCst) == 0));
    server.stop();
}

fn a_client_of_http2_without_window_is_reset(driver: DriverChoice) {
    let counts = Counts::default();
    let server = counts.serve(driver, Limits { send: SHORT, ..UNLIMITED });
    let client = windowless(&server, 10, "/answer");
    await_reset(&client);
    assert_eq!(counts.answers.load(SeqCst), 10);
    assert!(eventually(TIME_LIMIT, || counts.bytes.load(SeqCst) == 0));
    server.stop();
}

fn what_a_core_holds_is_bounded(driver: DriverChoice) {
    const CLIENTS: usize = 10;
    const REQUESTS: usize = 20;
    let attack = |limits| {
        let counts = Counts::default();
        let server = counts.serve(driver, limits);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = windowless(&server, REQUESTS as u32, "/answer");
                let most = (number + 1) * REQUESTS;
                assert!(eventually(TIME_LIMIT, || counts.answers.load(SeqCst) == most));
                client
            })
            .collect();
        // Others are served, and what they are answered is not what is missing.
        let mut honest = server.connect();
        honest.write_all(GET).unwrap();
        read_answer(&mut honest, b"hello");
        (counts, server, clients)
    };
    let (counts, server, clients) = attack(UNLIMITED);
    assert_eq!(counts.bytes.load(SeqCst), CLIENTS * REQUESTS * ANSWER, "the attack");
    drop(clients);
    server.stop();
    let most = 2 * REQUESTS * ANSWER;
    let (counts, server, clients) = attack(Limits { core_output: most, ..UNLIMITED });
    assert!(eventually(TIME_LIMIT, || counts.bytes.load(SeqCst) <= most));
    await_reset(&clients[0]);
    drop(clients);
    server.stop();
}

fn requests_wait_while_their_connection_holds_much(driver: DriverChoice) {
    let counts = Counts::default();
    let server = counts.serve(driver, Limits { output: ANSWER - 1, ..UNLIMITED });
    let mut client = windowless(&server, 1, "/answer");
    let answered = |most| eventually(TIME_LIMIT, || counts.answers.load(SeqCst) == most);
    assert!(answered(1));
    for number in 1..5 {
        client.write_all(&request(2 * number + 1, "/answer")).unwrap();
    }
    ping(&mut client);
    assert_eq!(counts.answers.load(SeqCst), 1);
    // Now the client takes everything.
    let more = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    client.write_all(&[window(1 << 30), more].concat()).unwrap();
    let reader = std::thread::spawn(move || {
        let (mut room, mut all) = ([0; 65_536], 0);
        while all < 5 * ANSWER {
            all += client.read(&mut room).unwrap();
        }
    });
    assert!(answered(5));
    reader.join().unwrap();
    server.stop();
}

fn further_connections_wait(driver: DriverChoice) {
    let server = Counts::default().serve(driver, Limits { connections: 1, ..UNLIMITED });
    let (mut first, mut second) = (server.connect(), None);
    for _ in 0..3 {
        first.write_all(GET).unwrap();
        read_answer(&mut first, b"hello");
        second.get_or_insert_with(|| server.connect()).write_all(GET).unwrap();
    }
    let mut second = second.unwrap();
    second.set_nonblocking(true).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    second.set_nonblocking(false).unwrap();
    drop(first);
    read_answer(&mut second, b"hello");
    drop(second);
    server.stop();
}
