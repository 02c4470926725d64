//! Tests of every server from its peers' side: answers to requests in any number and any pieces,
//! faulty peers, counters, and that nothing is left behind.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use systemtests_bench::{Serving, children, is_alive, signal, wait_until};
use testkit::raise_descriptor_limit;

const SERVERS: [&str; 13] = [
    "epoll",
    "epoll-partitioned",
    "epoll-edge",
    "poll",
    "select",
    "thread",
    "process",
    "blocking-pool",
    "megapipe",
    "megapipe-epoll",
    "megapipe-stealing",
    "megapipe-p",
    "megapipe-pb",
];

/// Time-out, longer than any answer takes on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn connect(serving: &Serving) -> TcpStream {
    let stream = TcpStream::connect(&serving.address).expect("the server listens");
    stream.set_nodelay(true).expect("a TCP socket");
    stream.set_read_timeout(Some(TIME_LIMIT)).expect("a TCP socket");
    stream.set_write_timeout(Some(TIME_LIMIT)).expect("a TCP socket");
    stream
}

/// Bytes in which lost or repeated ones are detected.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Sends pieces of irregular sizes while the answer is read to its end.
fn exchange(stream: TcpStream, bytes: &[u8], longest_piece: usize) -> Vec<u8> {
    let mut writer = stream.try_clone().expect("a descriptor");
    let bytes = bytes.to_vec();
    let sender = thread::spawn(move || {
        let (mut rest, mut state) = (&bytes[..], 12_345_usize);
        while !rest.is_empty() {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            let length = ((state >> 16) % longest_piece + 1).min(rest.len());
            writer.write_all(&rest[..length]).expect("the server reads");
            rest = &rest[length..];
        }
        writer.shutdown(Shutdown::Write).expect("the socket is connected");
    });
    let mut answer = Vec::new();
    let mut stream = stream;
    // A server that closes with bytes unread resets; what was answered before counts.
    let _ = stream.read_to_end(&mut answer);
    sender.join().expect("everything is sent");
    answer
}

/// Returns a figure of the line that `serve` prints at its end.
fn figure(printed: &str, name: &str) -> f64 {
    let parts = printed.trim().split(", ");
    let found = parts.filter_map(|part| part.split_once(' ')).find(|(_, what)| *what == name);
    let (value, _) = found.unwrap_or_else(|| panic!("no `{name}` in: {printed}"));
    value.parse().expect("a number")
}

/// Ends the server and checks its counters; returns its output.
#[track_caller]
fn assert_balanced(server: &str, serving: Serving, connections: usize) -> String {
    let (status, printed) = serving.finish();
    assert_eq!(status, Some(0), "{server}: {printed}");
    assert_eq!(figure(&printed, "connections"), connections as f64, "{server}: {printed}");
    assert_eq!(figure(&printed, "closed"), connections as f64, "{server}: {printed}");
    assert_eq!(figure(&printed, "errors"), 0.0, "{server}: {printed}");
    assert!(figure(&printed, "system calls") > 0.0);
    printed
}

/// Waits until the server has closed its side, because it then has counted everything.
fn wait_for_end(mut stream: TcpStream) {
    stream.shutdown(Shutdown::Write).expect("the socket is connected");
    let mut surplus = Vec::new();
    stream.read_to_end(&mut surplus).expect("the server closes");
    assert!(surplus.is_empty(), "{} surplus bytes", surplus.len());
}

#[test]
fn echoes_come_back_whatever_their_size_and_pieces() {
    for server in SERVERS {
        let serving = Serving::start(server);
        let mut total = 0;
        let sizes = [(1, 1), (7, 3), (4_097, 100), (65_537, 9_000), (400_000, 100_000)];
        for (size, longest_piece) in sizes {
            let bytes = pattern(size);
            let answer = exchange(connect(&serving), &bytes, longest_piece);
            assert!(answer == bytes, "{server}: {} of {size} bytes or others", answer.len());
            total += size;
        }
        let printed = assert_balanced(server, serving, sizes.len());
        assert_eq!(figure(&printed, "bytes received"), total as f64, "{server}");
        assert_eq!(figure(&printed, "bytes sent"), total as f64, "{server}");
    }
}

#[test]
fn requests_of_a_size_are_answered_each_with_a_response_of_a_size() {
    const SIZES: [&str; 4] = ["--request-bytes", "128", "--response-bytes", "10240"];
    for server in SERVERS {
        let serving = Serving::start_with(server, &SIZES);
        for longest_piece in [50, 128, 300, 5_000] {
            // The incomplete one at the end gets no answer.
            let answer = exchange(connect(&serving), &pattern(128 * 20 + 127), longest_piece);
            assert_eq!(answer.len(), 20 * 10_240, "{server}, pieces up to {longest_piece}");
            let first = &answer[..10_240];
            assert!(first.starts_with(b"HTTP/1.1 200 OK\r\nContent-Length: "), "{server}");
            assert!(answer.chunks(10_240).all(|response| response == first), "{server}");
        }
        let printed = assert_balanced(server, serving, 4);
        assert_eq!(figure(&printed, "bytes sent"), 4.0 * 20.0 * 10_240.0, "{server}");
    }
}

#[test]
fn responses_as_long_as_requests_are_echoes_of_whole_requests() {
    const SIZES: [&str; 4] = ["--request-bytes", "1000", "--response-bytes", "1000"];
    for server in SERVERS {
        let serving = Serving::start_with(server, &SIZES);
        for longest_piece in [300, 1_000, 20_000] {
            let bytes = pattern(200_999);
            let answer = exchange(connect(&serving), &bytes, longest_piece);
            assert!(answer == bytes[..200_000], "{server}: {} bytes or others", answer.len());
        }
        assert_balanced(server, serving, 3);
    }
}

#[test]
fn a_peer_that_reads_late_gets_everything_and_holds_up_nobody() {
    const SIZES: [&str; 4] = ["--request-bytes", "64", "--response-bytes", "1048576"];
    for server in SERVERS {
        let serving = Serving::start_with(server, &SIZES);
        let mut late = connect(&serving);
        late.write_all(&[7; 3 * 64]).unwrap();
        let mut prompt = connect(&serving);
        let mut answer = vec![0; 1 << 20];
        for _ in 0..2 {
            prompt.write_all(&[7; 64]).unwrap();
            prompt.read_exact(&mut answer).unwrap_or_else(|error| panic!("{server}: {error}"));
        }
        wait_for_end(prompt);
        for _ in 0..3 {
            late.read_exact(&mut answer).unwrap_or_else(|error| panic!("{server}: {error}"));
        }
        wait_for_end(late);
        assert_balanced(server, serving, 2);
    }
}

/// Ends a connection with RST, as a crashed peer does.
fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

fn descriptors(serving: &Serving) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", serving.id())).expect("it runs").count()
}

#[test]
fn resets_end_connections_and_nothing_else() {
    const SIZES: [&str; 4] = ["--request-bytes", "64", "--response-bytes", "1048576"];
    const ROUNDS: usize = 10;
    for server in SERVERS {
        let serving = Serving::start_with(server, &SIZES);
        // The server may still open descriptors of its own when the first client comes, and the
        // first round's connections may still be open: what is lost in each round is more.
        let mut first = 0;
        for round in 0..ROUNDS {
            for sent in [0, 10, 64, 640] {
                let mut stream = connect(&serving);
                stream.write_all(&pattern(sent)).unwrap();
                if sent >= 64 {
                    // The server is in the middle of its answer now.
                    stream.read_exact(&mut [0; 1_000]).unwrap();
                }
                reset(stream);
            }
            if round == 0 {
                first = descriptors(&serving);
            }
        }
        let mut stream = connect(&serving);
        stream.write_all(&[7; 64]).unwrap();
        stream.read_exact(&mut vec![0; 1 << 20]).unwrap();
        wait_for_end(stream);
        // A thread or process notices a reset with a delay.
        wait_until("all connections are closed", || {
            let closed = descriptors(&serving) <= first && children(serving.id()).is_empty();
            closed.then_some(())
        });
        assert_balanced(server, serving, 4 * ROUNDS + 1);
    }
}

#[track_caller]
fn assert_carries(server: &str, connections: usize) -> (Serving, Vec<TcpStream>) {
    let serving = Serving::start(server);
    let mut streams: Vec<TcpStream> = (0..connections).map(|_| connect(&serving)).collect();
    for _ in 0..2 {
        for (number, stream) in streams.iter_mut().enumerate() {
            let message = (number as u32).to_le_bytes();
            stream.write_all(&message).unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, message, "{server}, connection {number}");
        }
    }
    (serving, streams)
}

#[test]
fn select_and_poll_carry_more_connections_than_a_bitmap_of_the_library_has_bits() {
    raise_descriptor_limit(4_000);
    for server in ["select", "poll", "epoll-edge"] {
        let (serving, streams) = assert_carries(server, 1_500);
        streams.into_iter().for_each(wait_for_end);
        assert_balanced(server, serving, 1_500);
    }
}

#[test]
fn every_connection_has_a_process_or_thread_of_its_own_which_ends_with_it() {
    let (serving, streams) = assert_carries("process", 200);
    assert_eq!(children(serving.id()).len(), 200);
    streams.into_iter().for_each(wait_for_end);
    wait_until("all children are reaped", || children(serving.id()).is_empty().then_some(()));
    assert_balanced("process", serving, 200);

    let threads = |serving: &Serving| {
        std::fs::read_dir(format!("/proc/{}/task", serving.id())).expect("it runs").count()
    };
    let (serving, streams) = assert_carries("thread", 200);
    assert!(threads(&serving) >= 200);
    streams.into_iter().for_each(wait_for_end);
    wait_until("all threads are gone", || (threads(&serving) < 10).then_some(()));
    assert_balanced("thread", serving, 200);
}

/// Makes ten exchanges one after the other.
fn ten_exchanges(serving: &Serving) -> Duration {
    let mut stream = connect(serving);
    let begun = Instant::now();
    for _ in 0..10 {
        stream.write_all(&[7; 64]).unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
    }
    let elapsed = begun.elapsed();
    wait_for_end(stream);
    elapsed
}

#[test]
fn work_takes_the_time_or_the_cpu_that_it_says() {
    let sizes = ["--request-bytes", "64", "--response-bytes", "100", "--work"];
    for server in SERVERS {
        let serving = Serving::start_with(server, &[&sizes[..], &["sleep:5ms"]].concat());
        let elapsed = ten_exchanges(&serving);
        assert!(elapsed >= Duration::from_millis(50), "{server}: {elapsed:?}");
        assert_balanced(server, serving, 1);

        let serving = Serving::start_with(server, &[&sizes[..], &["burn:5ms"]].concat());
        ten_exchanges(&serving);
        let printed = assert_balanced(server, serving, 1);
        // A child's CPU time is exact to the microsecond.
        assert!(figure(&printed, "ms of CPU") >= 49.9, "{server}: {printed}");
    }
}

#[test]
fn an_interrupted_server_ends_although_connections_are_open() {
    for server in SERVERS {
        let (serving, streams) = assert_carries(server, 20);
        let started = children(serving.id());
        assert_eq!(started.len(), if server == "process" { 20 } else { 0 }, "{server}");
        assert_eq!(serving.interrupt(), Some(0), "{server}");
        assert!(!started.into_iter().any(is_alive), "{server}: a child is left behind");
        for mut stream in streams {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert!(rest.is_empty(), "{server}: {} bytes nobody asked for", rest.len());
        }
    }
}

#[test]
fn a_server_at_work_ends_at_once_when_it_is_interrupted() {
    // The end must not wait for a thousand requests that take a second each.
    for work in ["sleep:1s", "burn:1s"] {
        for server in SERVERS {
            let more = ["--request-bytes", "1", "--response-bytes", "2", "--work", work];
            let serving = Serving::start_with(server, &more);
            let mut stream = connect(&serving);
            stream.write_all(&[7; 1_000]).unwrap();
            stream.read_exact(&mut [0; 2]).unwrap();
            assert_eq!(serving.interrupt(), Some(0), "{server}, {work}");
        }
    }
}

#[test]
fn killing_a_server_leaves_no_process_behind() {
    let (serving, _streams) = assert_carries("process", 50);
    let started = children(serving.id());
    assert_eq!(started.len(), 50);
    signal(serving.id(), libc::SIGKILL);
    wait_until("all children are gone", || {
        (!started.iter().any(|child| is_alive(*child))).then_some(())
    });
}
