//! Tests UNIX sockets against plain blocking ones: streams, listeners, their files, credentials and
//! the passing of descriptors.

use crate::common::{TIME_LIMIT, on_thread, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{
    Bound, BoundUnix, Message, UnixListener, UnixStream, is_shutdown, spawn_local, spawn_on,
    timeout,
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as std_unix, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

on_both_drivers!(
    an_echo_returns_a_large_message_over_paths_and_names,
    the_halves_of_a_pair_work_in_two_tasks,
    every_core_accepts_from_one_path,
    a_listener_removes_its_own_file_alone,
    an_address_that_cannot_be_bound_is_named,
    addresses_and_credentials_are_those_of_the_peer,
    descriptors_pass_with_their_bytes,
    a_dropped_receive_leaves_its_message_to_the_next,
    messages_and_reads_do_not_mix,
    a_shutdown_ends_accepting,
);

async fn serve_echo(mut listener: UnixListener) -> io::Result<()> {
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

/// Sends the content over a connection to an echo server, and compares what comes back.
fn exchange(address: &SocketAddr, bytes: usize) {
    let mut stream = std_unix::UnixStream::connect_addr(address).unwrap();
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

/// A directory for sockets, and a path in it.
fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    (directory, path)
}

/// An abstract name of this test and driver alone.
fn name(test: &str, driver: DriverChoice) -> SocketAddr {
    let name = format!("megapipe-rt {test} {driver:?} {}", std::process::id());
    SocketAddr::from_abstract_name(name).unwrap()
}

fn an_echo_returns_a_large_message_over_paths_and_names(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (_directory, path) = directory();
    let addresses = [SocketAddr::from_pathname(path).unwrap(), name("echo", driver)];
    within(&runtime, async {
        for address in addresses {
            let listener = UnixListener::bind_addr(&address).unwrap();
            let server = spawn_local(serve_echo(listener));
            let to = address.clone();
            on_thread(move || [1, 70_000, 3_000_000].map(|bytes| exchange(&to, bytes))).await;
            // The same through the runtime's own client.
            let (mut reader, mut writer) =
                UnixStream::connect_addr(&address).await.unwrap().split();
            let sender = spawn_local(async move {
                for piece in testkit::content(1_000_000).chunks(100_000) {
                    writer.write(piece.to_vec()).await?;
                }
                writer.shutdown().await
            });
            let mut echoed = Vec::new();
            while let Some(message) = reader.read().await.unwrap() {
                echoed.extend_from_slice(&message);
            }
            sender.await.unwrap().unwrap();
            assert!(echoed == testkit::content(1_000_000));
            server.abort();
        }
    });
}

fn the_halves_of_a_pair_work_in_two_tasks(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (left, mut right) = UnixStream::pair().unwrap();
        let (mut reader, mut writer) = left.split();
        let reading = spawn_local(async move {
            let answer = reader.read().await.unwrap().unwrap().to_vec();
            assert!(reader.read().await.unwrap().is_none());
            answer
        });
        writer.write("question").await.unwrap();
        writer.shutdown().await.unwrap();
        assert_eq!(&*right.read().await.unwrap().unwrap(), b"question");
        assert!(right.read().await.unwrap().is_none());
        right.write("answer").await.unwrap();
        drop(right);
        assert_eq!(reading.await.unwrap(), b"answer");
        let error = writer.write("too late").await.and(writer.flush().await).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

fn every_core_accepts_from_one_path(driver: DriverChoice) {
    const CORES: usize = 3;
    let runtime = runtime(driver, CORES);
    let (_directory, path) = directory();
    let bound = Bound::unix(&path).unwrap();
    let address = bound.local_addr().unwrap();
    within(&runtime, async {
        // A connection that comes before any core listens is not lost.
        let (early, first) = (address.clone(), address.clone());
        let early = thread::spawn(move || exchange(&early, 1000));
        for core in 0..CORES {
            let bound = bound.clone();
            let listening = spawn_on(core, move || async move {
                spawn_local(serve_echo(bound.listen()?));
                Ok::<(), io::Error>(())
            });
            listening.await.unwrap().unwrap();
        }
        on_thread(move || early.join().unwrap()).await;
        on_thread(move || exchange(&first, 1000)).await;
        on_thread(move || {
            let clients: Vec<_> = (0..60)
                .map(|_| {
                    let address = address.clone();
                    thread::spawn(move || exchange(&address, 5000))
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
        })
        .await;
    });
    drop(bound);
    assert!(path.exists(), "the cores still listen");
    drop(runtime);
    assert!(!path.exists());
}

fn a_listener_removes_its_own_file_alone(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (directory, path) = directory();
    within(&runtime, async {
        let listener = UnixListener::bind(&path).unwrap();
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()));
        drop(listener);
        assert!(!path.exists());
        // What another process has put there stays.
        let listener = UnixListener::bind(&path).unwrap();
        fs::rename(&path, directory.path().join("moved")).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(listener);
        assert_eq!(fs::read(&path).unwrap(), b"another's");
        // So does the file of a socket that was bound elsewhere.
        let path = directory.path().join("passed");
        let bound = BoundUnix::from(std_unix::UnixListener::bind(&path).unwrap());
        let mut listener = bound.listen().unwrap();
        let client = UnixStream::connect(&path).await.unwrap();
        drop((listener.accept().await.unwrap(), client, listener, bound));
        assert!(path.exists());
    });
}

fn an_address_that_cannot_be_bound_is_named(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (directory, path) = directory();
    within(&runtime, async {
        // A killed process leaves its file.
        drop(std_unix::UnixListener::bind(&path).unwrap());
        let error = UnixListener::bind(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("remove it"), "{text}");
        assert!(path.exists());
        let error = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
        let below = directory.path().join("missing/socket");
        let error = UnixListener::bind(&below).unwrap_err();
        assert!(error.to_string().contains("create the directory first"), "{error}");
        let error = UnixStream::connect(&below).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let long = Path::new(&"x".repeat(200)).to_path_buf();
        assert_eq!(UnixListener::bind(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(
            UnixStream::connect(&long).await.unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        let address = name("taken", driver);
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let text = UnixListener::bind_addr(&address).unwrap_err().to_string();
        assert!(text.contains("cannot listen on @megapipe-rt taken"), "{text}");
    });
}

fn addresses_and_credentials_are_those_of_the_peer(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (directory, path) = directory();
    within(&runtime, async {
        let mut listener = UnixListener::bind(&path).unwrap();
        assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(&*path));
        // SAFETY: the calls take nothing and cannot fail.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let client = UnixStream::connect(&path).await.unwrap();
        let server = listener.accept().await.unwrap();
        assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(&*path));
        assert!(client.local_addr().unwrap().is_unnamed());
        assert_eq!(server.local_addr().unwrap().as_pathname(), Some(&*path));
        assert!(server.peer_addr().unwrap().is_unnamed());
        for stream in [&client, &server] {
            let peer = stream.peer_credentials().unwrap();
            assert_eq!((peer.process, peer.user, peer.group), (std::process::id(), user, group));
        }
        // A peer with a name.
        let named = directory.path().join("client");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(&named).unwrap()).unwrap();
        socket.connect(&SockAddr::unix(&path).unwrap()).unwrap();
        let server = listener.accept().await.unwrap();
        assert_eq!(server.peer_addr().unwrap().as_pathname(), Some(&*named));
    });
}

/// Sends a pipe's writing end in a message, and returns its reading end.
async fn send_pipe(stream: &mut UnixStream, bytes: Vec<u8>) -> io::PipeReader {
    let (reader, writer) = io::pipe().unwrap();
    stream.send_message(Message::new(bytes).with_descriptor(writer)).await.unwrap();
    reader
}

fn descriptors_pass_with_their_bytes(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut left, mut right) = UnixStream::pair().unwrap();
        left.write("before ").await.unwrap();
        let mut readers = Vec::new();
        for bytes in [vec![1], vec![2; 100_000], vec![3; 10]] {
            readers.push(send_pipe(&mut left, bytes).await);
        }
        left.write("after").await.unwrap();
        left.shutdown().await.unwrap();
        let (mut received, mut writers) = (Vec::new(), Vec::new());
        while let Some(mut message) = right.receive_message(10_000, 1).await.unwrap() {
            received.extend_from_slice(message.bytes());
            writers.extend(message.take_descriptors());
        }
        let expected = [&b"before "[..], &[1], &[2; 100_000], &[3; 10], b"after"].concat();
        assert!(received == expected, "{} bytes", received.len());
        assert_eq!((writers.len(), left.queued_bytes()), (3, 0));
        for (number, writer) in writers.into_iter().enumerate() {
            writeln!(File::from(writer), "pipe {number}").unwrap();
        }
        for (number, mut reader) in readers.into_iter().enumerate() {
            let mut text = String::new();
            // It ends only if the writing end is open nowhere else.
            reader.read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("pipe {number}\n"));
        }
        // What the kernel or the channel refuses.
        let (mut left, mut right) = UnixStream::pair().unwrap();
        let (_reader, writer) = io::pipe().unwrap();
        let empty = Message::new("").with_descriptor(writer);
        assert!(left.send_message(empty).await.unwrap_err().to_string().contains("one byte"));
        let _reader = send_pipe(&mut left, vec![7]).await;
        let error = right.receive_message(100, 0).await.unwrap_err();
        assert!(error.to_string().contains("room_for_descriptors"), "{error}");
    });
}

fn a_dropped_receive_leaves_its_message_to_the_next(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut left, mut right) = UnixStream::pair().unwrap();
        for round in 0..20u8 {
            let dropped = timeout(Duration::ZERO, right.receive_message(16, 1)).await;
            assert!(dropped.is_err());
            let reader = send_pipe(&mut left, vec![round; 3]).await;
            if round % 2 == 1 {
                // The message arrives while nobody waits.
                megapipe_rt::sleep(Duration::from_millis(2)).await;
            }
            let message = right.receive_message(16, 1).await.unwrap().unwrap();
            assert_eq!((message.bytes(), message.descriptors().len()), (&[round; 3][..], 1));
            drop((message, reader));
        }
    });
}

fn messages_and_reads_do_not_mix(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut left, mut right) = UnixStream::pair().unwrap();
        assert!(timeout(Duration::ZERO, right.receive_message(16, 1)).await.is_err());
        let error = right.read().await.unwrap_err();
        assert!(error.to_string().contains("call receive_message again"), "{error}");
        left.write("first").await.unwrap();
        let message = right.receive_message(16, 1).await.unwrap().unwrap();
        assert_eq!(message.bytes(), b"first");
        left.write("second").await.unwrap();
        assert_eq!(&*right.read().await.unwrap().unwrap(), b"second");
        let error = right.receive_message(16, 1).await.unwrap_err();
        assert!(error.to_string().contains("before the first read"), "{error}");
    });
}

fn a_shutdown_ends_accepting(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    let (_directory, path) = directory();
    let bound = Bound::unix(&path).unwrap();
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
    });
    drop(bound);
    assert_eq!(runtime.shutdown(TIME_LIMIT), 0);
    drop(sender);
    assert_eq!(ended.iter().collect::<Vec<_>>(), [true, true]);
    assert!(!path.exists());
}
