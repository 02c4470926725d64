//! Simulates a host on the kernel's side with handwritten segments, from addresses that no host
//! has.

use crate::site::{OURS, PORT, Site, THEIR_INTERFACE, THEIRS, TIME_LIMIT};
use mtcp::Config;
use mtcp::device::Device;
use mtcp::device::packet::{PacketDevice, PacketOptions};
use mtcp::network::Route;
use mtcp_proto::Sequence;
use mtcp_proto::wire::checksum;
use mtcp_proto::wire::ethernet::EthernetHeader;
use mtcp_proto::wire::ip::{Ecn, IpHeader};
use mtcp_proto::wire::tcp::{Flags, Options, TcpHeader};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

const PROTOCOL_TCP: u8 = 6;
/// RFC 2544's network for benchmarks, from which the attacks come.
const NOBODY: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);

/// Routes answers to [`stranger`]s to the kernel's side, which ignores them.
pub(crate) fn with_strangers(mut config: Config) -> Config {
    config.routes.push(Route {
        prefix: NOBODY.0.into(),
        length: NOBODY.1,
        gateway: Some(THEIRS[0]),
        metric: 0,
    });
    config
}

/// One of 131,072 addresses of that network.
pub(crate) fn stranger(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(NOBODY.0.to_bits() | (number & 0x1_ffff))
}

/// Sends segments from any address.
pub(crate) struct Sender(Socket);

impl Sender {
    pub(crate) fn new(site: &Site) -> Sender {
        let raw = Some(Protocol::from(libc::IPPROTO_RAW));
        Sender(site.theirs.run(|| Socket::new(Domain::IPV4, Type::RAW, raw)).expect("root"))
    }

    pub(crate) fn send(&self, source: IpAddr, header: &TcpHeader, data: &[u8]) {
        let (destination, protocol) = (OURS[0], PROTOCOL_TCP);
        let ip = IpHeader { source, destination, protocol, ecn: Ecn::NotCapable, hop_limit: 64 };
        let mut packet = vec![0; ip.bytes() + header.bytes() + data.len()];
        ip.write(header.bytes() + data.len(), &mut packet);
        let segment = &mut packet[ip.bytes()..];
        header.write(segment);
        segment[header.bytes()..].copy_from_slice(data);
        checksum::fill_tcp(source, destination, segment);
        let to = SocketAddr::new(destination, 0);
        let begin = Instant::now();
        while let Err(error) = self.0.send_to(&packet, &to.into()) {
            let full = error.raw_os_error() == Some(libc::ENOBUFS);
            assert!(full && begin.elapsed() < TIME_LIMIT, "to send: {error}");
            thread::yield_now();
        }
    }
}

/// A segment of the stack, as the other side sees it.
pub(crate) type Seen = (TcpHeader, Vec<u8>);

/// Receives the packets that the stack sends to one address.
pub(crate) struct Sniffer {
    device: PacketDevice,
    seen: VecDeque<Seen>,
}

impl Sniffer {
    pub(crate) fn new(site: &Site, address: IpAddr) -> Sniffer {
        let options = PacketOptions {
            interface: THEIR_INTERFACE.to_owned(),
            addresses: vec![address],
            ..PacketOptions::default()
        };
        let devices = site.theirs.run(|| PacketDevice::open(&options));
        Sniffer { device: devices.expect("a packet socket").remove(0), seen: VecDeque::new() }
    }

    /// The next segment to this port, if one arrives in time.
    pub(crate) fn next(&mut self, port: u16, within: Duration) -> Option<Seen> {
        let begin = Instant::now();
        loop {
            while let Some(segment) = self.seen.pop_front() {
                if segment.0.destination_port == port {
                    return Some(segment);
                }
            }
            let seen = &mut self.seen;
            let take = &mut |frame: &[u8], _| seen.extend(parse(frame));
            let count = self.device.receive(64, take).expect("the device is there");
            if count == 0 {
                if begin.elapsed() > within {
                    return None;
                }
                thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

fn parse(frame: &[u8]) -> Option<Seen> {
    let (_, packet) = EthernetHeader::parse(frame).ok()?;
    let (ip, segment) = IpHeader::parse(packet).ok()?;
    if ip.protocol != PROTOCOL_TCP || ip.source != OURS[0] {
        return None;
    }
    let (header, data) = TcpHeader::parse(segment).ok()?;
    Some((header, data.to_vec()))
}

/// A connection to our server with handwritten segments.
pub(crate) struct Peer {
    pub(crate) sender: Sender,
    sniffer: Sniffer,
    address: IpAddr,
    port: u16,
    /// The number of the peer's first data byte.
    pub(crate) first: Sequence,
    /// The data received in order.
    pub(crate) received: Vec<u8>,
    their_first: Sequence,
    pub(crate) window: u16,
    /// The widest window so far: data that was sent within it may still be in flight.
    widest: u16,
    pub(crate) has_ended: bool,
}

impl Peer {
    pub(crate) fn connect(site: &Site, number: u16, window: u16) -> Peer {
        let address = IpAddr::V4(stranger(number.into()));
        let (sender, sniffer) = (Sender::new(site), Sniffer::new(site, address));
        let first = Sequence(u32::MAX - 50);
        let mut peer = Peer {
            sender,
            sniffer,
            address,
            port: 1024 + number,
            first: first + 1,
            received: Vec::new(),
            their_first: Sequence(0),
            window,
            widest: window,
            has_ended: false,
        };
        let options = Options { maximum_segment: Some(1460), ..Options::default() };
        let syn = TcpHeader { sequence: first, flags: Flags::SYN, options, ..peer.header() };
        let begin = Instant::now();
        let answer = loop {
            peer.sender.send(address, &syn, &[]);
            if let Some(answer) = peer.sniffer.next(peer.port, Duration::from_secs(1)) {
                break answer.0;
            }
            assert!(begin.elapsed() < TIME_LIMIT, "no answer");
        };
        assert!(answer.flags.contains(Flags::SYN.with(Flags::ACK)), "{answer:?}");
        assert_eq!(answer.acknowledgement, peer.first);
        peer.their_first = answer.sequence + 1;
        peer.acknowledge(0);
        peer
    }

    /// The header of an acknowledgement of all received data.
    pub(crate) fn header(&self) -> TcpHeader {
        TcpHeader {
            source_port: self.port,
            destination_port: PORT,
            sequence: self.first,
            acknowledgement: self.their_next(),
            flags: Flags::ACK,
            window: self.window,
            ..TcpHeader::default()
        }
    }

    pub(crate) fn their_next(&self) -> Sequence {
        self.their_first + self.received.len() as u32 + u32::from(self.has_ended)
    }

    /// Sends data at a position of the peer's stream.
    pub(crate) fn send(&self, at: usize, data: &[u8]) {
        let header = TcpHeader { sequence: self.first + at as u32, ..self.header() };
        self.sender.send(self.address, &header, data);
    }

    pub(crate) fn send_header(&self, header: &TcpHeader) {
        self.sender.send(self.address, header, &[]);
    }

    /// Acknowledges the received data, after `sent` bytes of the peer's stream.
    pub(crate) fn acknowledge(&self, sent: usize) {
        self.send(sent, &[]);
    }

    /// Processes one segment, if it arrives in time and is the next in order.
    pub(crate) fn receive(&mut self, within: Duration) -> Option<TcpHeader> {
        let (header, data) = self.sniffer.next(self.port, within)?;
        assert!(!header.flags.intersects(Flags::RST), "a reset: {header:?}");
        self.widest = self.widest.max(self.window);
        let most = usize::from(self.widest);
        assert!(data.len() <= most, "{} bytes into a window of {most}", data.len());
        let ahead = self.their_next().distance(header.sequence);
        let is_next = ahead >= 0 && ahead as usize <= data.len() && !self.has_ended;
        if is_next && (self.window > 0 || data.is_empty()) {
            self.received.extend_from_slice(&data[ahead as usize..]);
            self.has_ended = header.flags.intersects(Flags::FIN);
        }
        Some(header)
    }
}
