//! Tests the sockets over two stacks joined by memory, in both modes.

use crate::pair::{ERROR, GUARD, LOW_WATER, NO_DELAY, Pair, address, get, set, set_linger};
use mtcp::config::Mode;
use mtcp::{Events, Flags};
use std::net::Shutdown;
use std::time::{Duration, Instant};

pub(crate) const MODES: [Mode; 2] = [Mode::Complete, Mode::Paired];

pub(crate) fn errno<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.expect_err("an error").raw_os_error().expect("an errno")
}

#[test]
fn data_goes_both_ways_and_the_end_is_seen() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        assert_eq!(errno(pair.server.read(near, &mut [0; 8])), libc::EAGAIN);
        assert_eq!(pair.client.write(far, b"request").expect("to send"), 7);
        let mut room = [0; 64];
        let bytes = pair.retry(|pair| pair.server.read(near, &mut room)).expect("a request");
        assert_eq!(&room[..bytes], b"request");
        pair.server.write(near, b"answer").expect("to send");
        pair.client.shutdown(far, Shutdown::Write).expect("half-close");
        assert_eq!(pair.retry(|pair| pair.server.read(near, &mut room)).expect("the end"), 0);
        // The other direction is still open.
        pair.server.write(near, b", later").expect("to send");
        pair.server.close(near).expect("open");
        let mut all = Vec::new();
        loop {
            match pair.retry(|pair| pair.client.read(far, &mut room)).expect("an answer") {
                0 => break,
                bytes => all.extend_from_slice(&room[..bytes]),
            }
        }
        assert_eq!(all, b"answer, later");
        assert_eq!(errno(pair.client.write(far, b"x")), libc::EPIPE);
        pair.client.close(far).expect("open");
        assert_eq!(errno(pair.client.close(far)), libc::EBADF);
    }
}

#[test]
fn peek_and_the_count_leave_data_where_it_is() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        pair.client.write(far, b"abcdef").expect("to send");
        pair.until(|pair| (pair.server.readable_bytes(near).expect("open") == 6).then_some(()));
        let mut room = [0; 4];
        assert_eq!(pair.server.recv(near, &mut room, Flags::PEEK).expect("data"), 4);
        assert_eq!(&room, b"abcd");
        let mut count = 0;
        pair.server.ioctl(near, libc::FIONREAD, &mut count).expect("open");
        assert_eq!(count, 6);
        assert_eq!(pair.server.read(near, &mut room).expect("data"), 4);
        assert_eq!(pair.server.readable_bytes(near).expect("open"), 2);
        let unknown = Flags(libc::MSG_ERRQUEUE);
        assert_eq!(errno(pair.server.recv(near, &mut room, unknown)), libc::EOPNOTSUPP);
    }
}

#[test]
fn who_never_reads_stops_the_sender_and_loses_nothing() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        let piece: Vec<u8> = (0..10_007u32).map(|index| index as u8).collect();
        let (mut sent, mut news) = (0usize, Instant::now());
        let end = Instant::now() + GUARD;
        while sent <= 64 << 10 || news.elapsed() < Duration::from_millis(100) {
            assert!(Instant::now() < end, "stuck after {sent} bytes");
            match pair.client.write(far, &piece[sent % piece.len()..]) {
                Ok(bytes) => {
                    sent += bytes;
                    news = Instant::now();
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
                }
            }
            assert!(sent < 16 << 20, "nothing holds the sender back");
            pair.until(|_| Some(()));
        }
        let mut received = 0usize;
        let mut room = [0; 5000];
        while received < sent {
            let bytes = pair.retry(|pair| pair.server.read(near, &mut room)).expect("data");
            for byte in &room[..bytes] {
                assert_eq!(*byte, piece[received % piece.len()], "at {received}");
                received += 1;
            }
        }
        pair.until(|pair| (pair.client.unsent_bytes(far).expect("open") == 0).then_some(()));
    }
}

#[test]
fn a_refused_connection_says_so_once() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let socket = pair.client.socket(mtcp::Family::V4).expect("a socket");
        pair.client.set_nonblocking(socket, true).expect("a socket");
        assert_eq!(errno(pair.client.connect(socket, address(9))), libc::EINPROGRESS);
        let refused = pair
            .until(|pair| Some(get(&mut pair.client, socket, ERROR)).filter(|error| *error != 0));
        assert_eq!(refused, libc::ECONNREFUSED);
        assert_eq!(get(&mut pair.client, socket, ERROR), 0);
        // The call reports that there is no connection, whose error was reported before; then the
        // socket can be used again.
        assert_eq!(errno(pair.client.connect(socket, address(9))), libc::ECONNABORTED);
        let listener = pair.listen(9);
        assert_eq!(errno(pair.client.connect(socket, address(9))), libc::EINPROGRESS);
        pair.retry(|pair| pair.server.accept(listener)).expect("a connection");
        pair.until(|pair| pair.client.getpeername(socket).ok());
        pair.client.connect(socket, address(9)).expect("to be told of the success, once");
        assert_eq!(errno(pair.client.connect(socket, address(9))), libc::EISCONN);
    }
}

#[test]
fn an_abort_resets() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        pair.server.abort(near).expect("open");
        let outcome = pair.retry(|pair| pair.client.read(far, &mut [0; 8]));
        assert_eq!(errno(outcome), libc::ECONNRESET);
        assert_eq!(pair.client.read(far, &mut [0; 8]).expect("the end"), 0);
        assert_eq!(errno(pair.client.write(far, b"x")), libc::EPIPE);
    }
}

#[test]
fn blocking_calls_respect_their_times() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, _far) = pair.connect(listener, 80);
        pair.server.set_nonblocking(near, false).expect("open");
        let time = Some(Duration::from_millis(20));
        let value = [0_i64.to_ne_bytes(), 20_000_i64.to_ne_bytes()].concat();
        let set = pair.server.setsockopt(near, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value);
        set.expect("open");
        assert_eq!(pair.server.receive_timeout(near).expect("open"), time);
        let begun = Instant::now();
        assert_eq!(errno(pair.server.read(near, &mut [0; 8])), libc::EAGAIN);
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let epoll = pair.server.epoll_create().expect("an epoll");
        let mut events = [Default::default()];
        let waited = pair.server.epoll_wait(epoll, &mut events, time).expect("an epoll");
        assert_eq!(waited, 0);
        assert!(begun.elapsed() >= Duration::from_millis(40));
    }
}

#[test]
fn a_pipe_wakes_a_sleeping_context_from_another_thread() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let context = &mut pair.server;
        let (reader, writer) = context.pipe().expect("a pipe");
        let epoll = context.epoll_create().expect("an epoll");
        let event = mtcp::EpollEvent::of(reader, Events::IN);
        context.epoll_ctl(epoll, reader, mtcp::EpollControl::Add(event)).expect("new");
        let elsewhere = context.pipe_writer(writer).expect("a pipe");
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            elsewhere.write(b"wake").expect("room");
        });
        let mut events = [Default::default(); 4];
        let guard = Some(GUARD);
        assert_eq!(context.epoll_wait(epoll, &mut events, guard).expect("an epoll"), 1);
        assert_eq!(events[0].descriptor(), reader);
        let mut room = [0; 8];
        assert_eq!(context.read(reader, &mut room).expect("data"), 4);
        assert_eq!(errno(context.read(reader, &mut room)), libc::EAGAIN);
        thread.join().expect("the other thread");
        context.close(writer).expect("open");
        assert_eq!(context.epoll_wait(epoll, &mut events, guard).expect("an epoll"), 1);
        assert!(events[0].events.contains(Events::HANG_UP));
        assert_eq!(context.read(reader, &mut room).expect("the end"), 0);
    }
}

#[test]
fn many_connections_echo_and_end() {
    const CONNECTIONS: usize = 300;
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let sockets: Vec<_> = (0..CONNECTIONS).map(|_| pair.connect(listener, 80)).collect();
        for (index, (_, far)) in sockets.iter().enumerate() {
            let data = (index as u32).to_ne_bytes();
            assert_eq!(pair.client.write(*far, &data).expect("to send"), 4);
        }
        for (index, (near, far)) in sockets.iter().enumerate() {
            let mut room = [0; 8];
            let bytes = pair.retry(|pair| pair.server.read(*near, &mut room)).expect("data");
            assert_eq!(room[..bytes], (index as u32).to_ne_bytes());
            pair.server.close(*near).expect("open");
            let end = pair.retry(|pair| pair.client.read(*far, &mut room)).expect("the end");
            assert_eq!(end, 0);
            pair.client.close(*far).expect("open");
        }
        let lowest = pair.client.socket(mtcp::Family::V4).expect("a socket");
        assert_eq!(lowest.0, 0, "all numbers are free again");
        assert_eq!(pair.server.counters().connections_accepted, CONNECTIONS as u64);
    }
}

#[test]
fn options_are_told_as_they_were_set() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, _far) = pair.connect(listener, 80);
        for (option, number) in [
            (NO_DELAY, 1),
            ((libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1),
            ((libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 9),
            ((libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 127),
            ((libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 1500),
            ((libc::SOL_SOCKET, libc::SO_SNDBUF), 100_000),
            (LOW_WATER, 100),
        ] {
            set(&mut pair.server, near, option, number).expect("in range");
            assert_eq!(get(&mut pair.server, near, option), number);
        }
        set_linger(&mut pair.server, near, 3);
        let mut linger = [0; 8];
        pair.server
            .getsockopt(near, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger)
            .expect("known");
        assert_eq!(linger, [1_i32.to_ne_bytes(), 3_i32.to_ne_bytes()].concat()[..]);
        for (option, number) in [
            ((libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 0),
            ((libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 128),
            ((libc::IPPROTO_TCP, libc::TCP_MAXSEG), 87),
            ((libc::SOL_SOCKET, libc::SO_SNDBUF), -1),
        ] {
            assert_eq!(errno(set(&mut pair.server, near, option, number)), libc::EINVAL);
        }
        let fixed = set(&mut pair.server, near, (libc::SOL_SOCKET, libc::SO_TYPE), 1);
        assert_eq!(errno(fixed), libc::ENOPROTOOPT);
        let one = 1i32.to_ne_bytes();
        let tcp = libc::IPPROTO_TCP;
        pair.server.setsockopt(near, tcp, libc::TCP_QUICKACK, &one).expect("known");
        pair.server.setsockopt(near, tcp, libc::TCP_CONGESTION, b"reno").expect("known");
        let mut value = [0; 16];
        let length =
            pair.server.getsockopt(near, tcp, libc::TCP_CONGESTION, &mut value).expect("known");
        assert_eq!((length, &value[..5]), (16, &b"reno\0"[..]));
        let level = libc::SOL_SOCKET;
        pair.server.getsockopt(near, level, libc::SO_ACCEPTCONN, &mut value).expect("known");
        assert_eq!(value[0], 0);
        pair.server.getsockopt(listener, level, libc::SO_ACCEPTCONN, &mut value).expect("known");
        assert_eq!(value[0], 1);
        let unknown = pair.server.setsockopt(near, tcp, libc::TCP_MD5SIG, &one);
        assert_eq!(errno(unknown), libc::ENOPROTOOPT);
        let short = pair.server.setsockopt(near, tcp, libc::TCP_NODELAY, &one[..2]);
        assert_eq!(errno(short), libc::EINVAL);
        assert_eq!(pair.server.getsockname(near).expect("open"), address(80));
    }
}

#[test]
fn errors_are_those_of_the_man_pages() {
    let mut pair = Pair::new(Mode::Complete);
    let listener = pair.listen(80);
    let context = &mut pair.server;
    let socket = context.socket(mtcp::Family::V4).expect("a socket");
    assert_eq!(errno(context.bind(socket, address(80))), libc::EADDRINUSE);
    let foreign = "192.0.2.1:80".parse().expect("an address");
    assert_eq!(errno(context.bind(socket, foreign)), libc::EADDRNOTAVAIL);
    let six = "[::1]:80".parse().expect("an address");
    assert_eq!(errno(context.bind(socket, six)), libc::EAFNOSUPPORT);
    assert_eq!(errno(context.read(socket, &mut [0])), libc::ENOTCONN);
    assert_eq!(errno(context.accept(socket)), libc::EINVAL);
    assert_eq!(errno(context.shutdown(socket, Shutdown::Both)), libc::ENOTCONN);
    assert_eq!(errno(context.getpeername(listener)), libc::ENOTCONN);
    assert_eq!(errno(context.accept(listener)), libc::EAGAIN);
    assert_eq!(errno(context.read(mtcp::Descriptor(99), &mut [0])), libc::EBADF);
    let epoll = context.epoll_create().expect("an epoll");
    assert_eq!(errno(context.read(epoll, &mut [0])), libc::EINVAL);
    assert_eq!(errno(context.listen(epoll, 1)), libc::ENOTSOCK);
    let delete = mtcp::EpollControl::Delete;
    assert_eq!(errno(context.epoll_ctl(epoll, socket, delete)), libc::ENOENT);
    assert_eq!(errno(context.epoll_ctl(epoll, epoll, delete)), libc::EINVAL);
    context.bind(socket, address(0)).expect("a free port");
    assert_ne!(context.getsockname(socket).expect("bound").port(), 0);
    assert_eq!(errno(context.bind(socket, address(0))), libc::EINVAL);
}

#[test]
fn a_low_water_mark_holds_readiness_back() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        set(&mut pair.server, near, LOW_WATER, 10).expect("in range");
        let epoll = pair.server.epoll_create().expect("an epoll");
        let event = mtcp::EpollEvent::of(near, Events::IN);
        pair.server.epoll_ctl(epoll, near, mtcp::EpollControl::Add(event)).expect("new");
        let mut events = [Default::default()];
        pair.client.write(far, b"few").expect("to send");
        pair.until(|pair| (pair.server.readable_bytes(near).expect("open") == 3).then_some(()));
        let waited = pair.server.epoll_wait(epoll, &mut events, Some(Duration::ZERO));
        assert_eq!(waited.expect("an epoll"), 0);
        pair.client.write(far, b"and more").expect("to send");
        pair.until(|pair| {
            let waited = pair.server.epoll_wait(epoll, &mut events, Some(Duration::ZERO));
            (waited.expect("an epoll") == 1).then_some(())
        });
        assert_eq!(pair.server.read(near, &mut [0; 64]).expect("data"), 11);
    }
}

#[test]
fn sources_are_taken_in_turn_and_must_be_the_stacks_own() {
    let mut client = crate::pair::config("10.0.0.2", Mode::Complete);
    client.addresses.push(("10.0.0.3".parse().expect("an address"), 24));
    let mut pair = Pair::with(crate::pair::config("10.0.0.1", Mode::Complete), client);
    let listener = pair.listen(80);
    let first = "10.0.0.2".parse().expect("an address");
    assert_eq!(errno(pair.client.init_rss(first, 3, None)), libc::EADDRNOTAVAIL);
    assert_eq!(errno(pair.client.init_rss(first, 0, None)), libc::EINVAL);
    pair.client.init_rss(first, 2, None).expect("both are ours");
    let mut peers = Vec::new();
    for _ in 0..4 {
        let (near, far) = pair.connect(listener, 80);
        let peer = pair.server.getpeername(near).expect("connected");
        assert_eq!(pair.client.getsockname(far).expect("connected"), peer);
        peers.push(peer.ip().to_string());
    }
    assert_eq!(peers, ["10.0.0.2", "10.0.0.3", "10.0.0.2", "10.0.0.3"]);
}
