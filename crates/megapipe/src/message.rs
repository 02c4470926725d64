//! Defines messages with ancillary data: descriptors, and what the kernel reports and takes with
//! datagrams.

use crate::address::Address;
use crate::buffer::Buffer;
use crate::control::Arrival;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Bytes with ancillary data, for [`Channel::send_message`] and [`Channel::receive_message`]: open
/// descriptors over UNIX sockets, and with datagrams the address and interface of this host, the
/// ECN mark, and the size of the datagrams of which the kernel makes or has made the message.
///
/// A received message has the address of its sender and all that was reported about its arrival, so
/// a message that is sent unchanged returns to its sender. [`Message::reply`] makes such a message
/// with other bytes.
///
/// ```
/// use megapipe::{Channel, Event, Message};
/// use std::fs::File;
/// use std::io::Read;
/// use std::os::unix::net::UnixStream;
///
/// let mut channel = Channel::new()?;
/// let (left, right) = UnixStream::pair()?;
/// let left = channel.register(left, ())?;
/// let right = channel.register(right, ())?;
/// let file = File::open("/etc/passwd")?;
/// channel.send_message(left, Message::new("a file").with_descriptor(file))?;
/// channel.receive_message(right, Message::with_capacity(64).room_for_descriptors(1))?;
/// for _ in 0..2 {
///     match channel.dispatch(None)?.expect("a completion").event {
///         Event::SendMessage(sent, _) => assert_eq!(sent?, 6),
///         Event::ReceiveMessage(received, mut message) => {
///             assert_eq!(received?, 6);
///             assert_eq!(message.bytes(), b"a file");
///             let mut file = File::from(message.take_descriptors().remove(0));
///             let mut beginning = [0; 5];
///             file.read_exact(&mut beginning)?;
///             assert_eq!(&beginning, b"root:");
///         }
///         other => panic!("unexpected: {other:?}"),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Channel::send_message`]: crate::Channel::send_message
/// [`Channel::receive_message`]: crate::Channel::receive_message
#[derive(Debug)]
pub struct Message {
    /// On the heap, so that the few events with messages do not make all events larger.
    pub(crate) parts: Box<Parts>,
}

/// The fields of a message.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) buffer: Buffer,
    pub(crate) address: Option<Address>,
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) descriptor_room: usize,
    /// Of the arrival, or for the departure.
    pub(crate) arrival: Arrival,
}

/// The address and the interface of this host on which a datagram arrived, or from which it is to
/// be sent (`IP_PKTINFO` of ip(7), `IPV6_PKTINFO` of ipv6(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketInfo {
    /// The address to which the datagram was sent. For a broadcast or multicast datagram: the
    /// address from which to answer, which is an address of the interface for IPv4, and `::` for
    /// IPv6, where the kernel chooses. To send: the source, an address of this host; with `0.0.0.0`
    /// or `::` the kernel chooses. On IPv6 sockets IPv4 addresses are mapped ones
    /// (`::ffff:a.b.c.d`).
    pub local: IpAddr,
    /// The index of the interface, see if_nametoindex(3). To send: with 0 the routes decide.
    pub interface: u32,
}

/// The mark of Explicit Congestion Notification in the header of a datagram (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not support ECN.
    NotEct = 0b00,
    /// The transport supports ECN; RFC 9331 gives this mark to L4S.
    Ect1 = 0b01,
    /// The transport supports ECN.
    Ect0 = 0b10,
    /// A router marked the datagram instead of dropping it: congestion.
    Ce = 0b11,
}

impl Ecn {
    /// Returns the mark in an IPv4 type of service or an IPv6 traffic class.
    pub(crate) fn of(class: u8) -> Ecn {
        [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][usize::from(class & 0b11)]
    }
}

/// The reason why a receive failed although its bytes arrived: descriptors that came with them are
/// lost. The [`io::Error`](std::io::Error) of an
/// [`Event::ReceiveMessage`](crate::Event::ReceiveMessage) contains it, in place of an `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "descriptors that came with the message are lost: there was room for {room}, or the process \
     may open no more; raise Message::room_for_descriptors or the limit on open files (ulimit -n)"
)]
pub struct DescriptorsLost {
    /// The number for which there was room: [`Message::room_for_descriptors`].
    pub room: usize,
}

impl Message {
    /// Creates a message with these bytes.
    pub fn new(bytes: impl Into<Buffer>) -> Message {
        let parts = Parts {
            buffer: bytes.into(),
            address: None,
            descriptors: Vec::new(),
            descriptor_room: 0,
            arrival: Arrival::default(),
        };
        Message { parts: Box::new(parts) }
    }

    /// Creates an empty message to receive into, with a capacity of `bytes`. A message made of a
    /// `Vec<u8>` with spare capacity works as well.
    pub fn with_capacity(bytes: usize) -> Message {
        Message::new(Vec::with_capacity(bytes))
    }

    /// Reserves space for `count` received descriptors; without this call, there is none. A message
    /// contains 253 at most (`SCM_MAX_FD`).
    pub fn room_for_descriptors(mut self, count: usize) -> Message {
        self.parts.descriptor_room = count;
        self
    }

    /// Adds a descriptor to send. The message owns it; the receiver gets a duplicate.
    pub fn with_descriptor(mut self, descriptor: impl Into<OwnedFd>) -> Message {
        self.parts.descriptors.push(descriptor.into());
        self
    }

    /// Sets the destination of a datagram.
    pub fn to(mut self, address: impl Into<Address>) -> Message {
        self.parts.address = Some(address.into());
        self
    }

    /// Sets the source address and the interface of a datagram.
    pub fn with_packet_info(mut self, info: PacketInfo) -> Message {
        self.parts.arrival.packet_info = Some(info);
        self
    }

    /// Sets the ECN mark of a datagram. Such a datagram has the DSCP 0, whatever the socket options
    /// `IP_TOS` and `IPV6_TCLASS` are, because ancillary data sets both parts of the field. Without
    /// this call these options decide.
    pub fn with_ecn(mut self, ecn: Ecn) -> Message {
        self.parts.arrival.ecn = Some(ecn);
        self
    }

    /// The largest number of datagrams of a message with a segment size: `UDP_MAX_SEGMENTS`, which
    /// is 128 since Linux 6.9.
    pub const SEGMENTS_MAX: usize = 64;

    /// Makes the kernel divide the message into datagrams of so many bytes; the last one may be
    /// shorter. It is `UDP_SEGMENT` of udp(7), generic segmentation offload (GSO): one call sends up
    /// to [`Message::SEGMENTS_MAX`] datagrams, and a capable network device does the work. Linux
    /// 4.18.
    ///
    /// The message has at most 65,507 bytes in all, and its datagrams fit into the MTU; otherwise
    /// the kernel refuses it with `EMSGSIZE` or `EINVAL`. It refuses it with `EIO` if the way to the
    /// destination has no checksum offload or is an IPsec tunnel: then send the datagrams one by
    /// one. A message that fits into one datagram is sent as one without the option.
    ///
    /// ```
    /// use megapipe::{Channel, Message};
    /// use std::net::UdpSocket;
    ///
    /// let mut channel = Channel::new()?;
    /// let sender = channel.register(UdpSocket::bind("127.0.0.1:0")?, ())?;
    /// let receiver = UdpSocket::bind("127.0.0.1:0")?;
    /// let message = Message::new("one two three").to(receiver.local_addr()?);
    /// channel.send_message(sender, message.with_segment_size(4))?;
    /// channel.flush()?;
    /// for expected in ["one ", "two ", "thre", "e"] {
    ///     let mut found = [0; 9];
    ///     let bytes = receiver.recv(&mut found)?;
    ///     assert_eq!(&found[..bytes], expected.as_bytes());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_segment_size(mut self, bytes: u16) -> Message {
        self.parts.arrival.segment_size = Some(bytes);
        self
    }

    /// Creates an answer to this message: to its sender and, if its packet information is known
    /// ([`Channel::enable_packet_info`]), from the address to which this message was sent. The
    /// routes determine the interface. It has no ECN mark and no segment size.
    ///
    /// [`Channel::enable_packet_info`]: crate::Channel::enable_packet_info
    ///
    /// ```
    /// use megapipe::{Channel, Event, Message};
    /// use std::net::UdpSocket;
    ///
    /// let mut channel = Channel::new()?;
    /// let socket = UdpSocket::bind("0.0.0.0:0")?;
    /// let port = socket.local_addr()?.port();
    /// let server = channel.register(socket, ())?;
    /// channel.enable_packet_info(server)?;
    /// let client = UdpSocket::bind("127.0.0.1:0")?;
    /// client.send_to(b"ping", ("127.0.0.2", port))?;
    /// channel.receive_message(server, Message::with_capacity(1500))?;
    /// let done = channel.dispatch(None)?.expect("the datagram");
    /// let Event::ReceiveMessage(Ok(4), message) = done.event else { panic!() };
    /// channel.send_message(server, message.reply("pong"))?;
    /// channel.flush()?;
    /// let (_, from) = client.recv_from(&mut [0; 4])?;
    /// assert_eq!(from.ip().to_string(), "127.0.0.2");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reply(&self, bytes: impl Into<Buffer>) -> Message {
        let mut reply = Message::new(bytes);
        reply.parts.address.clone_from(&self.parts.address);
        reply.parts.arrival.packet_info =
            self.packet_info().map(|info| PacketInfo { interface: 0, ..info });
        reply
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.parts.buffer
    }

    /// Returns the bytes, to keep or to use their memory again.
    pub fn into_buffer(self) -> Buffer {
        self.parts.buffer
    }

    /// Returns the destination of the message, or the sender of a received datagram; `None` if the
    /// sender has no address, and for messages of a connection.
    pub fn address(&self) -> Option<&Address> {
        self.parts.address.as_ref()
    }

    /// Returns the address and the interface of this host on which a datagram arrived, on a socket
    /// with [`Channel::enable_packet_info`](crate::Channel::enable_packet_info).
    pub fn packet_info(&self) -> Option<PacketInfo> {
        self.parts.arrival.packet_info
    }

    /// Returns the ECN mark: of a datagram that arrived on a socket with
    /// [`Channel::enable_ecn`](crate::Channel::enable_ecn), or what [`Message::with_ecn`] set.
    pub fn ecn(&self) -> Option<Ecn> {
        self.parts.arrival.ecn
    }

    /// Returns the size of the datagrams of which the kernel made the message, on a socket with
    /// [`Channel::enable_gro`](crate::Channel::enable_gro), or what [`Message::with_segment_size`]
    /// set. All datagrams but the last have this size, and no bytes are between them. `None`: the
    /// message is one datagram.
    pub fn segment_size(&self) -> Option<u16> {
        self.parts.arrival.segment_size
    }

    /// Returns the descriptors, in the order in which they were sent. Descriptors that are not
    /// taken are closed with the message.
    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.parts.descriptors
    }

    /// Takes the descriptors.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.parts.descriptors)
    }
}
