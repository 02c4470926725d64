//! Tests TCP connections and listeners against plain blocking sockets.

use crate::common::{TIME_LIMIT, builder, on_thread, runtime, within};
use megapipe::{BufferClass, Config, DriverChoice};
use megapipe_rt::{
    Bound, Runtime, TcpListener, TcpStream, is_shutdown, sleep, spawn_local, spawn_on, timeout,
};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

on_both_drivers!(
    an_echo_returns_a_large_message,
    both_directions_work_at_once,
    a_shut_down_direction_leaves_the_other,
    a_writer_waits_for_a_peer_that_does_not_read,
    unread_input_is_bounded,
    connections_without_buffers_wait_and_stay,
    errors_have_the_kernels_number,
    an_abort_resets_the_connection,
    a_shutdown_after_a_reset_fails_only_for_lost_output,
    a_peek_takes_nothing,
    halves_of_one_stream_are_reunited,
    addresses_and_options_are_those_of_the_socket,
    every_core_accepts_from_one_address,
    a_shutdown_ends_accepting,
    output_is_sent_when_the_stream_is_dropped,
    a_stream_outlives_its_runtime,
);

/// A server that returns what it receives, until the listener fails.
async fn serve_echo(mut listener: TcpListener) -> io::Result<()> {
    loop {
        let mut stream = listener.accept().await?;
        spawn_local(async move {
            while let Some(message) = stream.read().await? {
                stream.write(message).await?;
            }
            stream.shutdown().await
        });
    }
}

async fn pair(listener: &mut TcpListener) -> (TcpStream, std::net::TcpStream) {
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let peer = std::net::TcpStream::connect(address).unwrap();
        peer.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        peer.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        peer
    });
    let stream = listener.accept().await.unwrap();
    (stream, peer.join().unwrap())
}

fn on_pair<F: Future>(
    driver: DriverChoice,
    test: impl FnOnce(TcpStream, std::net::TcpStream) -> F,
) -> F::Output {
    on_pair_of(&runtime(driver, 1), test)
}

fn on_pair_of<F: Future>(
    runtime: &Runtime,
    test: impl FnOnce(TcpStream, std::net::TcpStream) -> F,
) -> F::Output {
    within(runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (stream, peer) = pair(&mut listener).await;
        test(stream, peer).await
    })
}

/// Sends the content over a connection to an echo server, and compares what comes back.
fn exchange(address: SocketAddr, bytes: usize) {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        writer.write_all(&testkit::content(bytes)).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut echoed = Vec::new();
    stream.read_to_end(&mut echoed).unwrap();
    sender.join().unwrap();
    assert!(echoed == testkit::content(bytes), "{} of {bytes} bytes", echoed.len());
}

fn an_echo_returns_a_large_message(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = spawn_local(serve_echo(listener));
        on_thread(move || [1, 70_000, 5_000_000].map(|bytes| exchange(address, bytes))).await;
        // The same through the runtime's own client.
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        let sender = spawn_local(async move {
            for piece in testkit::content(3_000_000).chunks(100_000) {
                writer.write(piece.to_vec()).await?;
            }
            writer.shutdown().await
        });
        let mut echoed = Vec::new();
        while let Some(message) = reader.read().await.unwrap() {
            echoed.extend_from_slice(&message);
        }
        sender.await.unwrap().unwrap();
        assert!(echoed == testkit::content(3_000_000));
        server.abort();
    });
}

fn both_directions_work_at_once(driver: DriverChoice) {
    on_pair(driver, |stream, mut peer| async move {
        let (mut reader, mut writer) = stream.split();
        let receiving = spawn_local(async move { reader.read().await.unwrap().unwrap().to_vec() });
        writer.write("question").await.unwrap();
        writer.write(Vec::new()).await.unwrap();
        writer.flush().await.unwrap();
        on_thread(move || {
            let mut question = [0; 8];
            peer.read_exact(&mut question).unwrap();
            assert_eq!(&question, b"question");
            peer.write_all(b"answer").unwrap();
        })
        .await;
        assert_eq!(receiving.await.unwrap(), b"answer");
    });
}

fn a_shut_down_direction_leaves_the_other(driver: DriverChoice) {
    on_pair(driver, |mut stream, mut peer| async move {
        stream.write("last").await.unwrap();
        stream.shutdown().await.unwrap();
        stream.shutdown().await.unwrap();
        on_thread(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            assert_eq!(all, b"last");
            peer.write_all(b"still there").unwrap();
        })
        .await;
        assert_eq!(&*stream.read().await.unwrap().unwrap(), b"still there");
        assert!(stream.read().await.unwrap().is_none());
        assert!(stream.read().await.unwrap().is_none());
        // Nothing can be written any more, and the error stays.
        let _ = stream.write("too late").await;
        for _ in 0..2 {
            let error = stream.flush().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
    });
}

fn a_writer_waits_for_a_peer_that_does_not_read(driver: DriverChoice) {
    const PIECE: usize = 100_000;
    on_pair(driver, |mut stream, mut peer| async move {
        stream.set_high_water(150_000);
        let mut written = 0;
        let mut waits = 0;
        // The kernel's buffers take some megabytes.
        while waits < 3 {
            assert!(written < 2_000, "the writer never waits");
            let limit = Duration::from_millis(50);
            match timeout(limit, stream.write(vec![written as u8; PIECE])).await {
                Ok(done) => {
                    done.unwrap();
                    written += 1;
                }
                Err(_) => waits += 1,
            }
            // Below the mark one more write is taken.
            assert!(stream.queued_bytes() < 150_000 + PIECE);
        }
        drop(stream);
        let received = on_thread(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        })
        .await;
        assert_eq!(received.len(), written * PIECE);
        let in_order = received.chunks(PIECE).enumerate();
        assert!(in_order.into_iter().all(|(n, piece)| piece.iter().all(|b| *b == n as u8)));
    });
}

fn unread_input_is_bounded(driver: DriverChoice) {
    on_pair(driver, |mut stream, mut peer| async move {
        const TOTAL: usize = 64 << 20;
        // The first read starts the receiving.
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let sender = thread::spawn(move || {
            let piece = [7; 1 << 16];
            while count.fetch_add(piece.len(), Ordering::SeqCst) < TOTAL {
                peer.write_all(&piece).unwrap();
            }
        });
        let mut received = stream.read().await.unwrap().unwrap().len();
        // The peer comes to a stop, long before it has sent all.
        let (mut before, mut still) = (0, 0);
        while still < 10 {
            sleep(Duration::from_millis(20)).await;
            let now = sent.load(Ordering::SeqCst);
            still = if now == before { still + 1 } else { 0 };
            before = now;
        }
        assert!(before < TOTAL / 2, "{before} bytes were taken from a peer without a reader");
        while let Some(message) = stream.read().await.unwrap() {
            assert!(message.iter().all(|byte| *byte == 7));
            received += message.len();
        }
        assert_eq!(received, TOTAL);
        sender.join().unwrap();
    });
}

fn connections_without_buffers_wait_and_stay(driver: DriverChoice) {
    const CONNECTIONS: usize = 300;
    let config = Config {
        driver,
        small_buffers: BufferClass { count: 8, bytes: 4160 },
        large_buffers: BufferClass { count: 2, bytes: 66_048 },
        ..Config::default()
    };
    testkit::raise_descriptor_limit(4096);
    let runtime = builder(driver, 1).channel_config(config).build().unwrap();
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connections = Vec::new();
        let mut tasks = Vec::new();
        let ready = Arc::new(AtomicUsize::new(0));
        for _ in 0..CONNECTIONS {
            let (mut stream, peer) = pair(&mut listener).await;
            connections.push(peer);
            let ready = Arc::clone(&ready);
            // Each task takes a message and keeps it until all others have theirs, too.
            tasks.push(spawn_local(async move {
                let message = stream.read().await?.expect("a message");
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < CONNECTIONS {
                    sleep(Duration::from_millis(2)).await;
                }
                stream.write(message).await?;
                stream.flush().await
            }));
        }
        let peers = on_thread(move || {
            for peer in &mut connections {
                peer.write_all(&[9; 1000]).unwrap();
            }
            for peer in &mut connections {
                let mut echoed = [0; 1000];
                peer.read_exact(&mut echoed).unwrap();
                assert_eq!(echoed, [9; 1000]);
            }
            connections.len()
        });
        assert_eq!(peers.await, CONNECTIONS);
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}

fn errors_have_the_kernels_number(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = unused.local_addr().unwrap();
        drop(unused);
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = TcpListener::bind(listener.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    });
    on_pair_of(&runtime, |mut stream, peer| async move {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        let size = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the option's value outlives the call.
        let set = unsafe {
            libc::setsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&peer),
                level,
                name,
                (&raw const linger).cast(),
                size,
            )
        };
        assert_eq!(set, 0);
        drop(peer);
        for _ in 0..2 {
            let error = stream.read().await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
        }
    });
}

fn an_abort_resets_the_connection(driver: DriverChoice) {
    on_pair(driver, |mut stream, mut peer| async move {
        stream.write("x").await.unwrap();
        stream.flush().await.unwrap();
        stream.abort();
        let error = on_thread(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap_err()
        });
        assert_eq!(error.await.kind(), io::ErrorKind::ConnectionReset);
    });
}

fn a_shutdown_after_a_reset_fails_only_for_lost_output(driver: DriverChoice) {
    let reset = |peer: std::net::TcpStream| {
        let peer = socket2::Socket::from(peer);
        peer.set_linger(Some(Duration::ZERO)).unwrap();
    };
    on_pair(driver, |mut stream, peer| async move {
        reset(peer);
        stream.shutdown().await.unwrap();
        stream.shutdown().await.unwrap();
    });
    on_pair(driver, |mut stream, peer| async move {
        reset(peer);
        stream.write("lost").await.unwrap();
        let error = stream.shutdown().await.unwrap_err();
        let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
        assert!(kinds.contains(&error.kind()), "{error}");
    });
}

fn a_peek_takes_nothing(driver: DriverChoice) {
    on_pair(driver, |mut stream, mut peer| async move {
        peer.write_all(b"hello").unwrap();
        let mut room = [0; 8];
        assert_eq!(stream.peek_slice(&mut room[..1]).await.unwrap(), 1);
        assert_eq!(room[0], b'h');
        // A dropped peek loses nothing either.
        let mut empty = [];
        assert_eq!(stream.peek_slice(&mut empty).await.unwrap(), 0);
        let (mut reader, _writer) = stream.split();
        let count = reader.peek_slice(&mut room).await.unwrap();
        assert_eq!(reader.read_slice(&mut room).await.unwrap(), count);
        assert_eq!(room[..count], b"hello"[..count]);
        assert!(timeout(Duration::ZERO, reader.peek_slice(&mut room)).await.is_err());
        drop(peer);
        assert_eq!(reader.peek_slice(&mut room).await.unwrap(), 0);
    });
}

fn halves_of_one_stream_are_reunited(driver: DriverChoice) {
    on_pair(driver, |stream, mut peer| async move {
        let (other, _other_peer) = {
            let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
            pair(&mut listener).await
        };
        let (reader, writer) = stream.split();
        let (other_reader, other_writer) = other.split();
        let (reader, _) = reader.reunite(other_writer).unwrap_err();
        drop(other_reader);
        let mut stream = reader.reunite(writer).unwrap();
        stream.write("whole").await.unwrap();
        stream.flush().await.unwrap();
        let mut room = [0; 5];
        peer.read_exact(&mut room).unwrap();
        assert_eq!(&room, b"whole");
    });
}

fn addresses_and_options_are_those_of_the_socket(driver: DriverChoice) {
    on_pair(driver, |stream, peer| async move {
        assert_eq!(stream.peer_addr().unwrap(), peer.local_addr().unwrap());
        assert_eq!(stream.local_addr().unwrap(), peer.peer_addr().unwrap());
        stream.set_nodelay(true).unwrap();
        stream.set_linger(Some(Duration::from_secs(3))).unwrap();
        let mut value = [0; 4];
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
        assert_eq!(stream.socket_option(level, name, &mut value).unwrap(), 4);
        assert_ne!(i32::from_ne_bytes(value), 0);
        stream.set_socket_option(level, name, &[0; 4]).unwrap();
        stream.socket_option(level, name, &mut value).unwrap();
        assert_eq!(value, [0; 4]);
        let std = std::net::TcpStream::connect(peer.peer_addr().unwrap()).unwrap();
        let address = std.local_addr().unwrap();
        assert_eq!(TcpStream::from_std(std).unwrap().local_addr().unwrap(), address);
    });
}

fn every_core_accepts_from_one_address(driver: DriverChoice) {
    const CORES: usize = 3;
    const CONNECTIONS: usize = 60;
    let runtime = runtime(driver, CORES);
    let bound = Bound::tcp("127.0.0.1:0").unwrap();
    let address = bound.local_addr().unwrap();
    within(&runtime, async {
        // A connection that comes before any core listens is not lost.
        let early = thread::spawn(move || exchange(address, 1000));
        for core in 0..CORES {
            let bound = bound.clone();
            let listening = spawn_on(core, move || async move {
                let listener = bound.listen()?;
                if core == 0 {
                    let again = bound.listen().unwrap_err();
                    assert!(again.to_string().contains("CPU"), "{again}");
                }
                spawn_local(serve_echo(listener));
                Ok::<(), io::Error>(())
            });
            listening.await.unwrap().unwrap();
            // Nor is one that comes while only some listen.
            on_thread(move || exchange(address, 1000)).await;
        }
        on_thread(move || early.join().unwrap()).await;
        on_thread(move || {
            let clients: Vec<_> =
                (0..CONNECTIONS).map(|_| thread::spawn(move || exchange(address, 5000))).collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
        })
        .await;
    });
}

fn a_shutdown_ends_accepting(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    let bound = Bound::tcp("127.0.0.1:0").unwrap();
    let address = bound.local_addr().unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    within(&runtime, async {
        for core in 0..2 {
            let (bound, sender) = (bound.clone(), sender.clone());
            let started = spawn_on(core, move || async move {
                let listener = bound.listen().unwrap();
                spawn_local(async move {
                    let error = serve_echo(listener).await.unwrap_err();
                    sender.send(is_shutdown(&error)).unwrap();
                });
            });
            started.await.unwrap();
        }
        on_thread(move || exchange(address, 1000)).await;
    });
    assert_eq!(runtime.shutdown(TIME_LIMIT), 0);
    drop(sender);
    assert_eq!(ended.iter().collect::<Vec<_>>(), [true, true]);
}

fn output_is_sent_when_the_stream_is_dropped(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let mut peer = on_pair_of(&runtime, |mut stream, peer| async move {
        stream.write(testkit::content(200_000)).await.unwrap();
        peer
    });
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        all
    });
    // The end of the channel writes what is queued.
    drop(runtime);
    assert!(reader.join().unwrap() == testkit::content(200_000));
}

fn a_stream_outlives_its_runtime(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (mut stream, mut peer) = on_pair_of(&runtime, |stream, peer| async { (stream, peer) });
    drop(runtime);
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
    let other = crate::common::runtime(driver, 1);
    let error = within(&other, stream.read()).unwrap_err();
    assert!(error.to_string().contains("runtime of this socket has ended"), "{error}");
}
