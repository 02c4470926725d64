//! Requests on sockets, most of them by direct descriptor.

use super::features::Attempt;
use super::ring::{GROUP, Scratch, owned, wait_readable};
use super::{Failure, Feature, missing, obstacle, require};
use crate::driver::uring::entries::get_option;
use io_uring::types::{Fd, Fixed, RecvMsgOut};
use io_uring::{cqueue, opcode, squeue};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

pub(super) const ACCEPT: &str = "multishot accept, direct descriptors";
pub(super) const RECEIVE: &str = "multishot receive, buffer ring";

pub(super) const FEATURES: &[Feature<Attempt>] = &[
    Feature {
        name: ACCEPT,
        used_for: "connections as lightweight sockets",
        remedy: "Linux 5.19 or later, else the epoll driver",
        attempt: accept,
    },
    Feature {
        name: RECEIVE,
        used_for: "receiving into the channel's buffers",
        remedy: "Linux 6.0 or later, else the epoll driver",
        attempt: receive,
    },
    Feature {
        name: "multishot recvmsg, buffer ring",
        used_for: "receiving datagrams",
        remedy: "Linux 6.0 or later; until then one request per datagram",
        attempt: receive_message,
    },
    Feature {
        name: "direct descriptor to fd (FIXED_FD_INSTALL)",
        used_for: "giving a lightweight socket a descriptor",
        remedy: "Linux 6.8 or later; until then register such sockets as descriptors",
        attempt: install,
    },
    Feature {
        name: "getsockopt on direct descriptors",
        used_for: "the peer's address of a lightweight socket",
        remedy: "Linux 6.7 or later; until then through FIXED_FD_INSTALL",
        attempt: get_peer_name,
    },
    Feature {
        name: "setsockopt on direct descriptors",
        used_for: "options of lightweight sockets (TCP_NODELAY)",
        remedy: "Linux 6.7 or later; until then set on the listener, whose sockets inherit it",
        attempt: set_no_delay,
    },
];

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub(super) fn listener() -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = TcpListener::bind(LOOPBACK).map_err(obstacle("listening on 127.0.0.1"))?;
    let address = listener.local_addr().map_err(obstacle("a listener's address"))?;
    Ok((listener, address))
}

pub(super) fn connect(address: SocketAddr) -> Result<TcpStream, Failure> {
    TcpStream::connect_timeout(&address, super::ring::PATIENCE)
        .map_err(obstacle("connecting to 127.0.0.1"))
}

fn tcp_pair() -> Result<(TcpStream, TcpStream), Failure> {
    let (listener, address) = listener()?;
    let near = connect(address)?;
    let ready = wait_readable(&[&listener]).map_err(obstacle("waiting for a connection"))?;
    ready.ok_or_else(|| Failure::Obstacle("a connection to 127.0.0.1 did not arrive".into()))?;
    let (far, _) = listener.accept().map_err(obstacle("accepting a connection"))?;
    Ok((near, far))
}

fn unix_pair() -> Result<(UnixStream, UnixStream), Failure> {
    UnixStream::pair().map_err(obstacle("a socket pair"))
}

fn send(mut socket: impl Write, bytes: &[u8]) -> Result<(), Failure> {
    socket.write_all(bytes).map_err(obstacle("sending on a scratch socket"))
}

fn accept(scratch: &mut Scratch) -> Result<(), Failure> {
    let (listener, address) = listener()?;
    scratch.file_table(4)?;
    let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).allocate_file_index(true);
    // SAFETY: the entry points to no memory.
    unsafe { scratch.push(accept.build()) };
    scratch.submit("a multishot accept")?;
    let mut peers = Vec::new();
    for _ in 0..2 {
        peers.push(connect(address)?);
        let done = scratch.expect("a multishot accept")?;
        require(cqueue::more(done.flags()), "a multishot accept ended after a connection")?;
    }
    // What was accepted are sockets that work.
    send(&peers[1], b"x")?;
    let argument = scratch.place([0_u8; 1]);
    let receive = opcode::Recv::new(Fixed(1), argument.cast(), 1);
    // SAFETY: the entry points to the scratch memory.
    let done = unsafe { scratch.run(receive.build(), "receiving on an accepted socket") }?;
    require(done.result() == 1, "an accepted socket received nothing")
}

fn receive(scratch: &mut Scratch) -> Result<(), Failure> {
    let (ours, theirs) = unix_pair()?;
    scratch.provide(4, 64)?;
    let direct = scratch.direct(&ours)?;
    // SAFETY: the entry points to no memory but the provided buffers.
    unsafe { scratch.push(opcode::RecvMulti::new(direct, GROUP).build()) };
    scratch.submit("a multishot receive")?;
    for text in [&b"first"[..], b"second"] {
        send(&theirs, text)?;
        let done = scratch.expect("a multishot receive")?;
        require(cqueue::more(done.flags()), "a multishot receive ended after a message")?;
        let received = scratch.received(&done);
        require(received.as_deref() == Some(text), "a multishot receive brought other bytes")?;
    }
    Ok(())
}

fn receive_message(scratch: &mut Scratch) -> Result<(), Failure> {
    const NAME_BYTES: u32 = 128;
    let bind = || UdpSocket::bind(LOOPBACK).map_err(obstacle("a UDP socket on 127.0.0.1"));
    let (ours, theirs) = (bind()?, bind()?);
    scratch.provide(4, 512)?;
    // SAFETY: all-zero bytes are a valid `msghdr` that names no memory.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_namelen = NAME_BYTES;
    let argument = scratch.place(header);
    let receive = opcode::RecvMsgMulti::new(Fd(ours.as_raw_fd()), argument, GROUP);
    // SAFETY: the entry points to the scratch memory, and the header to no other.
    unsafe { scratch.push(receive.build()) };
    scratch.submit("a multishot recvmsg")?;
    for text in [&b"first"[..], b"second"] {
        let sent = ours.local_addr().and_then(|address| theirs.send_to(text, address));
        sent.map_err(obstacle("sending a datagram to 127.0.0.1"))?;
        let done = scratch.expect("a multishot recvmsg")?;
        require(cqueue::more(done.flags()), "a multishot recvmsg ended after a datagram")?;
        let received = scratch.received(&done).unwrap_or_default();
        let message = RecvMsgOut::parse(&received, &header).ok();
        let right = message.is_some_and(|message| {
            message.payload_data() == text && !message.name_data().is_empty()
        });
        require(right, "a multishot recvmsg brought another datagram")?;
    }
    Ok(())
}

fn install(scratch: &mut Scratch) -> Result<(), Failure> {
    let (ours, theirs) = unix_pair()?;
    let direct = scratch.direct(&ours)?;
    drop(ours);
    let install = opcode::FixedFdInstall::new(direct, 0);
    // SAFETY: the entry points to no memory.
    let done = unsafe { scratch.run(install.build(), "installing a descriptor") }?;
    // SAFETY: the kernel has just made this descriptor for us.
    let mut installed = UnixStream::from(unsafe { owned(done.result()) });
    send(&theirs, b"x")?;
    let mut byte = [0];
    let read = installed.set_nonblocking(true).and_then(|()| installed.read_exact(&mut byte));
    read.map_err(missing("reading from the installed descriptor"))
}

fn get_peer_name(scratch: &mut Scratch) -> Result<(), Failure> {
    let (near, far) = tcp_pair()?;
    let direct = scratch.direct(&far)?;
    // SAFETY: all-zero bytes are a valid `sockaddr_in`.
    let empty: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let bytes = size_of_val(&empty);
    let name = scratch.place(empty);
    let entry = get_option(Fd(direct.0 as i32), libc::SO_PEERNAME, name.cast(), bytes as u32)
        .flags(squeue::Flags::FIXED_FILE);
    // SAFETY: the entry points to the scratch memory.
    let done = unsafe { scratch.run(entry, "getsockopt(SO_PEERNAME)") }?;
    // SAFETY: the argument is still in place and nothing writes to it any more.
    let name = unsafe { name.read() };
    let port = near.local_addr().map_err(obstacle("a socket's own address"))?.port();
    let right = done.result() as usize == bytes && u16::from_be(name.sin_port) == port;
    require(right, "getsockopt(SO_PEERNAME) gave another address")
}

fn set_no_delay(scratch: &mut Scratch) -> Result<(), Failure> {
    let (near, _far) = tcp_pair()?;
    let direct = scratch.direct(&near)?;
    let (level, option) = (libc::IPPROTO_TCP as u32, libc::TCP_NODELAY as u32);
    let value = scratch.place(1 as libc::c_int);
    let bytes = size_of::<libc::c_int>() as u32;
    let entry = opcode::SetSockOpt::new(direct, level, option, value.cast(), bytes).build();
    // SAFETY: the entry points to the scratch memory.
    unsafe { scratch.run(entry, "setsockopt(TCP_NODELAY)") }?;
    let set = near.nodelay().map_err(obstacle("getsockopt(TCP_NODELAY)"))?;
    require(set, "setsockopt(TCP_NODELAY) had no effect")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_request_that_cannot_be_met_is_missing_and_the_ring_goes_in_peace() {
        let mut scratch = Scratch::new().unwrap();
        let install = opcode::FixedFdInstall::new(Fixed(3), 0);
        // SAFETY: the entry points to no memory.
        let failed = unsafe { scratch.run(install.build(), "installing nothing") };
        let Err(Failure::Missing(text)) = failed else { panic!("{failed:?}") };
        assert!(text.starts_with("installing nothing: "), "{text}");
        // A receive that never completes is cancelled on drop.
        let (ours, _theirs) = unix_pair().unwrap();
        let argument = scratch.place([0_u8; 8]);
        let receive = opcode::Recv::new(Fd(ours.as_raw_fd()), argument.cast(), 8);
        // SAFETY: the entry points to the scratch memory.
        unsafe { scratch.push(receive.build()) };
        scratch.submit("a receive").unwrap();
        drop(scratch);
    }

    #[test]
    fn waiting_is_bounded() {
        let mut scratch = Scratch::new().unwrap();
        let error = scratch.next().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
