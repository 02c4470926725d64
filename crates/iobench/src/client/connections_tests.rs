//! Tests of the closed loops against servers of known behaviour: correct, late, silent, or wrong in
//! one way each.
//!
//! No result depends on time: what must happen is awaited with a long time-out, and a silent server
//! stays silent.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::*;
use crate::client::protocol::echo::Echo;
use crate::client::protocol::filler::Filler;
use crate::client::protocol::http::Http;
use crate::client::protocol::memcache::{Cache, Dialect, Usage};
use crate::client::protocol::pattern::Pattern;
use crate::client::protocol::requests::Requests;
use crate::client::slices::add_open;
use crate::client::sockets::Ending;
use crate::client::sockets::kernel::{KernelSockets, Options};
use crate::client::{ClientGroup, Order};
use crate::exchange::Exchange;
use crate::figures::{Times, new_times};
use crate::sys::affinity::allowed_cpus;

const SIZE: u64 = 3_000;
const FILES: usize = 9;
const MESSAGE_BYTES: usize = 64;
const CONNECTIONS: usize = 4;
/// Time-out for what a working server must do, in nanoseconds.
const TIME_LIMIT_NS: u64 = 30_000_000_000;
/// Time-out for servers that stay silent, in nanoseconds.
const SHORT_LIMIT_NS: u64 = 50_000_000;
const SHORT: Slicing = Slicing { count: 2, length_ns: 25_000_000 };
/// Slices long enough for a test thread to act during the measured time.
const LONG: Slicing = Slicing { count: 20, length_ns: 50_000_000 };

/// Answers one request, whose bytes are given; false closes the connection.
type Answering = dyn Fn(&mut TcpStream, &[u8]) -> bool + Send + Sync;

/// A server with the behaviour that the test gives; dropping it stops it.
struct Fake {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    fn start(answering: impl Fn(&mut TcpStream, &[u8]) -> bool + Send + Sync + 'static) -> Fake {
        let answering: Arc<Answering> = Arc::new(answering);
        Fake::start_with(move |_| Arc::clone(&answering))
    }

    /// Starts a server with a behaviour for each connection, counted from 0.
    fn start_with(answering: impl Fn(usize) -> Arc<Answering> + Send + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut serving = Vec::new();
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                let answering = answering(number);
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

/// One slot against a server.
struct Slot {
    ending: Ending,
    slicing: Slicing,
    order: Order,
}

impl Slot {
    fn new(fake: &Fake) -> Slot {
        let order = Order { drain_limit_ns: TIME_LIMIT_NS, ..Order::new(fake.address, false) };
        Slot { ending: Ending::Fin, slicing: SHORT, order }
    }

    /// Returns a slot with a short time-out, for servers that are silent.
    fn with_short_limit(fake: &Fake) -> Slot {
        let mut slot = Slot::new(fake);
        slot.order.drain_limit_ns = SHORT_LIMIT_NS;
        slot
    }

    /// Runs the slot; returns what the one client thread recorded.
    fn run<P: Protocol>(&self, protocol: impl Fn() -> P + Clone + Send + 'static) -> Tally {
        self.run_with(protocol, || ())
    }

    /// Runs the slot; calls `begun` once the measured time has begun.
    fn run_with<P: Protocol>(
        &self,
        protocol: impl Fn() -> P + Clone + Send + 'static,
        begun: impl FnOnce(),
    ) -> Tally {
        let cpus = &allowed_cpus().unwrap()[..1];
        let options = Options::for_short_requests(self.ending);
        let sockets = move |_| KernelSockets::new(options.clone());
        let protocol = move |_| protocol();
        let clients =
            ClientGroup::start_speaking(cpus, CONNECTIONS, self.slicing, sockets, protocol);
        let clients = clients.unwrap();
        clients.begin_slot(self.order);
        // With a server that does not answer, no connection becomes warm.
        let give_up_ns = now_ns() + 300_000_000;
        while clients.cold() > 0 && now_ns() < give_up_ns {
            thread::sleep(Duration::from_millis(1));
        }
        let start_ns = now_ns() + 1_000_000;
        clients.measure_from(start_ns);
        while now_ns() < start_ns {
            thread::sleep(Duration::from_millis(1));
        }
        begun();
        clients.finish_slot().unwrap().remove(0)
    }
}

fn http(requests: u32) -> impl Fn() -> Http + Clone + Send + 'static {
    let pattern = Arc::new(Pattern::new());
    move || Http::new([SIZE; FILES].into(), Arc::clone(&pattern), Requests::Fixed(requests), 3)
}

fn cache() -> impl Fn() -> Cache + Clone + Send + 'static {
    let pattern = Arc::new(Pattern::new());
    let usage = Usage { keys: 5, gets: 1, sets: 0 };
    move || Cache::new(Dialect::Memcached, usage, Arc::clone(&pattern), Requests::Fixed(2), 3)
}

/// Returns an echo protocol over persistent connections.
fn echo() -> Echo {
    Echo::new(MESSAGE_BYTES, 0, 0)
}

fn filler(response_bytes: usize) -> impl Fn() -> Filler + Clone + Send + 'static {
    move || Filler::new(Exchange { request_bytes: MESSAGE_BYTES, response_bytes }, 0)
}

/// Returns the correct answer to a request for a file.
fn right(request: &[u8]) -> Vec<u8> {
    let number: u32 = std::str::from_utf8(&request[5..10]).unwrap().parse().unwrap();
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").into_bytes();
    answer.extend(&Pattern::new().piece(number, 0)[..SIZE as usize]);
    answer
}

/// Returns all latencies in the measured time.
fn latencies(tally: &Tally) -> Times {
    let mut all = new_times();
    for value in tally.slices.iter().flat_map(|slice| slice.latencies.iter_recorded()) {
        all.record_n(value.value_iterated_to(), value.count_at_value().into()).unwrap();
    }
    all
}

#[track_caller]
fn assert_right(tally: &Tally) {
    assert_eq!(tally.faults.describe(), [""; 0], "{tally:?}");
    assert!(tally.transactions > 0, "{tally:?}");
}

#[track_caller]
fn assert_complains(tally: &Tally, part: &str) {
    let told = &tally.faults.describe()[0];
    assert!(told.contains("answers differed") && told.contains(part), "{told}");
}

#[track_caller]
fn assert_unanswered(tally: &Tally, count: usize) {
    let told = tally.faults.describe();
    let expected = format!("{count} requests got no answer, the oldest for ");
    assert!(told.len() == 1 && told[0].starts_with(&expected), "{told:?}");
    assert!((count..=CONNECTIONS).contains(&tally.open_ages_ns.len()), "{tally:?}");
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
        let tally = Slot { ending, ..Slot::new(&fake) }.run(http(2));
        assert_right(&tally);
        // Two requests for each connection, except for connections that the end of the slot cut
        // off.
        assert!(tally.connections * 2 >= tally.transactions, "{tally:?}");
        let complete = tally.connections.saturating_sub(CONNECTIONS as u64);
        assert!(complete * 2 <= tally.transactions, "{tally:?}");
    }
}

#[test]
fn persistent_connections_are_opened_once() {
    let fake = Fake::start(|stream, request| stream.write_all(&right(request)).is_ok());
    let tally = Slot::new(&fake).run(http(0));
    assert_right(&tally);
    assert_eq!(tally.connections, CONNECTIONS as u64);
}

#[test]
fn a_wrong_status_length_or_body_is_noticed() {
    let wrong = |answering: fn(&[u8]) -> Vec<u8>| {
        let fake =
            Fake::start(move |stream, request| stream.write_all(&answering(request)).is_ok());
        Slot::new(&fake).run(http(1))
    };
    let oops = wrong(|_| b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec());
    assert_complains(&oops, "answer 1 has the status line `HTTP/1.1 500 Oops`");
    let short = wrong(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n1234567".to_vec());
    assert_complains(&short, "has Content-Length 7 for file");
    let flipped = wrong(|request| {
        let mut answer = right(request);
        let last = answer.len() - 1;
        answer[last] ^= 1;
        answer
    });
    assert_complains(&flipped, "differs at byte 2999: ");
    let surplus = wrong(|request| [right(request), b"x".to_vec()].concat());
    assert_complains(&surplus, "has surplus bytes behind it, 1 or more");
}

#[test]
fn a_miss_is_noticed() {
    let fake = Fake::start(|stream, _| stream.write_all(b"END\r\n").is_ok());
    let tally = Slot { ending: Ending::Reset, ..Slot::new(&fake) }.run(cache());
    assert_complains(&tally, "is a miss of key");
}

#[test]
fn zeros_flipped_bits_and_surplus_bytes_of_an_echo_are_noticed() {
    let wrong = |spoil: fn(&mut Vec<u8>)| {
        let fake = Fake::start(move |stream, request| {
            let mut answer = request.to_vec();
            spoil(&mut answer);
            stream.write_all(&answer).is_ok()
        });
        Slot::new(&fake).run(echo)
    };
    assert_complains(&wrong(|answer| answer.fill(0)), "0x00 where 0x");
    assert_complains(&wrong(|answer| answer[31] ^= 0x40), "answer 1 differs at byte 31: 0x");
    assert_complains(&wrong(|answer| answer.push(b'x')), "has surplus bytes behind it");
}

#[test]
fn zeros_flipped_bits_and_surplus_bytes_of_filler_are_noticed() {
    for response_bytes in [100, 20_000] {
        let exchange = Exchange { request_bytes: MESSAGE_BYTES, response_bytes };
        let load = move |is_ours: bool, spoil: fn(&mut Vec<u8>, usize)| {
            let answers = AtomicUsize::new(0);
            let fake = Fake::start(move |stream, _| {
                let mut answer = exchange.filler();
                spoil(&mut answer, answers.fetch_add(1, Ordering::Relaxed));
                stream.write_all(&answer).is_ok()
            });
            let mut slot = Slot::new(&fake);
            slot.order.is_ours = is_ours;
            slot.run(filler(response_bytes))
        };
        assert_right(&load(true, |_, _| ()));
        assert_right(&load(false, |_, _| ()));
        // Other servers' answers are unknown, except that they are always the same.
        assert_right(&load(false, |answer, _| answer.fill(0)));
        let zeros = load(true, |answer, _| answer.fill(0));
        assert_complains(&zeros, "differs at byte 0: 0x00 where 0x48 was due");
        let flipped = load(true, |answer, _| answer[90] ^= 1);
        assert_complains(&flipped, "differs at byte 90: 0x2f where 0x2e was due");
        // Only a sample of the long answers is examined, so an odd one may be missed.
        if response_bytes < 4_096 {
            let flipped = load(false, |answer, number| answer[90] ^= u8::from(number > 0));
            assert_complains(&flipped, "differs at byte 90: 0x2");
        }
        assert_complains(&load(true, |answer, _| answer.push(b'.')), "has surplus bytes behind it");
    }
}

#[test]
fn a_short_answer_is_no_answer() {
    let fake = Fake::start(|stream, request| stream.write_all(&request[1..]).is_ok());
    // Missing bytes show only after a wait; the bytes that are there are wrong already.
    assert_complains(&Slot::with_short_limit(&fake).run(echo), "differs at byte 0: ");
    let fake = Fake::start(|stream, request| {
        let most = request.len() - 1;
        stream.write_all(&request[..most]).is_ok()
    });
    assert_unanswered(&Slot::with_short_limit(&fake).run(echo), CONNECTIONS);
}

#[test]
fn a_server_that_closes_early_is_noticed() {
    let fake = Fake::start(|stream, request| {
        let answer = right(request);
        let _ = stream.write_all(&answer[..100]);
        false
    });
    let tally = Slot::new(&fake).run(http(1));
    assert!(tally.faults.describe()[0].contains("closed or reset"), "{tally:?}");
    assert_eq!(tally.transactions, 0);
}

#[test]
fn a_server_that_never_answers_is_noticed_and_does_not_hang_us() {
    let fake = Fake::start(|_, _| true);
    let tally = Slot::with_short_limit(&fake).run(http(1));
    assert_unanswered(&tally, CONNECTIONS);
    assert_eq!(tally.transactions, 0);
}

/// Returns an echo server that stops answering on the connections that `dies` selects, once the
/// flag is set.
fn mortal(dies: fn(usize) -> bool) -> (Fake, Arc<AtomicBool>) {
    let dead = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&dead);
    let fake = Fake::start_with(move |number| {
        let (told, dies) = (Arc::clone(&told), dies(number));
        Arc::new(move |stream: &mut TcpStream, request: &[u8]| {
            (dies && told.load(Ordering::Relaxed)) || stream.write_all(request).is_ok()
        })
    });
    (fake, dead)
}

#[test]
fn a_server_that_falls_silent_is_noticed() {
    let (fake, dead) = mortal(|_| true);
    let slot = Slot { slicing: LONG, ..Slot::with_short_limit(&fake) };
    let tally = slot.run_with(echo, || dead.store(true, Ordering::Relaxed));
    assert_unanswered(&tally, CONNECTIONS);
    assert!(tally.transactions > 0, "{tally:?}");
}

#[test]
fn dead_connections_are_noticed_and_cannot_make_latencies_better() {
    let (fake, dead) = mortal(|number| number % 2 == 1);
    let slot = Slot { slicing: LONG, ..Slot::with_short_limit(&fake) };
    let tally = slot.run_with(echo, || dead.store(true, Ordering::Relaxed));
    assert_unanswered(&tally, CONNECTIONS / 2);
    let mut all = latencies(&tally);
    let completed = all.len();
    add_open(&mut all, tally.open_ages_ns.iter().copied());
    assert_eq!(all.len(), completed + tally.open_ages_ns.len() as u64);
    // A silence is long from a fifth of the measured time on.
    assert!(all.max() > LONG.total_ns() / 5, "{}", all.max());
}

#[test]
fn what_is_late_is_not_lost() {
    let pausing = Arc::new(AtomicBool::new(false));
    let (paused, resumed) = (Arc::clone(&pausing), Arc::clone(&pausing));
    let waiting = Fake::start(move |stream, request| {
        while paused.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        stream.write_all(request).is_ok()
    });
    let slot = Slot { slicing: LONG, ..Slot::new(&waiting) };
    let tally = slot.run_with(echo, || {
        pausing.store(true, Ordering::Relaxed);
        thread::spawn(move || {
            thread::sleep(Duration::from_nanos(LONG.total_ns()) + Duration::from_millis(100));
            resumed.store(false, Ordering::Relaxed);
        });
    });
    assert_right(&tally);
    // These requests made no progress for long when the measured time ended, which is reported.
    let oldest_ns = *tally.open_ages_ns.iter().max().unwrap();
    assert!(oldest_ns > LONG.total_ns() / 5, "{oldest_ns}");
}

#[test]
fn a_fixed_delay_shows_in_every_latency() {
    let fake = Fake::start(|stream, request| {
        thread::sleep(Duration::from_millis(4));
        stream.write_all(request).is_ok()
    });
    let tally = Slot { slicing: LONG, ..Slot::new(&fake) }.run(echo);
    assert_right(&tally);
    let latencies = latencies(&tally);
    assert!(latencies.min() >= 3_900_000, "{}", latencies.min());
}

#[test]
fn pauses_show_in_the_highest_percentiles() {
    let answers = AtomicUsize::new(0);
    let fake = Fake::start(move |stream, request| {
        if answers.fetch_add(1, Ordering::Relaxed).is_multiple_of(20) {
            thread::sleep(Duration::from_millis(50));
        }
        stream.write_all(request).is_ok()
    });
    let tally = Slot { slicing: LONG, ..Slot::new(&fake) }.run(echo);
    assert_right(&tally);
    let p99_ns = latencies(&tally).value_at_quantile(0.99);
    assert!(p99_ns >= 49_000_000, "{p99_ns}");
}

#[test]
fn a_server_that_is_not_there_is_noticed() {
    let fake = Fake::start(|_, _| true);
    let address = fake.address;
    drop(fake);
    let gone = Fake { address, stop: Arc::default(), thread: None };
    let tally = Slot::new(&gone).run(http(1));
    assert!(tally.faults.describe()[0].contains("could not be established"), "{tally:?}");
}
