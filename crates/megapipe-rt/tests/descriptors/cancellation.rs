//! Drops futures at every await point, and counts what is left: connections, descriptors, buffers.
//!
//! The channels have so few buffers and places for sockets that a leak in one step makes a later
//! one fail. Peers are plain blocking sockets, which see whether a connection is really closed.

use crate::common::{TIME_LIMIT, limited, within};
use crate::connections::{
    MESSAGE, STEPS_MAX, client, content, drop_and_repeat, drop_at_every_await_point,
};
use crate::{alone, open_descriptors};
use futures_lite::future::zip;
use megapipe::{BufferClass, Config, DriverChoice};
use megapipe_rt::{
    File, Message, ReadHalf, Runtime, TaskGroup, TcpListener, TcpStream, Unix, UnixListener,
    UnixStream, WriteHalf, copy, copy_bidirectional, pipe,
};
use std::fs::OpenOptions;
use std::future::poll_fn;
use std::io::{self, Read};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

on_both_drivers!(
    futures_dropped_at_every_await_point_leave_nothing,
    operations_dropped_and_repeated_lose_no_byte,
    dropped_connects_close_their_sockets,
    a_dropped_listener_closes_what_it_accepted,
    unix_sockets_dropped_at_every_await_point_leave_nothing,
    proxies_dropped_at_every_await_point_leave_nothing,
    pipes_files_and_groups_dropped_at_every_await_point_leave_nothing,
);

fn small_runtime(driver: DriverChoice) -> Runtime {
    let config = Config {
        driver,
        small_buffers: BufferClass { count: 2, bytes: 512 },
        large_buffers: BufferClass { count: 2, bytes: 4096 },
        max_lightweight: 16,
        ..Config::default()
    };
    Runtime::builder().cores(1).pinned(false).channel_config(config).build().unwrap()
}

/// Waits until the process has `expected` descriptors again: the kernel closes some of them late.
async fn wait_for_descriptors(expected: usize) {
    let began = Instant::now();
    while open_descriptors() > expected {
        assert!(began.elapsed() < TIME_LIMIT, "{} descriptors, not {expected}", open_descriptors());
        megapipe_rt::sleep(Duration::from_millis(1)).await;
    }
}

fn futures_dropped_at_every_await_point_leave_nothing(driver: DriverChoice) {
    let _alone = alone();
    let before = open_descriptors();
    let runtime = small_runtime(driver);
    let steps = within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let expected = open_descriptors();
        let nothing_is_left = async || wait_for_descriptors(expected).await;
        drop_at_every_await_point(&mut listener, address, nothing_is_left).await
    });
    drop(runtime);
    // Fewer if the kernel closed one of the former test meanwhile.
    assert!(open_descriptors() <= before);
    println!("{steps} steps, nothing left");
}

fn operations_dropped_and_repeated_lose_no_byte(driver: DriverChoice) {
    let _alone = alone();
    let runtime = small_runtime(driver);
    let steps = within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop_and_repeat(&mut listener, address).await
    });
    assert!(steps > 100, "only {steps} futures were dropped");
    println!("{steps} futures dropped");
}

fn dropped_connects_close_their_sockets(driver: DriverChoice) {
    let _alone = alone();
    let runtime = small_runtime(driver);
    within(&runtime, async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let expected = open_descriptors();
        listener.set_nonblocking(true).unwrap();
        // More than there are places for lightweight sockets.
        for round in 0..40 {
            let mut connect = Box::pin(TcpStream::connect(address));
            let polled = poll_fn(|context| Poll::Ready(connect.as_mut().poll(context))).await;
            assert!(polled.is_pending(), "{polled:?}");
            if round % 2 == 1 {
                // The connection is made, and its completion waits.
                megapipe_rt::sleep(Duration::from_millis(1)).await;
            }
            drop(connect);
            wait_for_descriptors(expected).await;
        }
        while let Ok((mut peer, _)) = listener.accept() {
            peer.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            let closed = thread::spawn(move || peer.read(&mut [0; 1]));
            while !closed.is_finished() {
                megapipe_rt::sleep(Duration::from_millis(1)).await;
            }
            let end = closed.join().unwrap();
            let reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
            assert!(end.as_ref().is_ok_and(|n| *n == 0) || end.as_ref().is_err_and(reset));
        }
        listener.set_nonblocking(false).unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write(b"alive").await.unwrap();
        let mut peer = listener.accept().unwrap().0;
        stream.flush().await.unwrap();
        let mut found = [0; 5];
        peer.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"alive");
    });
}

fn a_dropped_listener_closes_what_it_accepted(driver: DriverChoice) {
    let _alone = alone();
    let runtime = small_runtime(driver);
    within(&runtime, async {
        let expected = open_descriptors();
        for _ in 0..10 {
            let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let peers: Vec<_> = (0..5).map(|_| client(address)).collect();
            drop(listener.accept().await.unwrap());
            drop(listener);
            for peer in peers {
                while !peer.is_finished() {
                    megapipe_rt::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(peer.join().unwrap(), 0);
            }
            wait_for_descriptors(expected).await;
        }
    });
}

/// Runs a scenario of one future again and again, each time for one poll more, until it ends.
/// After each, nothing of it may be left.
async fn sweep(scenario: &impl AsyncFn() -> io::Result<()>) {
    // With the first access to a disk, the epoll driver opens an eventfd for its helper threads.
    File::from_std(tempfile::tempfile().unwrap()).unwrap().sync().await.unwrap();
    let expected = open_descriptors();
    for polls in 0.. {
        assert!(polls < STEPS_MAX, "the scenario does not end");
        let ended = limited(polls, scenario()).await;
        wait_for_descriptors(expected).await;
        if let Some(result) = ended {
            result.unwrap();
            println!("{polls} steps, nothing left");
            return;
        }
    }
}

/// Runs a sweep in a runtime with few buffers and places for sockets.
fn sweep_alone(driver: DriverChoice, scenario: impl AsyncFn() -> io::Result<()>) {
    let _alone = alone();
    let before = open_descriptors();
    let runtime = small_runtime(driver);
    for _ in 0..3 {
        within(&runtime, sweep(&scenario));
    }
    drop(runtime);
    // A thread for blocking calls may end later than its runtime.
    assert!(testkit::eventually(TIME_LIMIT, || open_descriptors() <= before));
}

/// Sends the content and ends the direction.
async fn send(writer: &mut WriteHalf<Unix>) -> io::Result<()> {
    for piece in content().chunks(3000) {
        writer.write(piece.to_vec()).await?;
    }
    writer.shutdown().await
}

/// Reads to the end, and compares.
async fn expect<F>(reader: &mut ReadHalf<F>) -> io::Result<()> {
    let mut received = Vec::new();
    while let Some(message) = reader.read().await? {
        received.extend_from_slice(&message);
    }
    assert!(received == content(), "{} bytes", received.len());
    Ok(())
}

fn unix_sockets_dropped_at_every_await_point_leave_nothing(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    sweep_alone(driver, async || {
        assert!(!path.exists(), "a dropped listener left its file");
        let mut listener = UnixListener::bind(&path)?;
        let (client, server) = zip(UnixStream::connect(&path), listener.accept()).await;
        let (mut client, mut server) = (client?, server?);
        // Descriptors in both directions, some of which are never received.
        for count in 0..3 {
            let (_reader, writer) = io::pipe()?;
            let message = Message::new(vec![count; 10]).with_descriptor(writer);
            client.send_message(message).await?;
        }
        for _ in 0..2 {
            let message = server.receive_message(10, 1).await?.expect("a message");
            assert_eq!(message.descriptors().len(), 1);
            server.send_message(message).await?;
        }
        let echoed = client.receive_message(100, 2).await?.expect("a message");
        assert_eq!(echoed.descriptors().len(), 1);
        // What was not received is closed with the sockets.
        server.write("end").await?;
        server.shutdown().await
    });
}

fn proxies_dropped_at_every_await_point_leave_nothing(driver: DriverChoice) {
    sweep_alone(driver, async || {
        let (left, mut front) = UnixStream::pair()?;
        let (mut back, right) = UnixStream::pair()?;
        front.set_high_water(2000);
        back.set_high_water(2000);
        let (mut near_reader, mut near_writer) = left.split();
        let (mut far_reader, mut far_writer) = right.split();
        let echo = copy(&mut far_reader, &mut far_writer);
        let proxy = copy_bidirectional(&mut front, &mut back);
        let client = zip(send(&mut near_writer), expect(&mut near_reader));
        let ((sent, received), (echoed, passed)) = zip(client, zip(echo, proxy)).await;
        sent.and(received)?;
        assert_eq!((echoed?, passed?), (MESSAGE as u64, (MESSAGE as u64, MESSAGE as u64)));
        Ok(())
    });
}

fn pipes_files_and_groups_dropped_at_every_await_point_leave_nothing(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    sweep_alone(driver, async || {
        let (mut reader, mut writer) = pipe()?;
        let sending = async move {
            writer.write(content()).await?;
            writer.flush().await
        };
        let (sent, received) = zip(sending, expect(&mut reader)).await;
        sent.and(received)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).read(true).write(true);
        let mut file = File::open_with(&options, &path).await?;
        file.write(content()).await?;
        file.sync().await?;
        file.set_position(0);
        assert!(file.read_to_end().await? == content());
        let mut group = TaskGroup::new();
        for number in 0..3 {
            let (reader, mut writer) = UnixStream::pair()?;
            group.spawn(async move {
                writer.write(vec![number; 1000]).await?;
                writer.shutdown().await
            });
            group.spawn(async move {
                let (mut reader, _writer) = reader.split();
                while reader.read().await?.is_some() {}
                Ok(())
            });
        }
        group.join_all().await?.into_iter().collect()
    });
}
