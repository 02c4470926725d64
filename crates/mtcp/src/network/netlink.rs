//! A socket to the routing part of the kernel (netlink(7)).

use super::messages::{self, Fact, Message};
use crate::system::{check, check_length, errno, new_socket};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The kernel makes its datagrams at most this long for a reader who has so much room.
const DATAGRAM_BYTES: usize = 32 * 1024;
/// The kernel answers at once; this is for one that does not.
const ANSWER_TIMEOUT_MS: libc::c_int = 5_000;
/// Datagrams of one dump: 128 MiB.
const DUMP_DATAGRAMS_MAX: usize = 4_096;

/// A bound socket.
pub(super) struct Netlink {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Netlink {
    /// A socket of the calling thread's namespace that hears of these groups (RTMGRP_*).
    pub(super) fn open(groups: u32) -> io::Result<Netlink> {
        let socket = new_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        // SAFETY: sockaddr_nl is plain data for which all zeros is valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        let bytes = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the address is an initialised sockaddr_nl of this length.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) })?;
        Ok(Netlink { socket, buffer: vec![0; DATAGRAM_BYTES].into(), sequence: 0 })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads the bytes of the message.
        let outcome = unsafe {
            libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), flags)
        };
        check_length(outcome).map(|_| ())
    }

    /// The next datagram that is there; only the kernel's are taken.
    fn receive(&mut self) -> io::Result<&[u8]> {
        loop {
            // SAFETY: sockaddr_nl is plain data for which all zeros is valid.
            let mut from: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
            let mut from_bytes = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            let to = self.buffer.as_mut_ptr().cast();
            // SAFETY: the kernel writes at most the lengths of buffer and address.
            let outcome = unsafe {
                let from = (&raw mut from).cast();
                let length = self.buffer.len();
                libc::recvfrom(self.socket.as_raw_fd(), to, length, 0, from, &raw mut from_bytes)
            };
            let bytes = check_length(outcome)?;
            if from.nl_pid == 0 {
                return Ok(&self.buffer[..bytes]);
            }
        }
    }

    /// Takes what has been announced; false if nothing more is there.
    ///
    /// # Errors
    /// `ENOBUFS`: announcements were lost, ask for everything again.
    pub(super) fn announcements(&mut self, take: &mut dyn FnMut(i32, Fact)) -> io::Result<bool> {
        match self.receive() {
            Ok(datagram) => {
                for (_, message) in messages::parse(datagram) {
                    if let Message::Fact(index, fact) = message {
                        take(index, fact);
                    }
                }
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Asks for all objects of a kind and waits for them.
    pub(super) fn dump(&mut self, kind: u16, take: &mut dyn FnMut(i32, Fact)) -> io::Result<()> {
        let sequence = self.next_sequence();
        self.send(&messages::dump(kind, sequence))?;
        self.answers(sequence, take)
    }

    /// Has the kernel find out a neighbour's hardware address, or confirm it.
    pub(super) fn use_neighbour(&mut self, index: i32, address: IpAddr) -> io::Result<()> {
        let sequence = self.next_sequence();
        self.send(&messages::use_neighbour(index, address, sequence))?;
        self.answers(sequence, &mut |_, _| ())
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Takes the answers to a request, up to the last one.
    fn answers(&mut self, sequence: u32, take: &mut dyn FnMut(i32, Fact)) -> io::Result<()> {
        for _ in 0..DUMP_DATAGRAMS_MAX {
            self.wait()?;
            let datagram = match self.receive() {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => continue,
                received => received?,
            };
            for (answered, message) in messages::parse(datagram) {
                match message {
                    _ if answered != sequence => {}
                    Message::Done | Message::Error(0) => return Ok(()),
                    Message::Other => {}
                    Message::Error(code) => return Err(errno(code.saturating_neg())),
                    Message::Fact(index, fact) => take(index, fact),
                }
            }
        }
        Err(errno(libc::EMSGSIZE))
    }

    /// Waits for an answer.
    fn wait(&self) -> io::Result<()> {
        let mut poll =
            libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one initialised pollfd.
        match check(unsafe { libc::poll(&raw mut poll, 1, ANSWER_TIMEOUT_MS) })? {
            0 => Err(errno(libc::ETIMEDOUT)),
            _ => Ok(()),
        }
    }
}
