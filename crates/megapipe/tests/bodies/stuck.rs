//! Tests blocked and shared descriptors: writes without a reader, descriptors with duplicates,
//! reads that must not outlive their handle.

use crate::common::process::isolated;
use crate::common::{Rig, TIME_LIMIT, listener, outcome, received, tcp_pair, udp, unix_pair};
use megapipe::{Accept, DriverChoice, Event, Handle, Repeat};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

const STUCK_BYTES: usize = 1 << 20;

/// Returns both sides of a new terminal: the controlling one and the line.
fn terminal() -> (OwnedFd, OwnedFd) {
    let (mut main, mut line) = (0, 0);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: the first two point to room for a descriptor each, the others may be null.
    assert_eq!(unsafe { libc::openpty(&mut main, &mut line, name, settings, size) }, 0);
    // SAFETY: the kernel has just opened both descriptors, which have no other owner.
    unsafe { (OwnedFd::from_raw_fd(main), OwnedFd::from_raw_fd(line)) }
}

/// Returns the writing end of a source without a reader, and the descriptor that keeps it open.
fn without_reader(kind: usize) -> (OwnedFd, OwnedFd) {
    match kind {
        0 => {
            let (main, line) = terminal();
            (line, main)
        }
        1 => terminal(),
        2 => {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("fifo");
            let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: the name ends with a zero byte.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
            let flags = libc::O_NONBLOCK;
            let reader = OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
            (OpenOptions::new().write(true).open(&path).unwrap().into(), reader.into())
        }
        _ => {
            let (reader, writer) = std::io::pipe().unwrap();
            // SAFETY: the call takes no pointers.
            let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
            assert_eq!(room, 4096);
            (writer.into(), reader.into())
        }
    }
}

/// A write of 1 MiB without a reader blocks no call of the channel.
pub(crate) fn a_write_without_a_reader_blocks_no_call(driver: DriverChoice) {
    for kind in 0..4 {
        for end in 0..4 {
            let start = Instant::now();
            let mut rig = Rig::new(driver);
            let (writer, _reader) = without_reader(kind);
            let handle = rig.join(writer);
            rig.write(handle, vec![b'x'; STUCK_BYTES]).unwrap();
            rig.write(handle, b"behind it").unwrap();
            assert!(rig.dispatch(Duration::from_millis(5)).unwrap().is_none());
            match end {
                0 => {
                    rig.cancel(handle).unwrap();
                    let ended = [rig.last(handle), rig.last(handle)].map(|event| outcome(&event));
                    assert!(ended.contains(&Err(libc::ECANCELED)), "{ended:?}");
                }
                1 => {
                    let descriptor = rig.unregister(handle).unwrap().descriptor.unwrap();
                    assert!(rig.drain().is_empty());
                    drop(descriptor);
                }
                2 => {
                    rig.close(handle).unwrap();
                    assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
                    rig.abort(handle).unwrap();
                    assert_eq!(outcome(&rig.last(handle)), Ok(0), "kind {kind}");
                }
                _ => {}
            }
            drop(rig);
            assert!(start.elapsed() < TIME_LIMIT / 4, "kind {kind}, end {end}");
        }
    }
}

/// A receive takes nothing after its handle has ended, even if another socket has got the
/// descriptor's number.
pub(crate) fn a_receive_does_not_outlive_its_handle(driver: DriverChoice) {
    // In a process of its own, because no other thread may take the number.
    isolated(driver, "a_receive_does_not_outlive_its_handle", || {
        for _ in 0..20 {
            let mut rig = Rig::new(driver);
            let (ours, _) = udp("127.0.0.1");
            let (theirs, address) = udp("127.0.0.1");
            let handle = rig.join(theirs);
            rig.receive_from(handle, Repeat::Once).unwrap();
            assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
            let descriptor = rig.unregister(handle).unwrap().descriptor.unwrap();
            let number = descriptor.as_raw_fd();
            drop(descriptor);
            let (mut client, server) = tcp_pair();
            // From now on the number belongs to the other connection.
            // SAFETY: the number is free, and owned by `reused` alone.
            let reused = unsafe {
                assert_eq!(libc::dup2(server.as_raw_fd(), number), number);
                OwnedFd::from_raw_fd(number)
            };
            drop(server);
            client.write_all(b"the connection's").unwrap();
            let _ = ours.send_to(b"nobody's", address);
            let handle = rig.join(reused);
            rig.receive(handle, Repeat::Once).unwrap();
            assert_eq!(&*received(rig.last(handle)), b"the connection's");
            assert!(rig.drain().is_empty());
        }
    });
}

pub(crate) fn what_comes_after_an_unregister_is_still_there(driver: DriverChoice) {
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        for _ in 0..20 {
            let mut rig = Rig::new(driver);
            let (ours, _) = udp("127.0.0.1");
            let (theirs, address) = udp("127.0.0.1");
            let handle = rig.join(theirs);
            rig.receive_from(handle, repeat).unwrap();
            assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
            let theirs = UdpSocket::from(rig.unregister(handle).unwrap().descriptor.unwrap());
            ours.send_to(b"kept", address).unwrap();
            assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
            let mut room = [0; 10];
            assert_eq!(theirs.recv(&mut room).unwrap(), 4);
        }
    }
}

fn duplicate(of: &impl AsRawFd) -> OwnedFd {
    // SAFETY: the call takes no pointers, and the new descriptor has no other owner.
    unsafe {
        let fd = libc::fcntl(of.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0);
        assert!(fd >= 0, "dup: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// Cancels the requests of one of two handles of the same file; returns the other, whose request
/// must still be pending.
fn cancel_one(rig: &mut Rig, fd: OwnedFd, file: impl Fn(&mut Rig, Handle), how: usize) -> Handle {
    let other = duplicate(&fd);
    let (first, second) = (rig.join(fd), rig.join(other));
    file(rig, first);
    file(rig, second);
    assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
    match how {
        0 => {
            rig.cancel(first).unwrap();
            assert_eq!(outcome(&rig.last(first)), Err(libc::ECANCELED));
        }
        1 => drop(rig.unregister(first).unwrap()),
        _ => {
            rig.close(first).unwrap();
            assert!(matches!(rig.last(first), Event::Close(Ok(()))));
        }
    }
    assert!(rig.drain_to(1).is_empty());
    assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
    assert_eq!(rig.outstanding(), 1);
    second
}

pub(crate) fn a_duplicate_keeps_its_requests(driver: DriverChoice) {
    for how in 0..3 {
        let mut rig = Rig::new(driver);
        let receive = |rig: &mut Rig, handle| rig.receive(handle, Repeat::UntilCancelled).unwrap();
        let (mut ours, theirs) = unix_pair();
        let stream = cancel_one(&mut rig, theirs.into(), receive, how);
        ours.write_all(b"stream").unwrap();
        assert_eq!(&*received(rig.another(stream)), b"stream");

        drop(rig);
        let mut rig = Rig::new(driver);
        let (reader, mut writer) = std::io::pipe().unwrap();
        let pipe = cancel_one(&mut rig, reader.into(), receive, how);
        writer.write_all(b"pipe").unwrap();
        assert_eq!(&*received(rig.another(pipe)), b"pipe");

        drop(rig);
        let mut rig = Rig::new(driver);
        let (ours, _) = udp("127.0.0.1");
        let (theirs, address) = udp("127.0.0.1");
        let receive_from =
            |rig: &mut Rig, handle| rig.receive_from(handle, Repeat::UntilCancelled).unwrap();
        let datagrams = cancel_one(&mut rig, theirs.into(), receive_from, how);
        ours.send_to(b"datagram", address).unwrap();
        assert_eq!(outcome(&rig.another(datagrams)), Ok(8));
    }
}

pub(crate) fn a_duplicate_of_a_listener_keeps_its_accepts(driver: DriverChoice) {
    for how in 0..3 {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let accept = |rig: &mut Rig, handle| rig.accept(handle, Accept::lightweight()).unwrap();
        let listening = cancel_one(&mut rig, listener.into(), accept, how);
        let _client = crate::common::client(address);
        assert!(matches!(rig.another(listening), Event::Accept(Ok(_))));
    }
}

/// `O_NONBLOCK`, which every holder of the terminal sees, is set only while it is registered.
pub(crate) fn a_terminal_is_blocking_again_when_it_leaves(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_main, line) = terminal();
    let other = duplicate(&line);
    let flags = |fd: &OwnedFd| {
        // SAFETY: the call takes no pointers.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) & libc::O_NONBLOCK }
    };
    assert_eq!(flags(&other), 0);
    for close in [false, true] {
        let handle = rig.join(duplicate(&line));
        assert_ne!(flags(&other), 0);
        rig.write(handle, b"x").unwrap();
        assert_eq!(outcome(&rig.last(handle)), Ok(1));
        if close {
            rig.close(handle).unwrap();
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        } else {
            drop(File::from(rig.unregister(handle).unwrap().descriptor.unwrap()));
        }
        assert_eq!(flags(&other), 0);
    }
}
