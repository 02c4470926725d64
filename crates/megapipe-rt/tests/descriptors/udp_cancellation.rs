//! Drops futures of UDP sockets at every await point: no datagram is lost, repeated or torn, and no
//! descriptor or buffer leaks.
//!
//! The channel has so few buffers that a leaked one makes a later step fail. Peers are plain
//! blocking sockets.

use crate::common::{TIME_LIMIT, limited, within};
use crate::{alone, open_descriptors};
use megapipe::{BufferClass, Config, DriverChoice, Message};
use megapipe_rt::{Runtime, UdpSocket, yield_now};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::{Duration, Instant};
use testkit::retried;

on_both_drivers!(
    dropped_futures_lose_and_repeat_no_datagram,
    sockets_dropped_at_every_await_point_leave_nothing,
    one_dropped_receiver_leaves_the_datagram_to_another,
);

fn small_runtime(driver: DriverChoice) -> Runtime {
    let large_buffers = BufferClass { count: 2, bytes: 2048 };
    let config = Config { driver, large_buffers, ..Config::default() };
    Runtime::builder().cores(1).pinned(false).channel_config(config).build().unwrap()
}

fn plain() -> (std::net::UdpSocket, SocketAddr) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn dropped_futures_lose_and_repeat_no_datagram(driver: DriverChoice) {
    let _alone = alone();
    let runtime = small_runtime(driver);
    let mut steps = 0;
    within(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (peer, peer_address) = plain();
        // Every second send waits for the first.
        socket.set_high_water(1);
        let mut many = Vec::new();
        for number in 0..500u32 {
            let bytes = number.to_ne_bytes();
            if number % 2 == 0 {
                peer.send_to(&bytes, address).unwrap();
                peer.send_to(&(number + 1).to_ne_bytes(), address).unwrap();
            }
            let datagram = match number % 3 {
                0 => {
                    assert_eq!(repeated!(steps, socket.recv_many(&mut many, 1)).unwrap(), 1);
                    many.pop().unwrap()
                }
                _ => repeated!(steps, socket.recv_from()).unwrap(),
            };
            assert_eq!(*datagram, bytes);
            // A send that is dropped has sent nothing, so it is repeated.
            match number % 2 {
                0 => repeated!(steps, socket.send_to(datagram.to_vec(), peer_address)).unwrap(),
                _ => {
                    let message = || Message::new(datagram.to_vec()).to(peer_address);
                    repeated!(steps, socket.send_message(message())).unwrap();
                }
            }
            // The queue of the peer has room for these.
            if number % 50 == 49 {
                repeated!(steps, socket.flush()).unwrap();
                for number in number - 49..=number {
                    let mut found = [0; 9];
                    assert_eq!(retried(|| peer.recv_from(&mut found)).unwrap(), (4, address));
                    assert_eq!(found[..4], number.to_ne_bytes(), "lost or repeated");
                }
            }
        }
        peer.set_nonblocking(true).unwrap();
        let more = peer.recv_from(&mut [0; 9]).unwrap_err();
        assert_eq!(more.kind(), io::ErrorKind::WouldBlock);
        assert!(socket.try_recv_from().unwrap().is_none());
    });
    assert!(steps > 100, "only {steps} futures were dropped");
    println!("{steps} futures dropped");
}

/// Receives three datagrams and sends one, by every kind of operation.
async fn serve(peer: SocketAddr, at: &std::net::UdpSocket) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_high_water(1);
    let address = socket.local_addr()?;
    (0..3u8).try_for_each(|number| at.send_to(&[number], address).map(drop))?;
    let first = socket.recv_from().await?;
    yield_now().await;
    let mut others = Vec::new();
    while others.len() < 2 {
        socket.recv_many(&mut others, 2).await?;
    }
    socket.send_to(first, peer).await?;
    socket.send_message(others[0].reply("second")).await?;
    socket.connect(peer)?;
    socket.send("third").await?;
    socket.flush().await
}

fn sockets_dropped_at_every_await_point_leave_nothing(driver: DriverChoice) {
    let _alone = alone();
    let before = open_descriptors();
    let runtime = small_runtime(driver);
    let mut steps = 0;
    within(&runtime, async {
        for _ in 0..3 {
            let (peer, peer_address) = plain();
            let expected = open_descriptors();
            for polls in 0.. {
                steps += 1;
                let served = limited(polls, serve(peer_address, &peer)).await;
                let began = Instant::now();
                while open_descriptors() > expected {
                    assert!(began.elapsed() < TIME_LIMIT, "{} descriptors", open_descriptors());
                    megapipe_rt::sleep(Duration::from_millis(1)).await;
                }
                if let Some(result) = served {
                    result.unwrap();
                    break;
                }
            }
            // The last datagrams are those of the scenario that was not dropped.
            peer.set_nonblocking(true).unwrap();
            let mut found = Vec::new();
            let mut room = [0; 9];
            while let Ok((bytes, _)) = peer.recv_from(&mut room) {
                found.push(room[..bytes].to_vec());
            }
            let last = [&[0][..], b"second", b"third"];
            assert_eq!(found[found.len() - 3..], last);
        }
    });
    drop(runtime);
    // Fewer if the kernel closed one of the former test meanwhile.
    assert!(open_descriptors() <= before);
    assert!(steps > 6, "{steps} steps");
    println!("{steps} steps, nothing left");
}

/// A receiver that was woken and is dropped does not take the datagram with it.
fn one_dropped_receiver_leaves_the_datagram_to_another(driver: DriverChoice) {
    let _alone = alone();
    let runtime = small_runtime(driver);
    within(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (peer, _) = plain();
        for number in 0..50u8 {
            let mut first = Box::pin(socket.recv_from());
            let mut second = Box::pin(socket.recv_from());
            poll_fn(|context| {
                assert!(first.as_mut().poll(context).is_pending());
                assert!(second.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            peer.send_to(&[number], address).unwrap();
            if number % 2 == 0 {
                // The datagram arrives, and wakes both.
                megapipe_rt::sleep(Duration::from_millis(1)).await;
            }
            drop(first);
            assert_eq!(*second.await.unwrap(), [number]);
        }
    });
}
