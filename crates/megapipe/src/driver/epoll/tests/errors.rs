//! Tests errors that the kernel reports only once.

use super::*;
use crate::completion::Event;
use crate::{Channel, DriverChoice, Repeat};
use std::io::{ErrorKind, Read};
use std::os::fd::FromRawFd;
use testkit::skip;

/// The protocol of netlink(7) whose messages the kernel passes between programs without reading
/// them.
const NETLINK_USERSOCK: libc::c_int = 2;

/// Opens a netlink socket. With `groups` it joins those multicast groups, which takes
/// CAP_NET_ADMIN: returns `None` without it.
fn netlink(groups: u32) -> Option<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes no pointers, and nothing else owns the descriptor.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, kind, NETLINK_USERSOCK);
        assert!(fd >= 0, "AF_NETLINK: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    };
    let address = netlink_address(groups);
    // SAFETY: the address outlives the call, and the length is its size.
    let bound = unsafe {
        let bytes = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes)
    };
    let error = std::io::Error::last_os_error();
    if bound != 0 && error.kind() == ErrorKind::PermissionDenied {
        return None;
    }
    assert_eq!(bound, 0, "joining a netlink group: {error}");
    Some(socket)
}

fn netlink_address(groups: u32) -> libc::sockaddr_nl {
    // SAFETY: all-zero bytes are a valid `sockaddr_nl`.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups;
    address
}

/// Returns a member of a multicast group of its own, whose queue had no room for the last message.
fn overrun_netlink(test: &str, group: u32) -> Option<OwnedFd> {
    let (Some(receiver), Some(sender)) = (netlink(group), netlink(0)) else {
        skip(test, "joining a netlink group takes CAP_NET_ADMIN");
        return None;
    };
    set_option(&receiver, libc::SOL_SOCKET, libc::SO_RCVBUF, 4096);
    let (address, message) = (netlink_address(group), [0u8; 1024]);
    for _ in 0..100 {
        // SAFETY: message and address outlive the call, and the lengths are their sizes.
        unsafe {
            let bytes = size_of_val(&address) as libc::socklen_t;
            let (fd, to) = (sender.as_raw_fd(), (&raw const address).cast());
            libc::sendto(fd, message.as_ptr().cast(), message.len(), 0, to, bytes);
        }
    }
    Some(receiver)
}

#[test]
fn an_overrun_is_told_to_the_application() {
    for (group, repeat) in [(1, Repeat::Once), (2, Repeat::UntilCancelled)] {
        let config = Config { driver: DriverChoice::Epoll, ..Config::default() };
        let mut channel: Channel<u64> = Channel::with_config(config).unwrap();
        let test = "an_overrun_is_told_to_the_application";
        let Some(overrun) = overrun_netlink(test, group) else { return };
        let handle = channel.register(overrun, 0).unwrap();
        channel.receive_from(handle, repeat).unwrap();
        let done = channel.dispatch(AMPLE).unwrap().expect("the overrun");
        let Event::ReceiveFrom(Err(error)) = done.event else { panic!("{done:?}") };
        assert_eq!((error.raw_os_error(), done.more), (Some(libc::ENOBUFS), false));
        // The error is reported once; the messages that had room follow.
        channel.receive_from(handle, Repeat::Once).unwrap();
        let done = channel.dispatch(AMPLE).unwrap().expect("a message");
        let Event::ReceiveFrom(Ok(message)) = done.event else { panic!("{done:?}") };
        assert_eq!(message.len(), 1024);
        assert_eq!(channel.counters().buffer_waits, 0);
    }
}

#[test]
fn a_lack_of_buffers_is_no_error_of_the_socket() {
    let mut rig = Rig::tight();
    let lack = |rig: &mut Rig, tag| {
        let outcome = rig.next();
        assert_eq!((outcome.tag, outcome.result, outcome.more), (tag, -libc::ENOBUFS, false));
        matches!(outcome.output, Output::Starved)
    };
    let operation = Operation::ReceiveFrom { repeat: true, ancillary: false };
    let test = "a_lack_of_buffers_is_no_error_of_the_socket";
    let Some(overrun) = overrun_netlink(test, 4) else { return };
    let overrun = rig.attach(overrun);
    rig.submit(1, overrun, operation);
    assert!(!lack(&mut rig, 1));
    rig.submit(2, overrun, operation);
    let _held = (rig.lease(2), rig.lease(2));
    assert!(lack(&mut rig, 2));
    let (near, _far) = tcp_pair();
    let near = rig.attach(near);
    rig.submit(3, near, Operation::Receive { large: true, repeat: true });
    assert!(lack(&mut rig, 3));
}

#[test]
fn a_write_that_is_cancelled_leaves_no_error() {
    let bytes = pattern(8 << 20);
    let mut rig = Rig::new();
    let (near, mut far) = tcp_pair();
    for (socket, option) in [(&near, libc::SO_SNDBUF), (&far, libc::SO_RCVBUF)] {
        set_option(socket, libc::SOL_SOCKET, option, 65536);
    }
    let near = rig.attach(near);
    let taken = rig.fill(1, near, &bytes);
    rig.driver.cancel(1, near);
    assert_eq!(rig.last(1), -libc::ECANCELED);
    far.read_exact(&mut vec![0; taken]).unwrap();
    rig.submit(2, near, write(b"more"));
    assert_eq!(rig.last(2), 4);
    let mut found = [0; 4];
    far.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"more");
}
