//! Tests what tasks do while the channel takes no more requests: they wait, and nothing is lost.

use crate::common::{TIME_LIMIT, limited, on_thread, within};
use megapipe::{Config, DriverChoice};
use megapipe_rt::{File, Message, Runtime, TaskGroup, UnixStream, copy_bidirectional, spawn_local};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net as std_unix;
use std::rc::Rc;
use std::thread;

on_both_drivers!(
    copies_wait_for_a_full_channel,
    messages_wait_for_a_full_channel,
    files_wait_for_a_full_channel,
    a_dropped_shutdown_waits_for_a_full_channel,
);

/// A runtime whose channel takes so many requests at a time. One is the core's own.
fn runtime(driver: DriverChoice, max_requests: u32) -> Runtime {
    let config = Config { driver, max_requests, ..Config::default() };
    crate::common::builder(driver, 1).channel_config(config).build().unwrap()
}

/// Sends the bytes and ends the direction, and returns all that comes.
fn exchange(mut stream: std_unix::UnixStream, bytes: Vec<u8>) -> Vec<u8> {
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        for piece in bytes.chunks(5_000) {
            writer.write_all(piece).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    sender.join().unwrap();
    all
}

fn copies_wait_for_a_full_channel(driver: DriverChoice) {
    const PROXIES: u32 = 4;
    // A receive for each stream, and one write for all of them.
    let runtime = runtime(driver, 1 + 2 * PROXIES + 1);
    within(&runtime, async {
        let mut peers = Vec::new();
        let mut proxies = TaskGroup::new();
        for number in 0..PROXIES as usize {
            let [near, far] = [(); 2].map(|()| std_unix::UnixStream::pair().unwrap());
            let mut left = UnixStream::from_std(near.0).unwrap();
            let mut right = UnixStream::from_std(far.0).unwrap();
            proxies.spawn(async move { copy_bidirectional(&mut left, &mut right).await });
            let (there, back) =
                (testkit::content(300_000 + number), testkit::content(200_000 + number));
            let (sent, returned) = (there.clone(), back.clone());
            peers.push((back, thread::spawn(move || exchange(near.1, sent))));
            peers.push((there, thread::spawn(move || exchange(far.1, returned))));
        }
        for (expected, peer) in peers {
            assert!(on_thread(move || peer.join().unwrap()).await == expected);
        }
        for copied in proxies.join_all().await.unwrap() {
            let (there, back) = copied.unwrap();
            assert_eq!(there - back, 100_000);
        }
    });
}

fn messages_wait_for_a_full_channel(driver: DriverChoice) {
    // One receive and one send.
    let runtime = runtime(driver, 3);
    within(&runtime, async {
        let (mut left, mut right) = UnixStream::pair().unwrap();
        let sending = spawn_local(async move {
            let mut readers = Vec::new();
            for number in 0..50u8 {
                let (reader, writer) = io::pipe()?;
                let message = Message::new(vec![number; 1000]).with_descriptor(writer);
                left.send_message(message).await?;
                readers.push(reader);
            }
            left.shutdown().await?;
            Ok::<_, io::Error>(readers)
        });
        let (mut received, mut descriptors) = (Vec::new(), 0);
        while let Some(message) = right.receive_message(1000, 1).await.unwrap() {
            received.extend_from_slice(message.bytes());
            descriptors += message.descriptors().len();
        }
        let expected: Vec<u8> = (0..50u8).flat_map(|number| [number; 1000]).collect();
        assert!(received == expected && descriptors == 50, "{descriptors} descriptors");
        for mut reader in sending.await.unwrap().unwrap() {
            // Every copy of the writing end is closed.
            assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
        }
    });
}

fn files_wait_for_a_full_channel(driver: DriverChoice) {
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 40;
    let runtime = runtime(driver, 3);
    within(&runtime, async {
        let file = Rc::new(File::from_std(tempfile::tempfile().unwrap()).unwrap());
        let mut group = TaskGroup::new();
        for block in 0..BLOCKS {
            let file = Rc::clone(&file);
            group.spawn(async move {
                let offset = (block * BLOCK) as u64;
                file.write_at(vec![block as u8; BLOCK], offset).await?;
                file.sync_data().await?;
                file.read_at(Vec::with_capacity(BLOCK), offset).await
            });
        }
        let read: Result<Vec<_>, _> = group.join_all().await.unwrap().into_iter().collect();
        let mut read = read.unwrap();
        read.sort_unstable();
        let expected: Vec<_> = (0..BLOCKS).map(|block| vec![block as u8; BLOCK]).collect();
        assert!(read == expected);
    });
}

fn a_dropped_shutdown_waits_for_a_full_channel(driver: DriverChoice) {
    // The receive of another stream is the last request that the channel takes.
    let runtime = runtime(driver, 2);
    within(&runtime, async {
        let (ours, mut other) = std_unix::UnixStream::pair().unwrap();
        let mut waiting = UnixStream::from_std(ours).unwrap();
        assert!(limited(1, waiting.read()).await.is_none());
        let (ours, peer) = std_unix::UnixStream::pair().unwrap();
        let mut stream = UnixStream::from_std(ours).unwrap();
        stream.write_slice(b"last").await.unwrap();
        assert!(limited(1, stream.shutdown()).await.is_none());
        other.write_all(b"x").unwrap();
        other.shutdown(Shutdown::Both).unwrap();
        while waiting.read().await.unwrap().is_some() {}
        let all = on_thread(move || exchange(peer, Vec::new())).await;
        assert_eq!(all, b"last");
        drop(stream);
    });
}
