//! Tests UDP sockets against plain blocking sockets.

use crate::common::{TIME_LIMIT, builder, runtime, within};
use megapipe::{BufferClass, Config, DriverChoice, Ecn, Message};
use megapipe_rt::{Bound, Datagram, UdpSocket, sleep, spawn_local, yield_now};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::retried;

on_both_drivers!(
    an_echo_of_every_size,
    one_socket_serves_several_tasks,
    a_connected_socket_has_one_peer,
    several_datagrams_are_taken_at_once,
    unread_input_stays_in_the_kernel,
    slow_tasks_leave_buffers_for_others,
    senders_wait_at_the_high_water_mark,
    refusals_are_told_by_the_flush,
    a_refusal_of_the_peer_is_an_error_of_the_next_receive,
    segments_and_marks_travel,
    answers_leave_from_the_address_that_was_asked,
    every_core_receives_on_one_port,
    a_dropped_socket_sends_what_was_submitted,
    a_socket_outlives_its_runtime,
    addresses_and_options_are_those_of_the_socket,
);

/// Returns a blocking socket with a time limit.
fn plain() -> (std::net::UdpSocket, SocketAddr) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Returns the next datagram of a blocking socket.
fn next_of(socket: &std::net::UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut found = vec![0; 1 << 16];
    let (bytes, from) = retried(|| socket.recv_from(&mut found)).unwrap();
    found.truncate(bytes);
    (found, from)
}

fn an_echo_of_every_size(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (client, client_address) = plain();
        for bytes in [0, 1, 1200, 9000, 65_507] {
            let content = testkit::content(bytes);
            client.send_to(&content, address).unwrap();
            let datagram = socket.recv_from().await.unwrap();
            assert_eq!(datagram.address(), client_address);
            assert!(*datagram == *content && !datagram.is_truncated());
            assert_eq!((datagram.ecn(), datagram.segment_size()), (None, None));
            assert_eq!(datagram.segments().collect::<Vec<_>>(), [&content[..]]);
            socket.send_to(datagram, client_address).await.unwrap();
            socket.flush().await.unwrap();
            assert!(next_of(&client) == (content, address));
        }
    });
}

/// Each of several tasks that receive gets datagrams; none is lost, and none is delivered twice.
fn one_socket_serves_several_tasks(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = Rc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = socket.local_addr().unwrap();
        let (client, _) = plain();
        for _ in 0..4 {
            let socket = Rc::clone(&socket);
            spawn_local(async move {
                loop {
                    let datagram = socket.recv_from().await.unwrap();
                    yield_now().await;
                    socket.send_message(datagram.reply(datagram.to_vec())).await.unwrap();
                }
            });
        }
        let mut answers = BTreeSet::new();
        for round in 0..25u8 {
            (0..8).for_each(|n| assert_eq!(client.send_to(&[round * 8 + n], address).unwrap(), 1));
            let client = client.try_clone().unwrap();
            let found = megapipe_rt::spawn_blocking(move || {
                (0..8).map(|_| next_of(&client)).collect::<Vec<_>>()
            });
            for (bytes, from) in found.await.unwrap() {
                assert_eq!(from, address);
                assert!(answers.insert(bytes), "an answer came twice");
            }
        }
        assert_eq!(answers.len(), 200);
    });
}

fn a_connected_socket_has_one_peer(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let ((peer, peer_address), (other, _)) = (plain(), plain());
        socket.connect(peer_address).unwrap();
        other.send_to(b"not for you", address).unwrap();
        socket.send(b"hello").await.unwrap();
        socket.flush().await.unwrap();
        assert_eq!(next_of(&peer), (b"hello".to_vec(), address));
        peer.send_to(b"welcome", address).unwrap();
        assert_eq!(*socket.recv_from().await.unwrap(), *b"welcome");
        // An answer of the network fails one call, and the socket goes on.
        drop(peer);
        socket.send(b"anyone?").await.unwrap();
        let refused = socket.recv_from().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let peer = std::net::UdpSocket::bind(peer_address).unwrap();
        peer.send_to(b"back", address).unwrap();
        assert_eq!(*socket.recv_from().await.unwrap(), *b"back");
    });
}

/// Receives so many datagrams.
async fn all_of(socket: &UdpSocket, count: usize) -> Vec<Datagram> {
    let mut found = Vec::new();
    while found.len() < count {
        socket.recv_many(&mut found, count).await.unwrap();
    }
    found
}

fn several_datagrams_are_taken_at_once(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (client, _) = plain();
        assert!(socket.try_recv_from().unwrap().is_none());
        assert_eq!(socket.recv_many(&mut Vec::new(), 0).await.unwrap(), 0);
        (0..20u8).for_each(|number| assert_eq!(client.send_to(&[number], address).unwrap(), 1));
        let mut found = Vec::new();
        // The first one is there with some of the others, because they were sent before.
        let first = socket.recv_many(&mut found, 3).await.unwrap();
        assert!((1..=3).contains(&first), "{first} datagrams");
        let began = Instant::now();
        while found.len() < 20 {
            match socket.try_recv_from().unwrap() {
                Some(datagram) => found.push(datagram),
                None => sleep(Duration::from_millis(1)).await,
            }
            assert!(began.elapsed() < TIME_LIMIT);
        }
        let numbers: Vec<u8> = found.iter().map(|datagram| datagram[0]).collect();
        assert_eq!(numbers, (0..20).collect::<Vec<u8>>());
    });
}

/// Returns the memory of the kernel's queue of a socket, and how many datagrams it has dropped.
fn queue_of(socket: &UdpSocket) -> (u32, u32) {
    let mut found = [0; 36];
    let count = socket.socket_option(libc::SOL_SOCKET, libc::SO_MEMINFO, &mut found).unwrap();
    assert_eq!(count, found.len());
    // SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_DROPS of linux/sock_diag.h.
    let word = |index: usize| u32::from_ne_bytes(*found[4 * index..].first_chunk().unwrap());
    (word(0), word(8))
}

/// A socket whose tasks do not read stops receiving, so that the kernel's queue bounds its memory.
fn unread_input_stays_in_the_kernel(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (client, _) = plain();
        client.send_to(b"start", address).unwrap();
        socket.recv_from().await.unwrap();
        let content = testkit::content(8000);
        let mut sent = 0u32;
        let mut takes = true;
        while queue_of(&socket).1 == 0 {
            let datagram = [&sent.to_ne_bytes()[..], &content].concat();
            client.send_to(&datagram, address).unwrap();
            sent += 1;
            assert!(sent < 1000, "the socket receives without end");
            let mut turns = 0;
            while takes && queue_of(&socket).0 > 0 {
                yield_now().await;
                turns += 1;
                takes = turns < 1000;
            }
        }
        let mut kept = 0;
        let mut numbers = Vec::new();
        while let Some(datagram) = socket.try_recv_from().unwrap() {
            kept += datagram.len();
            numbers.push(u32::from_ne_bytes(datagram[..4].try_into().unwrap()));
        }
        // The high-water mark, and a few more that were on their way when it was reached.
        assert!((240 << 10..320 << 10).contains(&kept), "{kept} bytes");
        // The kernel's queue follows without a gap: only the last one was dropped.
        while numbers.len() < sent as usize - 1 {
            let next = socket.recv_from().await.unwrap();
            numbers.push(u32::from_ne_bytes(next[..4].try_into().unwrap()));
        }
        assert!(numbers.iter().zip(0..).all(|(number, index)| *number == index));
        assert_eq!(queue_of(&socket).1, 1);
    });
}

/// Datagrams that tasks keep are copies, so that sockets of the same core go on.
fn slow_tasks_leave_buffers_for_others(driver: DriverChoice) {
    let large_buffers = BufferClass { count: 4, bytes: 2048 };
    let config = Config { driver, large_buffers, ..Config::default() };
    let runtime = builder(driver, 1).channel_config(config).build().unwrap();
    within(&runtime, async {
        let slow = UdpSocket::bind("127.0.0.1:0").unwrap();
        let quick = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (client, client_address) = plain();
        for number in 0..50u8 {
            client.send_to(&[number; 100], slow.local_addr().unwrap()).unwrap();
        }
        let kept = all_of(&slow, 50).await;
        client.send_to(b"question", quick.local_addr().unwrap()).unwrap();
        let question = quick.recv_from().await.unwrap();
        quick.send_to(question, client_address).await.unwrap();
        quick.flush().await.unwrap();
        assert_eq!(next_of(&client).0, b"question");
        assert!(kept.iter().zip(0..).all(|(datagram, number)| **datagram == [number; 100]));
    });
}

fn senders_wait_at_the_high_water_mark(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = Rc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let (peer, peer_address) = plain();
        socket.set_high_water(4000);
        let sender = Rc::clone(&socket);
        let senders: Vec<_> = (0..4u8)
            .map(|number| {
                let socket = Rc::clone(&sender);
                spawn_local(async move {
                    for _ in 0..12 {
                        socket.send_to(vec![number; 1000], peer_address).await.unwrap();
                        // The mark, one datagram more, and what each of them counts.
                        assert!(socket.queued_bytes() < 4000 + 1256, "{}", socket.queued_bytes());
                    }
                })
            })
            .collect();
        for sender in senders {
            sender.await.unwrap();
        }
        socket.flush().await.unwrap();
        assert_eq!(socket.queued_bytes(), 0);
        let mut counts = [0; 4];
        for _ in 0..48 {
            let (datagram, _) = next_of(&peer);
            assert_eq!(datagram.len(), 1000);
            counts[usize::from(datagram[0])] += 1;
        }
        assert_eq!(counts, [12; 4]);
    });
}

fn a_refusal_of_the_peer_is_an_error_of_the_next_receive(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (peer, peer_address) = plain();
        socket.connect(peer_address).unwrap();
        drop(peer);
        socket.send(b"nobody hears it").await.unwrap();
        let refused = socket.recv_from().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        // The socket goes on.
        let own = socket.local_addr().unwrap();
        let (peer, _) = plain();
        socket.connect(peer.local_addr().unwrap()).unwrap();
        peer.send_to(b"here", own).unwrap();
        socket.readable().await.unwrap();
        socket.readable().await.unwrap();
        assert_eq!(&*socket.recv_from().await.unwrap(), b"here");
    });
}

fn refusals_are_told_by_the_flush(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (peer, peer_address) = plain();
        socket.send_to(vec![7; 65_508], peer_address).await.unwrap();
        socket.send_to(b"fits", peer_address).await.unwrap();
        let refused = socket.flush().await.unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(next_of(&peer).0, b"fits");
        socket.flush().await.unwrap();
        assert!(socket.take_error().is_none());
        // What the channel refuses is an error of the call.
        let message = Message::new(vec![0; 100]).to(peer_address).with_segment_size(1);
        let refused = socket.send_message(message).await.unwrap_err();
        assert!(refused.to_string().contains("64 segments"), "{refused}");
        assert_eq!(socket.queued_bytes(), 0);
    });
}

fn segments_and_marks_travel(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (left, right) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = right.local_addr().unwrap();
        // A receive is in flight when the options are set.
        assert!(right.try_recv_from().unwrap().is_none());
        yield_now().await;
        right.enable_ecn().unwrap();
        right.enable_gro().unwrap();
        let content = testkit::content(12_345);
        for ecn in [Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            let message = Message::new(content.clone()).to(to);
            left.send_message(message.with_segment_size(1200).with_ecn(ecn)).await.unwrap();
            let found = right.recv_from().await.unwrap();
            assert!(*found == *content);
            assert_eq!((found.ecn(), found.segment_size()), (Some(ecn), Some(1200)));
            assert!(found.segments().eq(content.chunks(1200)));
        }
        left.send_to("plain", to).await.unwrap();
        let found = right.recv_from().await.unwrap();
        assert_eq!((found.ecn(), found.segment_size()), (Some(Ecn::NotEct), None));
    });
}

fn answers_leave_from_the_address_that_was_asked(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.enable_packet_info().unwrap();
        let port = socket.local_addr().unwrap().port();
        let (client, _) = plain();
        for host in ["127.0.0.1", "127.0.0.9"] {
            let asked = SocketAddr::new(host.parse().unwrap(), port);
            client.send_to(b"question", asked).unwrap();
            let question = socket.recv_from().await.unwrap();
            assert_eq!(question.packet_info().unwrap().local, asked.ip());
            socket.send_message(question.reply("answer")).await.unwrap();
            socket.flush().await.unwrap();
            assert_eq!(next_of(&client), (b"answer".to_vec(), asked));
        }
    });
}

/// Every core gets datagrams of one port, all of a client go to the same one, and none is lost.
fn every_core_receives_on_one_port(driver: DriverChoice) {
    const CORES: usize = 2;
    let runtime = runtime(driver, CORES);
    let port = Bound::udp("127.0.0.1:0", CORES).unwrap();
    let address = port.local_addr();
    // Before any core is ready.
    let early: Vec<_> = (0..20).map(|_| plain().0).collect();
    early.iter().for_each(|client| assert_eq!(client.send_to(b"early", address).unwrap(), 5));
    within(&runtime, async {
        for core in 0..CORES {
            let port = port.clone();
            megapipe_rt::spawn_on(core, move || async move {
                let socket = port.open().unwrap();
                loop {
                    let datagram = socket.recv_from().await.unwrap();
                    let answer = vec![megapipe_rt::core_index() as u8];
                    socket.send_to(answer, datagram.address()).await.unwrap();
                }
            });
        }
        megapipe_rt::spawn_blocking(move || {
            let mut cores = BTreeSet::new();
            // So many clients that by chance all come to one core once in 2¹⁰⁰ runs.
            let early = early.into_iter().map(|client| (client, true));
            let late = (0..80).map(|_| (plain().0, false));
            for (client, is_early) in early.chain(late) {
                let mut answers = BTreeSet::new();
                if is_early {
                    answers.insert(next_of(&client));
                }
                for _ in 0..3 {
                    client.send_to(b"which?", address).unwrap();
                    answers.insert(next_of(&client));
                }
                assert_eq!(answers.len(), 1, "a client came to several cores");
                let (core, from) = answers.pop_first().unwrap();
                assert_eq!(from, address);
                cores.insert(core);
            }
            assert_eq!(cores.len(), CORES);
        })
        .await
        .unwrap();
    });
    let (_owner, owned) = plain();
    let taken = Bound::udp(owned, 1).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    assert!(taken.to_string().contains("SO_REUSEPORT"), "{taken}");
}

fn a_dropped_socket_sends_what_was_submitted(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (peer, peer_address) = plain();
        for round in 0..10u8 {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            for number in 0..5 {
                socket.send_to(vec![round, number], peer_address).await.unwrap();
            }
            drop(socket);
            yield_now().await;
            for number in 0..5 {
                let peer = peer.try_clone().unwrap();
                let next = megapipe_rt::spawn_blocking(move || next_of(&peer)).await.unwrap();
                assert_eq!(next, (vec![round, number], address));
            }
        }
    });
}

fn a_socket_outlives_its_runtime(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let socket = within(&runtime, async { UdpSocket::bind("127.0.0.1:0").unwrap() });
    drop(runtime);
    let error = socket.local_addr().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    assert!(socket.try_recv_from().is_err());
}

fn addresses_and_options_are_those_of_the_socket(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let plain = std::net::UdpSocket::bind("[::1]:0").unwrap();
        let address = plain.local_addr().unwrap();
        let socket = UdpSocket::from_std(plain).unwrap();
        assert_eq!(socket.local_addr().unwrap(), address);
        let bytes = (1i32 << 20).to_ne_bytes();
        socket.set_socket_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes).unwrap();
        let mut found = [0; 4];
        let count = socket.socket_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &mut found).unwrap();
        assert_eq!(count, 4);
        assert!(i32::from_ne_bytes(found) > 0);
        let debug = format!("{socket:?}");
        assert!(debug.contains("queued_bytes: 0"), "{debug}");
    });
}
