//! Tests UNIX datagram sockets against those of the standard library.

use crate::common::{TIME_LIMIT, limited, on_thread, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{UnixDatagram, spawn_local};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as std_unix, SocketAddr};
use std::path::Path;
use std::rc::Rc;

on_both_drivers!(
    an_echo_of_every_size,
    addresses_are_those_of_the_sockets,
    a_full_queue_loses_nothing,
    dropped_receives_lose_nothing,
    refusals_are_told_by_the_flush,
);

fn plain(path: &Path) -> std_unix::UnixDatagram {
    let socket = std_unix::UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    socket
}

fn an_echo_of_every_size(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let [here, there] = ["here", "there"].map(|name| directory.path().join(name));
    within(&runtime(driver, 1), async {
        let server = UnixDatagram::bind(&here).unwrap();
        let peer = plain(&there);
        let sizes = [1, 0, 4_000, 60_000, 100_000];
        let client = on_thread({
            let here = here.clone();
            move || {
                for size in sizes {
                    peer.send_to(&testkit::content(size), &here).unwrap();
                }
                let mut buffer = vec![0; 200_000];
                let answers = sizes.map(|_| {
                    let count = peer.recv(&mut buffer).unwrap();
                    buffer[..count].to_vec()
                });
                answers.into_iter()
            }
        });
        let echo = spawn_local(async move {
            for size in sizes {
                let datagram = server.recv_from().await?;
                // The last is longer than a buffer of the channel.
                assert_eq!(datagram.is_truncated(), size == 100_000);
                let address = datagram.address();
                server.send_to(datagram, &address).await?;
            }
            server.flush().await
        });
        for (answer, size) in client.await.zip(sizes) {
            let content = testkit::content(size);
            let expected = if size == 100_000 { answer.len().max(65_507) } else { size };
            assert!(answer == content[..expected]);
        }
        echo.await.unwrap().unwrap();
    });
}

fn addresses_are_those_of_the_sockets(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("named");
    within(&runtime(driver, 1), async {
        let named = UnixDatagram::bind(&path).unwrap();
        assert_eq!(named.local_addr().unwrap().as_pathname(), Some(&*path));
        let name = format!("megapipe-rt {driver:?} {}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let hidden = UnixDatagram::bind_addr(&address).unwrap();
        hidden.connect(&path).unwrap();
        hidden.send("from an abstract name").await.unwrap();
        let datagram = named.recv_from().await.unwrap();
        assert_eq!(datagram.address().as_abstract_name(), Some(name.as_bytes()));
        named.send_to("an answer", &datagram.address()).await.unwrap();
        assert_eq!(&*hidden.recv_from().await.unwrap(), b"an answer");
        let unnamed = UnixDatagram::unbound().unwrap();
        unnamed.send_to_path("from nobody", &path).await.unwrap();
        let datagram = named.recv_from().await.unwrap();
        assert!(datagram.address().is_unnamed() && *datagram == *b"from nobody");
        let error = named.send_to("to nobody", &datagram.address()).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EDESTADDRREQ));
        let (left, right) = UnixDatagram::pair().unwrap();
        left.send(vec![7; 3]).await.unwrap();
        assert_eq!(&*right.recv_from().await.unwrap(), [7; 3]);
    });
}

/// The receiver's queue takes net.unix.max_dgram_qlen datagrams.
fn a_full_queue_loses_nothing(driver: DriverChoice) {
    const DATAGRAMS: usize = 2_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("slow");
    within(&runtime(driver, 1), async {
        let peer = plain(&path);
        let sender = Rc::new(UnixDatagram::unbound().unwrap());
        sender.connect(&path).unwrap();
        sender.set_high_water(100_000);
        let sending = spawn_local(async move {
            for number in 0..DATAGRAMS {
                sender.send(number.to_string().into_bytes()).await?;
                assert!(sender.queued_bytes() < 100_300);
            }
            sender.flush().await
        });
        let received = on_thread(move || {
            let mut buffer = [0; 100];
            let next = |number| {
                let count = peer.recv(&mut buffer).unwrap();
                let text = String::from_utf8_lossy(&buffer[..count]);
                text.parse().unwrap_or_else(|_| panic!("{text:?} in place of {number}"))
            };
            (0..DATAGRAMS).map(next).collect::<Vec<usize>>()
        });
        assert_eq!(received.await, (0..DATAGRAMS).collect::<Vec<usize>>());
        sending.await.unwrap().unwrap();
    });
}

fn dropped_receives_lose_nothing(driver: DriverChoice) {
    within(&runtime(driver, 1), async {
        let (left, right) = UnixDatagram::pair().unwrap();
        let mut received = Vec::new();
        for number in 0..100u8 {
            if let Some(datagram) = limited(usize::from(number % 3), right.recv_from()).await {
                received.extend_from_slice(&datagram.unwrap());
            }
            left.send(vec![number]).await.unwrap();
            if number % 2 == 0 {
                left.flush().await.unwrap();
            }
        }
        while received.len() < 100 {
            received.extend_from_slice(&right.recv_from().await.unwrap());
        }
        assert_eq!(received, (0..100).collect::<Vec<u8>>());
    });
}

fn refusals_are_told_by_the_flush(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gone");
    within(&runtime(driver, 1), async {
        let socket = UnixDatagram::unbound().unwrap();
        let errno = |error: io::Error| error.raw_os_error();
        socket.send_to_path("nobody", &path).await.unwrap();
        assert_eq!(errno(socket.flush().await.unwrap_err()), Some(libc::ENOENT));
        drop(plain(&path));
        socket.send_to_path("nobody any more", &path).await.unwrap();
        assert_eq!(errno(socket.flush().await.unwrap_err()), Some(libc::ECONNREFUSED));
        assert_eq!(errno(UnixDatagram::bind(&path).unwrap_err()), Some(libc::EADDRINUSE));
        socket.flush().await.unwrap();
    });
}
