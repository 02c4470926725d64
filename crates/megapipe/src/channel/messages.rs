//! Submits requests for messages with ancillary data: descriptors and packet information.

use super::Channel;
use super::requests::{MOST_VECTORS, Rejected, SOCKETS, TOO_MANY_VECTORS, check_room};
use crate::address::RawAddress;
use crate::buffer::Buffer;
use crate::completion::Handle;
use crate::control::{self, DESCRIPTORS_MAX};
use crate::engine::{Command, Envelope, Lane, RawMemory, Request};
use crate::error::{Error, Result};
use crate::message::Message;
use crate::raw::RawCommand;
use crate::slab::Key;
use crate::source::Kind;
use std::os::fd::AsRawFd;

impl<C> Channel<C> {
    /// Sends a message with its descriptors, or to its address with its packet information. The
    /// message is sent after the earlier writes of the handle;
    /// [`Event::SendMessage`](crate::Event::SendMessage) returns it. See [`Message`] for an
    /// example.
    ///
    /// On a stream the channel sends all bytes, as [`Channel::write`] does; the descriptors travel
    /// once, with the first byte. On a socket of datagrams or packets it sends one message. The
    /// descriptors stay open and belong to the message until the event, whatever the result. If the
    /// request is withdrawn (because its handle is unregistered or closed), the channel closes
    /// them.
    ///
    /// Fails and returns the message:
    /// - with more than 253 descriptors (`SCM_MAX_FD`);
    /// - with descriptors on sockets other than UNIX sockets, connections of the `mtcp` driver
    ///   included, or without a byte over a stream, which would lose them;
    /// - with an address or packet information on sockets that are not datagram sockets;
    /// - with packet information that the socket's family does not have.
    ///
    /// The kernel refuses to send from an address that does not belong to this host (`EINVAL`,
    /// `ENETUNREACH`). It refuses descriptors while more than `RLIMIT_NOFILE` of them are sent and
    /// not received (`ETOOMANYREFS`).
    pub fn send_message(
        &mut self,
        handle: Handle,
        message: Message,
    ) -> Result<(), Rejected<Message>> {
        let mut message = message;
        match self.describe(handle, &message) {
            Ok((key, address, control)) => {
                self.engine.spare_lease(key, &mut message.parts.buffer);
                let envelope = Envelope::sending(message, address, control);
                self.file_message(key, Request::new(Command::SendMessage(envelope), Lane::Outbound))
            }
            Err(error) => Err(Rejected { error, buffer: message }),
        }
    }

    /// Receives into the spare capacity of a message, after the bytes that it already has, and
    /// after the earlier reads of the handle.
    /// [`Event::ReceiveMessage`](crate::Event::ReceiveMessage) returns the message.
    ///
    /// Completes with the available bytes, as [`Channel::read`] does. On a stream of UNIX sockets
    /// it ends with the bytes that came with the same descriptors. execve(2) closes received
    /// descriptors. If more arrive than fit ([`Message::room_for_descriptors`]), the excess is lost
    /// and the result is an error. The channel closes the descriptors of a withdrawn request. A
    /// plain read loses descriptors without an error. Datagrams have the address of their sender
    /// and, after [`Channel::enable_packet_info`], their packet information. Credentials and other
    /// ancillary data are skipped.
    ///
    /// Fails and returns the message if it has no spare capacity or the handle is not a socket.
    /// Connections of the `mtcp` driver complete with `EOPNOTSUPP`.
    pub fn receive_message(
        &mut self,
        handle: Handle,
        message: Message,
    ) -> Result<(), Rejected<Message>> {
        let error = match self.check(handle, "a receive of messages", SOCKETS) {
            Ok(key) if has_room(&message) => {
                let named = self.engine.member(key).is_ok_and(|to| to.kind == Kind::Datagram);
                let envelope = Envelope::receiving(message, named);
                let request = Request::new(Command::ReceiveMessage(envelope), Lane::Inbound);
                return self.file_message(key, request);
            }
            Ok(_) => Error::Invalid(
                "the message has no spare capacity to receive into: make it by \
                 Message::with_capacity",
            ),
            Err(error) => error,
        };
        Err(Rejected { error, buffer: message })
    }

    /// Makes the kernel report, with each datagram that arrives from now on, the address and
    /// interface of this host on which it arrived: [`Message::packet_info`]. A server that is bound
    /// to all addresses needs it to answer from the address to which the request was sent. Sending
    /// needs no option.
    ///
    /// It is `IP_PKTINFO` of ip(7), for IPv6 sockets `IPV6_RECVPKTINFO` of ipv6(7), which covers
    /// IPv4 datagrams, too. Fails on sockets other than internet datagram sockets.
    pub fn enable_packet_info(&mut self, handle: Handle) -> Result<()> {
        let key = self.check(handle, "packet info", &[Kind::Datagram])?;
        let (level, name) = match self.engine.domain(key)? {
            libc::AF_INET => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            libc::AF_INET6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            _ => return Err(NO_PACKET_INFO),
        };
        self.engine.set_option(key, level, name, &1i32.to_ne_bytes())
    }

    /// Checks a message before it is sent, and encodes its address and ancillary data.
    fn describe(
        &mut self,
        handle: Handle,
        message: &Message,
    ) -> Result<(Key, Option<RawAddress>, Vec<u8>)> {
        let key = self.check(handle, "a send of messages", SOCKETS)?;
        let datagrams = self.engine.member(key)?.kind == Kind::Datagram;
        let address = match message.address() {
            Some(_) if !datagrams => {
                return Err(Error::Invalid(
                    "only datagrams are sent to an address: a connection has its peer",
                ));
            }
            address => address.map(RawAddress::new).transpose(),
        };
        let address = address.map_err(Error::system("sendmsg"))?;
        self.check_descriptors(key, message.descriptors().len(), message.bytes().len())?;
        let mut control = Vec::new();
        control::push_descriptors(
            &mut control,
            message.descriptors().iter().map(AsRawFd::as_raw_fd),
        );
        if let Some(info) = message.packet_info() {
            let domain = self.engine.domain(key)?;
            if !datagrams || ![libc::AF_INET, libc::AF_INET6].contains(&domain) {
                return Err(NO_PACKET_INFO);
            }
            if !control::push_packet_info(&mut control, info, domain) {
                return Err(Error::Invalid(
                    "the packet info has an IPv6 address, and the socket is of IPv4",
                ));
            }
        }
        Ok((key, address, control))
    }

    /// Fails for descriptors that the kernel would refuse or silently drop.
    fn check_descriptors(&mut self, key: Key, count: usize, bytes: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        if count > DESCRIPTORS_MAX {
            return Err(Error::Invalid(
                "a message takes at most 253 descriptors (SCM_MAX_FD): send the others with \
                 further messages",
            ));
        }
        if self.engine.domain(key)? != libc::AF_UNIX {
            return Err(Error::Invalid(
                "only UNIX sockets carry descriptors: send them over one (AF_UNIX)",
            ));
        }
        if bytes == 0 && self.engine.member(key)?.kind == Kind::Stream {
            return Err(Error::Invalid(
                "a stream carries descriptors with its bytes: send at least one byte with them",
            ));
        }
        Ok(())
    }

    fn file_message(&mut self, key: Key, request: Request) -> Result<(), Rejected<Message>> {
        self.engine.file(key, request).map_err(|(error, command)| match command {
            Command::SendMessage(envelope) | Command::ReceiveMessage(envelope) => {
                Rejected { error, buffer: envelope.into_message() }
            }
            _ => Rejected { error, buffer: Message::new("") },
        })
    }

    /// Submits a message in memory of the application.
    ///
    /// # Safety
    /// As for [`Channel::transfer`].
    pub(super) unsafe fn transfer_message(
        &mut self,
        handle: Handle,
        command: RawCommand,
        message: *mut libc::msghdr,
    ) -> Result<()> {
        let key = self.check(handle, "a transfer of a message", SOCKETS)?;
        // SAFETY: the caller guarantees that the header is valid.
        if unsafe { (*message).msg_iovlen } > MOST_VECTORS {
            return Err(TOO_MANY_VECTORS);
        }
        let (lane, envelope) = if command.writes() {
            // SAFETY: the caller guarantees that the memory that the header describes is valid.
            let envelope = unsafe { Envelope::raw_sending(message) };
            let count = control::descriptors_in(envelope.control());
            self.check_descriptors(key, count, envelope.bytes_left())?;
            (Lane::Outbound, envelope)
        } else {
            // SAFETY: the caller guarantees that the memory that the header describes is valid.
            (Lane::Inbound, unsafe { Envelope::raw_receiving(message) })
        };
        let memory = RawMemory::Message(envelope);
        check_room(command, &memory)?;
        self.file(key, Request::new(Command::Raw(command, memory), lane))
    }
}

const NO_PACKET_INFO: Error =
    Error::Invalid("only internet sockets of datagrams (UDP) have packet info");

fn has_room(message: &Message) -> bool {
    matches!(&message.parts.buffer, Buffer::Owned(bytes) if bytes.capacity() > bytes.len())
}
