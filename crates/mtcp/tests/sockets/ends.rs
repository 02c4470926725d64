//! Tests reports about a connection that was reset, shut down or connected in the meantime, and
//! urgent data.

use crate::pair::{ERROR, GUARD, Pair, address, get, set, set_linger};
use crate::streams::{MODES, errno};
use mtcp::config::Mode;
use mtcp::{Descriptor, Events, Family, Flags};
use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// Waits for events of the client's socket.
fn await_events(pair: &mut Pair, socket: Descriptor, events: Events) {
    pair.until(|pair| pair.client.readiness(socket).expect("open").contains(events).then_some(()));
}

#[test]
fn an_error_behind_data_is_kept_for_the_next_call() {
    for mode in MODES {
        for way in 0..4 {
            let mut pair = Pair::new(mode);
            let listener = pair.listen(80);
            let (near, far) = pair.connect(listener, 80);
            pair.server.write(near, b"abcde").expect("to send");
            pair.until(|pair| (pair.client.readable_bytes(far).expect("open") == 5).then_some(()));
            pair.server.abort(near).expect("open");
            await_events(&mut pair, far, Events::ERROR | Events::HANG_UP | Events::IN);
            let (mut one, mut two) = ([0; 2], [0; 16]);
            let mut rooms = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
            let got = match way {
                0 => pair.client.readv(far, &mut rooms),
                1 => pair.client.read(far, &mut two),
                2 => pair.client.recv(far, &mut two, Flags::WAIT_ALL),
                _ => {
                    pair.client.set_nonblocking(far, false).expect("open");
                    pair.client.recv(far, &mut two, Flags::WAIT_ALL)
                }
            };
            assert_eq!(got.expect("the data"), 5, "{mode:?} way {way}");
            let next = pair.client.recv(far, &mut two, Flags::PEEK);
            assert_eq!(errno(next), libc::ECONNRESET, "{mode:?} way {way}");
            assert_eq!(pair.client.read(far, &mut two).expect("the end"), 0);
            let parts = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
            assert_eq!(errno(pair.client.writev(far, &parts)), libc::EPIPE);
            let gone = pair.client.getpeername(far).map(|_| ());
            assert_eq!(errno(gone), libc::ENOTCONN);
        }
    }
}

#[test]
fn data_and_a_reset_before_the_first_look_are_kept() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let far = pair.client.socket(Family::V4).expect("a socket");
        pair.client.set_nonblocking(far, true).expect("a socket");
        assert_eq!(errno(pair.client.connect(far, address(80))), libc::EINPROGRESS);
        let near = pair.retry(|pair| pair.server.accept(listener)).expect("a connection");
        pair.server.write(near, b"data").expect("to send");
        pair.until(|pair| (pair.client.readable_bytes(far).expect("open") == 4).then_some(()));
        pair.server.abort(near).expect("open");
        await_events(&mut pair, far, Events::ERROR);
        assert_eq!(get(&mut pair.client, far, ERROR), libc::ECONNRESET);
        let mut room = [0; 16];
        assert_eq!(pair.client.read(far, &mut room).expect("the data"), 4);
        assert_eq!(pair.client.read(far, &mut room).expect("the end"), 0);
    }
}

/// Sends, and waits until the data is acknowledged. In mode paired the server's context runs no
/// turn in the meantime, so that it does not know of the data.
fn send_unseen(pair: &mut Pair, mode: Mode, far: Descriptor, data: &[u8]) {
    assert_eq!(pair.client.write(far, data).expect("to send"), data.len());
    let begin = Instant::now();
    loop {
        pair.client.turn().expect("the client's device");
        if mode == Mode::Complete {
            pair.server.turn().expect("the server's device");
        }
        if pair.client.has_lingered(far) {
            return;
        }
        assert!(begin.elapsed() < GUARD, "no acknowledgement");
    }
}

#[test]
fn closing_with_data_that_is_not_known_of_resets() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        send_unseen(&mut pair, mode, far, b"unread");
        pair.server.close(near).expect("open");
        let outcome = pair.retry(|pair| pair.client.read(far, &mut [0; 8]));
        assert_eq!(errno(outcome), libc::ECONNRESET, "{mode:?}");
    }
}

/// A close that lingers would return `EWOULDBLOCK` after its second, because the client does not
/// run.
#[test]
fn closing_with_unread_data_resets_instead_of_lingering() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        set_linger(&mut pair.server, near, 1);
        assert_eq!(pair.client.write(far, b"unread").expect("to send"), 6);
        pair.until(|pair| (pair.server.readable_bytes(near).expect("open") == 6).then_some(()));
        pair.server.close(near).expect("it does not wait");
        let outcome = pair.retry(|pair| pair.client.read(far, &mut [0; 8]));
        assert_eq!(errno(outcome), libc::ECONNRESET, "{mode:?}");
    }
}

#[test]
fn data_that_comes_after_a_close_resets_before_all_is_sent() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        // As long as the client does not read, this is not sent completely.
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_millis(300) {
            if pair.server.write(near, &[7; 1 << 16]).is_ok() {
                last = Instant::now();
            }
            pair.server.turn().expect("the server's device");
            pair.client.turn().expect("the client's device");
        }
        pair.server.close(near).expect("open");
        // The context knows of the close before the data arrives.
        let other = pair.connect(listener, 80);
        send_unseen(&mut pair, mode, other.1, b"later");
        assert_eq!(pair.client.write(far, b"late").expect("to send"), 4);
        await_events(&mut pair, far, Events::ERROR | Events::HANG_UP);
    }
}

#[test]
fn own_shutdowns_are_told_and_lose_nothing() {
    for mode in MODES {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let (near, far) = pair.connect(listener, 80);
        pair.client.shutdown(far, Shutdown::Read).expect("open");
        let told = pair.client.readiness(far).expect("open");
        assert_eq!(told, Events::IN | Events::OUT | Events::READ_HANG_UP);
        let mut room = [0; 16];
        assert_eq!(pair.client.read(far, &mut room).expect("the end"), 0);
        pair.server.write(near, b"late").expect("to send");
        pair.until(|pair| (pair.client.readable_bytes(far).expect("open") == 4).then_some(()));
        assert_eq!(pair.client.read(far, &mut room).expect("the data"), 4);
        pair.client.shutdown(far, Shutdown::Write).expect("open");
        assert!(pair.client.readiness(far).expect("open").contains(Events::HANG_UP));
        pair.until(|pair| {
            pair.server.read(near, &mut room).is_ok_and(|end| end == 0).then_some(())
        });
        pair.server.write(near, b"nobody takes it").expect("to send");
        await_events(&mut pair, far, Events::ERROR);
        pair.until(|pair| {
            pair.server.readiness(near).expect("open").contains(Events::HANG_UP).then_some(())
        });
        let reset = pair.retry(|pair| pair.server.read(near, &mut room));
        assert_eq!((reset.expect("the end came first")), 0);
        assert_eq!(errno(pair.server.write(near, b"x")), libc::EPIPE);
    }
}

#[test]
fn urgent_bytes_leave_the_stream_or_stay_in_it() {
    for mode in MODES {
        for inline in [false, true] {
            let mut pair = Pair::new(mode);
            let listener = pair.listen(80);
            let (near, far) = pair.connect(listener, 80);
            let option = (libc::SOL_SOCKET, libc::SO_OOBINLINE);
            set(&mut pair.client, far, option, inline.into()).expect("open");
            assert_eq!(get(&mut pair.client, far, option), i32::from(inline));
            let mut room = [0; 16];
            let urgent = |pair: &mut Pair| {
                let mut byte = [0];
                let taken = pair.client.recv(far, &mut byte, Flags::OUT_OF_BAND);
                taken.map(|count| (count, byte[0]))
            };
            assert_eq!(errno(urgent(&mut pair).map(|_| 0)), libc::EINVAL);
            assert_eq!(pair.server.send(near, b"ab!", Flags::OUT_OF_BAND).expect("to send"), 3);
            pair.server.write(near, b"cd").expect("to send");
            await_events(&mut pair, far, Events::URGENT);
            pair.until(|pair| {
                let info = pair.client.tcp_info(far).expect("open");
                (info.bytes_received == 5).then_some(())
            });
            assert_eq!(pair.client.read(far, &mut room).expect("up to the mark"), 2);
            assert!(pair.client.is_at_mark(far).expect("open"));
            if inline {
                assert_eq!(errno(urgent(&mut pair).map(|_| 0)), libc::EINVAL);
                assert_eq!(pair.client.read(far, &mut room).expect("all"), 3);
                assert_eq!(&room[..3], b"!cd");
            } else {
                assert_eq!(urgent(&mut pair).expect("the byte"), (1, b'!'));
                assert_eq!(pair.client.read(far, &mut room).expect("the rest"), 2);
                assert_eq!(&room[..2], b"cd");
            }
            assert!(!pair.client.readiness(far).expect("open").intersects(Events::URGENT));
        }
    }
}
