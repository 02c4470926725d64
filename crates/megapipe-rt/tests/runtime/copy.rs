//! Tests copying between connections: a proxy between plain blocking sockets.

use crate::common::{TIME_LIMIT, limited, on_thread, runtime, within};
use megapipe::{BufferClass, Config, DriverChoice};
use megapipe_rt::{
    Stream, TcpListener, TcpStream, UnixStream, copy, copy_bidirectional, pipe, sleep, spawn_local,
    timeout,
};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net as std_unix;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

on_both_drivers!(
    a_proxy_passes_both_directions_and_their_ends,
    a_half_closed_direction_leaves_the_other,
    a_slow_receiver_slows_the_sender,
    an_error_ends_the_copy,
    a_copy_without_buffers_goes_on,
    dropped_copies_lose_no_byte,
    pipes_and_streams_are_copied,
);

const BYTES: usize = 3_000_000;

/// A connection of the runtime, and its peer outside.
fn connection() -> (UnixStream, std_unix::UnixStream) {
    let (ours, peer) = std_unix::UnixStream::pair().unwrap();
    peer.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    peer.set_write_timeout(Some(TIME_LIMIT)).unwrap();
    (UnixStream::from_std(ours).unwrap(), peer)
}

/// Sends the bytes and ends the direction, and returns all that comes.
fn exchange<S>(mut stream: S, clone: S, bytes: Vec<u8>, end: impl FnOnce(&S) + Send) -> Vec<u8>
where
    S: Read + Write + Send,
{
    let mut writer = clone;
    thread::scope(|scope| {
        scope.spawn(move || {
            for piece in bytes.chunks(70_001) {
                writer.write_all(piece).unwrap();
            }
            end(&writer);
        });
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    })
}

fn exchange_unix(stream: std_unix::UnixStream, bytes: Vec<u8>) -> Vec<u8> {
    let clone = stream.try_clone().unwrap();
    exchange(stream, clone, bytes, |stream| stream.shutdown(Shutdown::Write).unwrap())
}

fn a_proxy_passes_both_directions_and_their_ends(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = thread::spawn(move || {
            let stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            let clone = stream.try_clone().unwrap();
            exchange(stream, clone, testkit::content(BYTES), |stream| {
                stream.shutdown(Shutdown::Write).unwrap();
            })
        });
        let mut front: TcpStream = listener.accept().await.unwrap();
        let (mut back, server) = connection();
        let backward: Vec<u8> = testkit::content(BYTES / 2).into_iter().rev().collect();
        let sent = backward.clone();
        let server = thread::spawn(move || exchange_unix(server, sent));
        let copied = copy_bidirectional(&mut front, &mut back).await.unwrap();
        assert_eq!(copied, (BYTES as u64, BYTES as u64 / 2));
        assert!(on_thread(move || server.join().unwrap()).await == testkit::content(BYTES));
        assert!(on_thread(move || client.join().unwrap()).await == backward);
    });
}

fn a_half_closed_direction_leaves_the_other(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut left, mut client) = connection();
        let (mut right, mut server) = connection();
        let proxy =
            spawn_local(async move { copy_bidirectional(&mut left, &mut right).await.unwrap() });
        on_thread(move || {
            client.write_all(b"request").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut request = Vec::new();
            server.read_to_end(&mut request).unwrap();
            assert_eq!(request, b"request");
            // The other direction goes on, in pieces.
            for piece in [&b"first"[..], b"second"] {
                server.write_all(piece).unwrap();
                let mut found = vec![0; piece.len()];
                client.read_exact(&mut found).unwrap();
                assert_eq!(found, piece);
            }
            drop(server);
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        })
        .await;
        assert_eq!(proxy.await.unwrap(), (7, 11));
    });
}

fn a_slow_receiver_slows_the_sender(driver: DriverChoice) {
    const TOTAL: usize = 32 << 20;
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut left, mut client) = connection();
        let (mut right, mut server) = connection();
        right.set_high_water(100_000);
        let proxy =
            spawn_local(async move { copy_bidirectional(&mut left, &mut right).await.unwrap() });
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let sender = thread::spawn(move || {
            let piece = [7; 1 << 16];
            for _ in 0..TOTAL / piece.len() {
                client.write_all(&piece).unwrap();
                count.fetch_add(piece.len(), Ordering::SeqCst);
            }
        });
        // The sender comes to a stop, long before it has sent all.
        let (mut before, mut still) = (0, 0);
        while still < 10 || before == 0 {
            sleep(Duration::from_millis(20)).await;
            let now = sent.load(Ordering::SeqCst);
            still = if now == before { still + 1 } else { 0 };
            before = now;
        }
        assert!(before < TOTAL / 4, "the proxy took {before} bytes for a peer that does not read");
        let received = on_thread(move || {
            let mut all = Vec::new();
            server.read_to_end(&mut all).unwrap();
            all
        })
        .await;
        assert!(received.len() == TOTAL && received.iter().all(|byte| *byte == 7));
        sender.join().unwrap();
        assert_eq!(proxy.await.unwrap(), (TOTAL as u64, 0));
    });
}

fn an_error_ends_the_copy(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut left, mut client) = connection();
        let (mut right, server) = connection();
        drop(server);
        let proxy = spawn_local(async move { copy_bidirectional(&mut left, &mut right).await });
        let ended = on_thread(move || {
            // The server is gone: the copy ends at the latest when it cannot write.
            while client.write_all(&[1; 1000]).is_ok() {}
        });
        ended.await;
        let error = proxy.await.unwrap().unwrap_err();
        assert!(
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset),
            "{error}"
        );
    });
}

fn a_copy_without_buffers_goes_on(driver: DriverChoice) {
    let config = Config {
        driver,
        small_buffers: BufferClass { count: 2, bytes: 512 },
        large_buffers: BufferClass { count: 2, bytes: 4096 },
        ..Config::default()
    };
    let runtime = crate::common::builder(driver, 1).channel_config(config).build().unwrap();
    within(&runtime, async {
        let mut peers = Vec::new();
        for number in 0..4 {
            let (mut left, client) = connection();
            let (mut right, server) = connection();
            spawn_local(async move { copy_bidirectional(&mut left, &mut right).await });
            let there = testkit::content(300_000 + number);
            let back = testkit::content(200_000 + number);
            peers.push((there.clone(), thread::spawn(move || exchange_unix(server, back))));
            let back = testkit::content(200_000 + number);
            peers.push((back, thread::spawn(move || exchange_unix(client, there))));
        }
        for (expected, peer) in peers {
            assert!(on_thread(move || peer.join().unwrap()).await == expected);
        }
    });
}

fn dropped_copies_lose_no_byte(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut left, client) = connection();
        let (mut right, server) = connection();
        right.set_high_water(5_000);
        let forward = testkit::content(500_000);
        let backward = testkit::content(400_000);
        let (sent, returned) = (forward.clone(), backward.clone());
        let client = thread::spawn(move || exchange_unix(client, sent));
        let server = thread::spawn(move || exchange_unix(server, returned));
        let mut dropped = 0;
        loop {
            match limited(1, copy_bidirectional(&mut left, &mut right)).await {
                Some(ended) => {
                    ended.unwrap();
                    break;
                }
                None => dropped += 1,
            }
            megapipe_rt::yield_now().await;
        }
        assert!(dropped > 0);
        assert!(on_thread(move || server.join().unwrap()).await == forward);
        assert!(on_thread(move || client.join().unwrap()).await == backward);
    });
}

/// Copies through a stream and a pipe.
async fn through<F>(stream: Stream<F>, mut output: megapipe_rt::PipeWriter) -> io::Result<u64> {
    let (mut reader, _writer) = stream.split();
    copy(&mut reader, &mut output).await
}

fn pipes_and_streams_are_copied(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (left, mut client) = connection();
        let (mut reader, writer) = pipe().unwrap();
        let copied = spawn_local(through(left, writer));
        let sender = thread::spawn(move || client.write_all(&testkit::content(BYTES)).unwrap());
        let mut received = Vec::new();
        while let Some(message) = reader.read().await.unwrap() {
            received.extend_from_slice(&message);
        }
        assert_eq!(copied.await.unwrap().unwrap(), BYTES as u64);
        assert!(received == testkit::content(BYTES));
        sender.join().unwrap();
        assert!(timeout(TIME_LIMIT, reader.read()).await.unwrap().unwrap().is_none());
    });
}
