//! Tests messages of tun devices and netlink, which need privileges: root, a network namespace.

use crate::common::process::isolated;
use crate::common::{Rig, datagram, received};
use megapipe::{DriverChoice, Event, Handle, Repeat};
use std::fs::OpenOptions;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

/// Creates a tun device with long frames in the network namespace of the calling thread.
fn tun() -> OwnedFd {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"tun0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an initialised ifreq, which TUNSETIFF reads and writes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    assert_eq!(result, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    for arguments in ["link set tun0 mtu 9000 up", "address add 10.77.0.1/24 dev tun0"] {
        let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}: {status}");
    }
    file.into()
}

/// Returns the payload of a frame if it is a UDP datagram over IPv4; the kernel sends other frames.
fn udp_payload(frame: &[u8]) -> Option<&[u8]> {
    let is_udp = frame.first()? >> 4 == 4 && *frame.get(9)? == libc::IPPROTO_UDP as u8;
    is_udp.then(|| &frame[28..])
}

/// Returns the next UDP datagram from a tun device.
fn next_frame(rig: &mut Rig, handle: Handle, repeat: Repeat) -> Vec<u8> {
    loop {
        let lease = received(rig.next().event);
        if repeat == Repeat::Once {
            rig.receive(handle, repeat).unwrap();
        }
        if let Some(payload) = udp_payload(&lease) {
            return payload.to_vec();
        }
    }
}

pub(crate) fn long_frames_of_a_tun_device_are_whole(driver: DriverChoice) {
    isolated(driver, "long_frames_of_a_tun_device_are_whole", || {
        // SAFETY: the call takes no pointers.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "unshare: {}", std::io::Error::last_os_error());
        let mut rig = Rig::new(driver);
        let handle = rig.join(tun());
        let sender = UdpSocket::bind("10.77.0.1:0").unwrap();
        for repeat in [Repeat::Once, Repeat::UntilCancelled] {
            rig.receive(handle, repeat).unwrap();
            for bytes in [100, 8972, 1, 4132, 4133, 8000, 10, 8972] {
                sender.send_to(&vec![bytes as u8; bytes], "10.77.0.2:9").unwrap();
                let payload = next_frame(&mut rig, handle, repeat);
                assert_eq!(payload, vec![bytes as u8; bytes], "{} of {bytes}", payload.len());
            }
            rig.cancel(handle).unwrap();
            rig.drain();
        }
    });
}

/// The protocol of netlink(7) whose messages the kernel passes between programs without reading
/// them.
const NETLINK_USERSOCK: libc::c_int = 2;

fn netlink_address(groups: u32) -> libc::sockaddr_nl {
    // SAFETY: all-zero bytes are a valid `sockaddr_nl`.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups;
    address
}

/// Returns a netlink socket with a small queue; with `groups`, a member of those multicast groups.
fn netlink(groups: u32) -> OwnedFd {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (address, room) = (netlink_address(groups), 4096_i32);
    // SAFETY: the arguments outlive the calls, the lengths are their sizes, and the descriptor has
    // no other owner.
    unsafe {
        let fd = libc::socket(libc::AF_NETLINK, kind, NETLINK_USERSOCK);
        assert!(fd >= 0, "AF_NETLINK: {}", std::io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(fd);
        let bytes = size_of_val(&address) as libc::socklen_t;
        let bound = libc::bind(fd, (&raw const address).cast(), bytes);
        let error = std::io::Error::last_os_error();
        assert_eq!(bound, 0, "joining a netlink group (which takes CAP_NET_ADMIN): {error}");
        let (option, bytes) = (libc::SO_RCVBUF, size_of_val(&room) as libc::socklen_t);
        let set = libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const room).cast(), bytes);
        assert_eq!(set, 0, "SO_RCVBUF: {}", std::io::Error::last_os_error());
        socket
    }
}

/// Sends more messages to a group than its members have room for.
fn overrun(group: u32) {
    let (sender, address, message) = (netlink(0), netlink_address(group), [0u8; 1024]);
    for _ in 0..100 {
        // SAFETY: message and address outlive the call, and the lengths are their sizes.
        unsafe {
            let bytes = size_of_val(&address) as libc::socklen_t;
            let (fd, to) = (sender.as_raw_fd(), (&raw const address).cast());
            libc::sendto(fd, message.as_ptr().cast(), message.len(), 0, to, bytes);
        }
    }
}

/// Messages that netlink has lost are reported, and not mistaken for a lack of the channel's
/// buffers.
pub(crate) fn an_overrun_of_netlink_is_told(driver: DriverChoice) {
    // Multicast groups that only this test uses.
    let base = if driver == DriverChoice::Uring { 1 << 8 } else { 1 << 16 };
    for (number, repeat) in [Repeat::Once, Repeat::UntilCancelled].into_iter().enumerate() {
        for late in [false, true] {
            let group = base << (2 * number + usize::from(late));
            let mut rig = Rig::new(driver);
            let handle = rig.join(netlink(group));
            if late {
                overrun(group);
            }
            rig.receive_from(handle, repeat).unwrap();
            rig.flush().unwrap();
            if !late {
                overrun(group);
            }
            // Messages for which there was room also arrive, before or after the error.
            let mut errno = None;
            while errno.is_none() {
                let done = rig.next();
                match done.event {
                    Event::ReceiveFrom(Err(error)) => errno = error.raw_os_error(),
                    event => assert_eq!(datagram(event).len(), 1024),
                }
                if repeat == Repeat::Once && errno.is_none() {
                    rig.receive_from(handle, repeat).unwrap();
                }
            }
            assert_eq!(errno, Some(libc::ENOBUFS));
            assert_eq!(rig.counters().buffer_waits, 0);
        }
    }
}
