//! The loops against servers that misbehave in one way each.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::*;
use crate::apps::generator::cache::{Cache, Usage};
use crate::apps::generator::content::Pattern;
use crate::apps::generator::http::Http;
use crate::apps::generator::mix::Requests;
use crate::client::ClientGroup;
use crate::compare::slots::warm_up;
use crate::sys::affinity::allowed_cpus;
use crate::sys::signals::Signals;

const SIZE: u64 = 3_000;
const FILES: usize = 9;

/// Answers one request, of which the bytes are given; false to close the connection.
type Answering = dyn Fn(&mut TcpStream, &[u8]) -> bool + Send + Sync;

/// A server that is wrong in a way of its choice; ended when dropped.
struct Fake {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    fn start(answering: impl Fn(&mut TcpStream, &[u8]) -> bool + Send + Sync + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, answering): (_, Arc<Answering>) = (Arc::clone(&stop), Arc::new(answering));
        let thread = thread::spawn(move || {
            let mut serving = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                let answering = Arc::clone(&answering);
                serving.push(thread::spawn(move || serve(stream, &*answering)));
            }
            serving.into_iter().for_each(|thread| thread.join().unwrap());
        });
        Fake { address, stop, thread: Some(thread) }
    }
}

fn serve(mut stream: TcpStream, answering: &Answering) {
    let mut buffer = [0; 4096];
    // Requests of the tests come in one piece, as they are short and sent at once.
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if !answering(&mut stream, &buffer[..count]) {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A slot against the server; what the one client thread recorded.
fn load<P: Protocol>(
    fake: &Fake,
    ending: Ending,
    protocol: impl Fn() -> P + Clone + Send + 'static,
) -> Tally {
    let cpus = &allowed_cpus().unwrap()[..1];
    let slicing = Slicing { count: 2, length_ns: 25_000_000 };
    let clients = ClientGroup::start_with(cpus, 3, move |_, share| {
        Loops::new(protocol(), share, ending, slicing)
    })
    .unwrap();
    clients.begin_slot(fake.address);
    warm_up(&clients, &Signals::block()).unwrap();
    clients.measure_from(now_ns() + 1_000_000);
    clients.finish_slot().unwrap().remove(0)
}

fn http(requests: u32) -> impl Fn() -> Http + Clone + Send + 'static {
    let pattern = Arc::new(Pattern::new());
    move || Http::new([SIZE; FILES].into(), Arc::clone(&pattern), Requests::Fixed(requests), 3)
}

fn cache() -> impl Fn() -> Cache + Clone + Send + 'static {
    let pattern = Arc::new(Pattern::new());
    let usage = Usage { keys: 5, gets: 1, sets: 0 };
    move || Cache::new(usage, Arc::clone(&pattern), Requests::Fixed(2), 3)
}

/// The right answer to a request of the generator.
fn right(request: &[u8]) -> Vec<u8> {
    let number: u32 = std::str::from_utf8(&request[5..10]).unwrap().parse().unwrap();
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").into_bytes();
    answer.extend(&Pattern::new().piece(number, 0)[..SIZE as usize]);
    answer
}

#[track_caller]
fn assert_complains(tally: &Tally, part: &str) {
    let complaint = tally.complaint.as_deref().unwrap_or("none");
    assert!(complaint.contains(part), "{complaint}");
    assert!(tally.faults.describe()[0].contains("answers differed"), "{tally:?}");
}

#[test]
fn right_answers_raise_no_complaint_however_they_are_split_and_connections_end() {
    let fake = Fake::start(|stream, request| {
        let answer = right(request);
        let (first, second) = answer.split_at(answer.len() / 3);
        stream.write_all(first).is_ok() && {
            thread::yield_now();
            stream.write_all(second).is_ok()
        }
    });
    for ending in [Ending::Fin, Ending::Reset] {
        let tally = load(&fake, ending, http(2));
        assert_eq!((tally.complaint.as_deref(), tally.faults.total()), (None, 0), "{tally:?}");
        assert!(tally.transactions > 0, "{tally:?}");
        // Two requests for each connection, but for those that the end of the slot cut off.
        assert!(tally.connections * 2 >= tally.transactions, "{tally:?}");
        assert!(tally.connections.saturating_sub(3) * 2 <= tally.transactions, "{tally:?}");
    }
}

#[test]
fn persistent_connections_are_opened_once() {
    let fake = Fake::start(|stream, request| stream.write_all(&right(request)).is_ok());
    let tally = load(&fake, Ending::Fin, http(0));
    assert_eq!((tally.connections, tally.faults.total()), (3, 0), "{tally:?}");
}

#[test]
fn a_wrong_status_length_or_body_is_noticed() {
    let wrong = |bytes: &'static [u8]| {
        let fake = Fake::start(move |stream, _| stream.write_all(bytes).is_ok());
        load(&fake, Ending::Fin, http(1))
    };
    assert_complains(&wrong(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), "500");
    assert_complains(&wrong(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n1234567"), "Length 7");
    let fake = Fake::start(|stream, request| {
        let mut answer = right(request);
        answer[2_000] ^= 1;
        stream.write_all(&answer).is_ok()
    });
    assert_complains(&load(&fake, Ending::Fin, http(1)), "other content");
    let fake = Fake::start(|stream, request| {
        let mut answer = right(request);
        answer.push(b'x');
        stream.write_all(&answer).is_ok()
    });
    assert_complains(&load(&fake, Ending::Fin, http(1)), "1 bytes behind");
}

#[test]
fn a_miss_is_noticed() {
    let fake = Fake::start(|stream, _| stream.write_all(b"END\r\n").is_ok());
    assert_complains(&load(&fake, Ending::Reset, cache()), "a miss of key");
}

#[test]
fn a_server_that_closes_early_is_noticed() {
    let fake = Fake::start(|stream, request| {
        let answer = right(request);
        let _ = stream.write_all(&answer[..100]);
        false
    });
    let tally = load(&fake, Ending::Fin, http(1));
    assert!(tally.faults.describe()[0].contains("closed or reset"), "{tally:?}");
    assert_eq!(tally.transactions, 0);
}

#[test]
fn a_server_that_never_answers_stalls_and_does_not_hang_us() {
    let fake = Fake::start(|_, _| true);
    let tally = load(&fake, Ending::Fin, http(1));
    assert_eq!((tally.stalled, tally.transactions), (3, 0), "{tally:?}");
}

#[test]
fn a_server_that_is_not_there_is_noticed() {
    let fake = Fake::start(|_, _| true);
    let address = fake.address;
    drop(fake);
    let gone = Fake { address, stop: Arc::default(), thread: None };
    let tally = load(&gone, Ending::Fin, http(1));
    assert!(tally.faults.describe()[0].contains("could not be established"), "{tally:?}");
}
