//! Tests of the end of a stream's writing direction, which comes with the end of a turn or with the
//! close, whichever is first.

use crate::common::{TIME_LIMIT, limited, on_thread, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{TcpListener, UnixStream, metrics, spawn_local, yield_now};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream as Peer;
use std::thread;

on_both_drivers! {
    a_shutdown_needs_no_further_wait,
    a_shutdown_that_is_dropped_comes_after_the_output,
    nothing_is_written_after_a_shutdown,
    a_close_after_a_shutdown_loses_nothing,
    a_shutdown_before_the_close_is_no_operation,
}

fn pair() -> (UnixStream, Peer) {
    let (ours, theirs) = Peer::pair().unwrap();
    theirs.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    (UnixStream::from_std(ours).unwrap(), theirs)
}

fn read_all(mut peer: Peer) -> Vec<u8> {
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    all
}

/// The runtime does nothing while the peer waits for the end.
fn a_shutdown_needs_no_further_wait(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (stream, peer) = within(&runtime, async {
        let (mut stream, peer) = pair();
        stream.write("all").await.unwrap();
        stream.shutdown().await.unwrap();
        (stream, peer)
    });
    assert_eq!(read_all(peer), b"all");
    drop(stream);
}

fn a_shutdown_that_is_dropped_comes_after_the_output(driver: DriverChoice) {
    within(&runtime(driver, 1), async {
        let (mut stream, peer) = pair();
        let content = testkit::content(1 << 20);
        // The peer does not read yet, so the output waits.
        let mut writer = spawn_local({
            let content = content.clone();
            async move {
                for piece in content.chunks(64 << 10) {
                    stream.set_high_water(2 << 20);
                    stream.write(piece.to_vec()).await.unwrap();
                }
                assert!(limited(1, stream.shutdown()).await.is_none());
                stream
            }
        });
        let stream = (&mut writer).await.unwrap();
        let read = on_thread(move || read_all(peer)).await;
        assert!(read == content, "{} of {} bytes", read.len(), content.len());
        drop(stream);
    });
}

fn nothing_is_written_after_a_shutdown(driver: DriverChoice) {
    within(&runtime(driver, 1), async {
        let (mut stream, peer) = pair();
        stream.write_slice(b"before").await.unwrap();
        stream.shutdown().await.unwrap();
        for _ in 0..3 {
            let refused = stream.write("after").await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
            let refused = stream.write_slice(b"after").await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
            yield_now().await;
        }
        assert_eq!(on_thread(move || read_all(peer)).await, b"before");
    });
}

fn a_close_after_a_shutdown_loses_nothing(driver: DriverChoice) {
    within(&runtime(driver, 1), async {
        let (mut stream, peer) = pair();
        let reader = thread::spawn(move || read_all(peer));
        let content = testkit::content(3 << 20);
        stream.write(content.clone()).await.unwrap();
        stream.shutdown().await.unwrap();
        drop(stream);
        let read = on_thread(move || reader.join().unwrap()).await;
        assert!(read == content, "{} of {} bytes", read.len(), content.len());
    });
}

/// Serves connections that send one message each, and returns the operations of the channel.
fn operations_of(driver: DriverChoice, shut_down: bool) -> u64 {
    const CONNECTIONS: usize = 20;
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients = thread::spawn(move || {
            for _ in 0..CONNECTIONS {
                let mut client = std::net::TcpStream::connect(address).unwrap();
                client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
                client.write_all(b"request").unwrap();
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).unwrap();
                assert_eq!(answer, b"answer");
            }
        });
        for _ in 0..CONNECTIONS {
            let mut stream = listener.accept().await.unwrap();
            assert_eq!(&*stream.read().await.unwrap().unwrap(), b"request");
            stream.write_slice(b"answer").await.unwrap();
            match shut_down {
                true => stream.shutdown().await.unwrap(),
                false => stream.flush().await.unwrap(),
            }
        }
        on_thread(move || clients.join().unwrap()).await;
    });
    within(&runtime, metrics::read(runtime.handle()))[0].channel.operations
}

fn a_shutdown_before_the_close_is_no_operation(driver: DriverChoice) {
    let (with, without) = (operations_of(driver, true), operations_of(driver, false));
    assert!(with <= without, "{with} operations with a shutdown, {without} without");
}
