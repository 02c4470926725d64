//! Tests the traits of tokio and futures-io on streams, against plain blocking sockets.

use crate::common::{TIME_LIMIT, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{TcpListener, UnixStream, pipe, spawn_local};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread;

on_both_drivers!(
    tokio_copies_a_stream,
    futures_io_copies_a_stream,
    slices_are_copied,
    unix_streams_and_pipes_have_the_traits,
);

const BYTES: usize = 3_000_000;

/// Sends the content in odd pieces, and returns what comes back.
fn client(address: SocketAddr) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sender = thread::spawn(move || {
            for piece in testkit::content(BYTES).chunks(70_001) {
                writer.write_all(piece).unwrap();
            }
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        sender.join().unwrap();
        all
    })
}

/// Lets a server answer one client, and compares.
fn check<F>(driver: DriverChoice, serve: impl Fn(megapipe_rt::TcpStream) -> F)
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = client(listener.local_addr().unwrap());
        let stream = listener.accept().await.unwrap();
        spawn_local(serve(stream)).await.unwrap().unwrap();
        assert!(peer.join().unwrap() == testkit::content(BYTES));
    });
}

fn tokio_copies_a_stream(driver: DriverChoice) {
    use tokio::io::AsyncWriteExt as _;
    check(driver, |stream| async move {
        let (mut reader, mut writer) = stream.split();
        assert_eq!(tokio::io::copy(&mut reader, &mut writer).await?, BYTES as u64);
        tokio::io::AsyncWriteExt::flush(&mut writer).await?;
        AsyncWriteExtShutdown::end(&mut writer).await
    });
    /// The inherent `shutdown` would win otherwise.
    trait AsyncWriteExtShutdown: tokio::io::AsyncWrite + Unpin + Sized {
        async fn end(&mut self) -> io::Result<()> {
            tokio::io::AsyncWriteExt::shutdown(self).await
        }
    }
    impl AsyncWriteExtShutdown for megapipe_rt::WriteHalf {}
    // The whole stream, with vectored writes.
    check(driver, |mut stream| async move {
        let mut buffer = vec![0; 3001];
        loop {
            match tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await? {
                0 => break,
                count => {
                    let (first, second) = buffer[..count].split_at(count / 2);
                    let slices = [io::IoSlice::new(first), io::IoSlice::new(second)];
                    assert_eq!(stream.write_vectored(&slices).await?, count);
                }
            }
        }
        tokio::io::AsyncWriteExt::shutdown(&mut stream).await
    });
}

fn futures_io_copies_a_stream(driver: DriverChoice) {
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    check(driver, |stream| async move {
        let (mut reader, mut writer) = stream.split();
        assert_eq!(futures_lite::io::copy(&mut reader, &mut writer).await?, BYTES as u64);
        writer.close().await
    });
    check(driver, |mut stream| async move {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await?;
        stream.write_all(&all).await?;
        stream.close().await
    });
}

fn slices_are_copied(driver: DriverChoice) {
    check(driver, |mut stream| async move {
        let mut room = [0; 5000];
        assert_eq!(stream.write_slice(&[]).await?, 0);
        loop {
            let count = stream.read_slice(&mut room).await?;
            if count == 0 {
                return stream.shutdown().await;
            }
            assert_eq!(stream.write_slice(&room[..count]).await?, count);
        }
    });
}

fn unix_streams_and_pipes_have_the_traits(driver: DriverChoice) {
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut near, far) = UnixStream::pair().unwrap();
        let (mut output, mut input) = pipe().unwrap();
        let (mut reader, _writer) = far.split();
        let copied = spawn_local(async move {
            let count = tokio::io::copy(&mut reader, &mut input).await?;
            tokio::io::AsyncWriteExt::flush(&mut input).await?;
            Ok::<u64, io::Error>(count)
        });
        let sent = spawn_local(async move {
            near.write_all(&testkit::content(BYTES)).await?;
            near.close().await
        });
        let mut all = Vec::new();
        output.read_to_end(&mut all).await.unwrap();
        sent.await.unwrap().unwrap();
        assert_eq!(copied.await.unwrap().unwrap(), BYTES as u64);
        assert!(all == testkit::content(BYTES));
    });
}
