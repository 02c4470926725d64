//! Drops futures of connections at every await point. The program that includes this file says how
//! to see that nothing is left.

use super::common_parts::{TIME_LIMIT, limited};
use megapipe_rt::{TcpListener, spawn_local, yield_now};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

/// Bytes that a client sends, and reads back.
pub(crate) const MESSAGE: usize = 40_000;
/// More steps than a scenario has await points.
pub(crate) const STEPS_MAX: usize = 2_000;

/// Serves clients by a scenario that is dropped after 0, 1, 2, … polls until it ends, three times.
/// After each step `nothing_is_left` waits until the step's connections are gone. Returns the
/// number of steps.
pub(crate) async fn drop_at_every_await_point(
    listener: &mut TcpListener,
    address: SocketAddr,
    nothing_is_left: impl AsyncFn(),
) -> usize {
    let mut steps = 0;
    for sweep in 0..3 {
        for polls in 0.. {
            steps += 1;
            assert!(polls < STEPS_MAX, "the scenario does not end");
            let peer = client(address);
            // In every other sweep the task of the scenario is counted, too.
            let served = match sweep % 2 {
                0 => limited(polls, serve_counted(listener)).await,
                _ => limited(polls, serve(listener)).await,
            };
            if polls == 0 || served.is_none() {
                // The connection waits for the next accept, which nothing has lost.
                drain(listener, &peer).await;
            }
            while !peer.is_finished() {
                megapipe_rt::sleep(Duration::from_millis(1)).await;
            }
            let echoed = peer.join().unwrap();
            nothing_is_left().await;
            if let Some(result) = served {
                result.unwrap();
                assert_eq!(echoed, MESSAGE);
                break;
            }
        }
    }
    steps
}

/// Sends the message in pieces and reads what comes, until the server closes the connection.
/// Returns the number of bytes that came.
pub(crate) fn client(address: SocketAddr) -> thread::JoinHandle<usize> {
    thread::spawn(move || {
        let Ok(mut stream) = std::net::TcpStream::connect(address) else { return 0 };
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sender = thread::spawn(move || {
            for piece in content().chunks(1000) {
                // The server may end at any time.
                if writer.write_all(piece).is_err() {
                    return;
                }
            }
            let _ = writer.shutdown(std::net::Shutdown::Write);
        });
        let mut count = 0;
        let mut buffer = [0; 8192];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => count += read,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the server has not closed the connection: {error}"),
            }
        }
        sender.join().unwrap();
        count
    })
}

pub(crate) fn content() -> Vec<u8> {
    testkit::content(MESSAGE)
}

/// Accepts a connection and returns what it sends, by every kind of operation.
async fn serve(listener: &mut TcpListener) -> io::Result<()> {
    let mut stream = listener.accept().await?;
    stream.set_high_water(2000);
    let first = stream.read().await?;
    let (mut reader, mut writer) = stream.split();
    let echo = spawn_or_here(async move {
        if let Some(first) = first {
            writer.write(first).await?;
        }
        while let Some(message) = reader.read().await? {
            yield_now().await;
            writer.write(message).await?;
        }
        writer.flush().await?;
        writer.shutdown().await
    });
    echo.await
}

/// Ends a task when its handle is dropped, so that dropping the scenario drops the task.
struct Tied(megapipe_rt::JoinHandle<io::Result<()>>);

impl Drop for Tied {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn spawn_or_here(future: impl Future<Output = io::Result<()>> + 'static) -> io::Result<()> {
    let mut tied = Tied(spawn_local(future));
    (&mut tied.0).await?
}

/// The scenario without a task of its own: each of its await points is one of the future.
async fn serve_counted(listener: &mut TcpListener) -> io::Result<()> {
    let mut stream = listener.accept().await?;
    stream.set_high_water(2000);
    while let Some(message) = stream.read().await? {
        yield_now().await;
        stream.write(message).await?;
    }
    stream.flush().await?;
    stream.shutdown().await
}

/// Closes the connection of a client whose accept was dropped, if it waits.
async fn drain<T>(listener: &mut TcpListener, client: &thread::JoinHandle<T>) {
    while !client.is_finished() {
        let limit = Duration::from_millis(1);
        if let Ok(accepted) = megapipe_rt::timeout(limit, listener.accept()).await {
            drop(accepted.unwrap());
        }
    }
}

/// Echoes ten clients by operations whose futures are dropped and repeated; no byte may be lost.
/// Returns the number of dropped futures.
pub(crate) async fn drop_and_repeat(listener: &mut TcpListener, address: SocketAddr) -> usize {
    let mut steps = 0;
    for _ in 0..10 {
        let peer = thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            let mut writer = stream.try_clone().unwrap();
            let sender = thread::spawn(move || {
                writer.write_all(&content()).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut echoed = Vec::new();
            stream.read_to_end(&mut echoed).unwrap();
            sender.join().unwrap();
            echoed
        });
        let mut stream = crate::repeated!(steps, listener.accept()).unwrap();
        stream.set_high_water(3000);
        while let Some(message) = crate::repeated!(steps, stream.read()).unwrap() {
            // A write that is dropped has written nothing, so it is repeated with a copy.
            crate::repeated!(steps, stream.write(message.to_vec())).unwrap();
        }
        crate::repeated!(steps, stream.flush()).unwrap();
        crate::repeated!(steps, stream.shutdown()).unwrap();
        while !peer.is_finished() {
            megapipe_rt::sleep(Duration::from_millis(1)).await;
        }
        assert!(peer.join().unwrap() == content(), "bytes were lost or repeated");
    }
    steps
}
