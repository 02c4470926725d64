//! Sends requests to rtnetlink(7), and receives answers and announcements.

use super::messages::{self, Fact, Message};
use crate::system::{check, check_length, errno, new_socket};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes of the receive buffer. With this size the kernel does not make longer datagrams.
const DATAGRAM_BYTES: usize = 32 * 1024;
/// Limit for an answer, which the kernel normally sends at once.
const ANSWER_TIMEOUT_MS: libc::c_int = 5_000;
/// Most datagrams of one dump: 128 MiB.
const DUMP_DATAGRAMS_MAX: usize = 4_096;

/// A bound socket.
pub(super) struct Netlink {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace that receives the messages of these groups
    /// (RTMGRP_*).
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

    /// Receives the next available datagram; ignores those that the kernel did not send.
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

    /// Takes the available announcements of one datagram; false if there is none.
    ///
    /// # Errors
    /// `ENOBUFS`: announcements were lost, and the caller must request everything again.
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

    /// Requests all objects of a kind and waits for them.
    pub(super) fn dump(&mut self, kind: u16, take: &mut dyn FnMut(i32, Fact)) -> io::Result<()> {
        let sequence = self.next_sequence();
        self.send(&messages::dump(kind, sequence))?;
        self.answers(sequence, take)
    }

    /// Makes the kernel resolve a neighbour's hardware address, or confirm it.
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
