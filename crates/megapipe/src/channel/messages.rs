//! Submits requests for messages with ancillary data: descriptors, and what the kernel reports and
//! takes with datagrams.

use super::Channel;
use super::requests::{MOST_VECTORS, Rejected, SOCKETS, TOO_MANY_VECTORS, check_room};
use crate::address::RawAddress;
use crate::buffer::Buffer;
use crate::completion::Handle;
use crate::control::{self, Arrival, DESCRIPTORS_MAX};
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
    /// - with an address on sockets that are not datagram sockets;
    /// - with packet information, an ECN mark or a segment size on sockets other than UDP sockets;
    /// - with packet information that the socket's family does not have;
    /// - with more than [`Message::SEGMENTS_MAX`] segments.
    ///
    /// The kernel refuses to send from an address that does not belong to this host (`EINVAL`,
    /// `ENETUNREACH`), and some messages with a [segment size](Message::with_segment_size). It
    /// refuses descriptors while more than `RLIMIT_NOFILE` of them are sent and
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
    /// and what [`Channel::enable_packet_info`], [`Channel::enable_ecn`] and
    /// [`Channel::enable_gro`] make the kernel report. Credentials and other ancillary data are
    /// skipped.
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
    /// interface of this host on which it arrived: [`Message::packet_info`],
    /// [`Datagram::packet_info`](crate::Datagram::packet_info). A server that is bound to all
    /// addresses needs it to answer from the address to which the request was sent. Sending needs
    /// no option.
    ///
    /// It is `IP_PKTINFO` of ip(7), for IPv6 sockets `IPV6_RECVPKTINFO` of ipv6(7), which covers
    /// IPv4 datagrams, too. Fails on sockets other than internet datagram sockets.
    ///
    /// A [`Channel::receive_from`] that was submitted before goes on without. With
    /// [`Config::large_buffers`](crate::Config::large_buffers) of less than 1,024 bytes only
    /// messages have it.
    pub fn enable_packet_info(&mut self, handle: Handle) -> Result<()> {
        let (key, domain) = self.check_udp(handle, "packet info")?;
        let (level, name) = match domain {
            libc::AF_INET => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            _ => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        };
        self.enable_report(key, level, name)
    }

    /// Makes the kernel report, with each datagram that arrives from now on, its ECN mark:
    /// [`Message::ecn`], [`Datagram::ecn`](crate::Datagram::ecn). Sending needs no option.
    ///
    /// It is `IP_RECVTOS` of ip(7), for IPv6 sockets also `IPV6_RECVTCLASS` of ipv6(7). Otherwise
    /// as [`Channel::enable_packet_info`].
    pub fn enable_ecn(&mut self, handle: Handle) -> Result<()> {
        let (key, domain) = self.check_udp(handle, "ECN marks")?;
        if domain == libc::AF_INET6 {
            self.enable_report(key, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)?;
        }
        // An IPv6 socket may receive IPv4 datagrams.
        self.enable_report(key, libc::IPPROTO_IP, libc::IP_RECVTOS)
    }

    /// Lets the kernel join datagrams of one sender and one size that arrive together, so that one
    /// request receives many: generic receive offload (GRO), `UDP_GRO` of udp(7), Linux 5.0; before
    /// it fails with `ENOPROTOOPT`.
    ///
    /// From now on a receive returns up to 65,507 bytes, in datagrams of
    /// [`Message::segment_size`] or [`Datagram::segment_size`](crate::Datagram::segment_size) bytes.
    /// Receive into room for so many: what does not fit is lost. The default
    /// [`Config::large_buffers`](crate::Config::large_buffers) have it. Use no plain read, which
    /// does not report the size. Otherwise as [`Channel::enable_packet_info`].
    pub fn enable_gro(&mut self, handle: Handle) -> Result<()> {
        let (key, _) = self.check_udp(handle, "receive offload")?;
        self.enable_report(key, libc::SOL_UDP, libc::UDP_GRO)
    }

    /// Sets an option, by which the kernel adds ancillary data to datagrams.
    fn enable_report(&mut self, key: Key, level: i32, name: i32) -> Result<()> {
        self.engine.set_option(key, level, name, &1i32.to_ne_bytes())?;
        self.engine.expect_ancillary(key);
        Ok(())
    }

    /// Returns the key and the domain of an internet socket of datagrams.
    fn check_udp(&mut self, handle: Handle, request: &'static str) -> Result<(Key, i32)> {
        let key = self.check(handle, request, &[Kind::Datagram])?;
        match self.engine.domain(key)? {
            domain @ (libc::AF_INET | libc::AF_INET6) => Ok((key, domain)),
            _ => Err(NOT_UDP),
        }
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
        if message.parts.arrival != Arrival::default() {
            if !datagrams {
                return Err(NOT_UDP);
            }
            let (_, domain) = self.check_udp(handle, "a send of messages")?;
            push_departure(&mut control, message, domain)?;
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

const NOT_UDP: Error = Error::Invalid(
    "only internet sockets of datagrams (UDP) have packet info, ECN marks and segments",
);

/// Appends what a message has besides descriptors, for a UDP socket of the domain.
fn push_departure(control: &mut Vec<u8>, message: &Message, domain: i32) -> Result<()> {
    let Arrival { packet_info, ecn, segment_size } = message.parts.arrival;
    if let Some(info) = packet_info
        && !control::push_packet_info(control, info, domain)
    {
        return Err(Error::Invalid(
            "the packet info has an IPv6 address, and the socket is of IPv4",
        ));
    }
    if let Some(ecn) = ecn {
        control::push_ecn(control, ecn, domain);
    }
    match segment_size {
        Some(0) => return Err(Error::Invalid("a segment has at least one byte")),
        Some(bytes) => {
            let segments = message.bytes().len().div_ceil(usize::from(bytes));
            if segments > Message::SEGMENTS_MAX {
                return Err(Error::Invalid(
                    "a message has at most 64 segments (UDP_MAX_SEGMENTS): send the others with \
                     further messages",
                ));
            }
            // Kernels differ in what they do with the option for one datagram.
            if segments > 1 {
                control::push_segment_size(control, bytes);
            }
        }
        None => {}
    }
    Ok(())
}

fn has_room(message: &Message) -> bool {
    matches!(&message.parts.buffer, Buffer::Owned(bytes) if bytes.capacity() > bytes.len())
}
