//! Builds frames, and waits for them.

use super::veth_pair::{OUR_MAC, OURS, THEIR_MAC, THEIRS, TIME_LIMIT};
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use mtcp::device::xdp::XdpDevice;
use mtcp::device::{Device, Received, Transmit};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Instant;

/// The fields of a TCP segment that tests check.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) sequence: u32,
    pub(crate) syn: bool,
    pub(crate) payload: Vec<u8>,
    pub(crate) frame_bytes: usize,
    pub(crate) checksum_verified: bool,
}

/// Parses the TCP segment in a frame, if there is one.
pub(crate) fn segment(frame: &[u8], received: Received) -> Option<Segment> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let (source, destination) = match packet.net? {
        NetSlice::Ipv4(ip) => {
            (IpAddr::V4(ip.header().source_addr()), IpAddr::V4(ip.header().destination_addr()))
        }
        NetSlice::Ipv6(ip) => {
            (IpAddr::V6(ip.header().source_addr()), IpAddr::V6(ip.header().destination_addr()))
        }
        NetSlice::Arp(_) => return None,
    };
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return None };
    Some(Segment {
        source: SocketAddr::new(source, tcp.source_port()),
        destination: SocketAddr::new(destination, tcp.destination_port()),
        sequence: tcp.sequence_number(),
        syn: tcp.syn(),
        payload: tcp.payload().to_vec(),
        frame_bytes: frame.len(),
        checksum_verified: received.checksum_verified,
    })
}

macro_rules! from_us {
    ($from:expr, $to:expr) => {
        match ($from.ip(), $to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                PacketBuilder::ethernet2(OUR_MAC, THEIR_MAC).ipv4(from.octets(), to.octets(), 64)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                PacketBuilder::ethernet2(OUR_MAC, THEIR_MAC).ipv6(from.octets(), to.octets(), 64)
            }
            _ => panic!("one family"),
        }
    };
}

/// Builds a datagram with its complete checksum.
pub(crate) fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = from_us!(from, to).udp(from.port(), to.port());
    builder.write(&mut frame, payload).expect("memory");
    frame
}

/// Builds a reset that answers a SYN, with its complete checksum.
pub(crate) fn refusal(of: &Segment) -> Vec<u8> {
    let (from, to) = (of.destination, of.source);
    let builder = from_us!(from, to).tcp(from.port(), to.port(), 0, 0).rst();
    let mut frame = Vec::new();
    builder.ack(of.sequence.wrapping_add(1)).write(&mut frame, &[]).expect("memory");
    frame
}

/// Builds a SYN from the other side's address to ours, with its complete checksum.
pub(crate) fn syn_from_them(port: u16) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (THEIRS[0], OURS[0]) else { panic!("IPv4 is first") };
    let builder = PacketBuilder::ethernet2(THEIR_MAC, OUR_MAC);
    let builder = builder.ipv4(from.octets(), to.octets(), 64).tcp(999, port, 0, 1000).syn();
    let mut frame = Vec::new();
    builder.write(&mut frame, &[]).expect("memory");
    frame
}

/// Builds an acknowledgement; with a largest segment, it answers a SYN.
pub(crate) fn acknowledgement(
    of: &Segment,
    sequence: u32,
    number: u32,
    segment_bytes: Option<u16>,
) -> Vec<u8> {
    use etherparse::TcpOptionElement::{MaximumSegmentSize, Noop, WindowScale};
    let (from, to) = (of.destination, of.source);
    let builder = from_us!(from, to).tcp(from.port(), to.port(), sequence, 60_000).ack(number);
    let mut frame = Vec::new();
    if let Some(segment_bytes) = segment_bytes {
        let options = [MaximumSegmentSize(segment_bytes), Noop, WindowScale(8)];
        let builder = builder.syn().options(&options).expect("there is room");
        builder.write(&mut frame, &[]).expect("memory");
    } else {
        builder.write(&mut frame, &[]).expect("memory");
    }
    frame
}

/// Replaces the transport checksum by the sum of the pseudo-header; returns the offsets for its
/// completion.
pub(crate) fn make_partial(frame: &mut [u8]) -> (u16, u16) {
    let ipv4 = frame[12] == 0x08;
    let (addresses, protocol, start) = if ipv4 { (26..34, 23, 34) } else { (22..54, 20, 54) };
    let offset = if frame[protocol] == 6 { 16 } else { 6 };
    let words = frame[addresses].chunks(2);
    let mut sum: u32 = words.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    sum += u32::from(frame[protocol]) + (frame.len() - start) as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[start + offset..start + offset + 2].copy_from_slice(&(sum as u16).to_be_bytes());
    (start as u16, offset as u16)
}

/// Queues a frame; false if the device is full.
pub(crate) fn queue(device: &mut XdpDevice, frame: &[u8], partial: Option<(u16, u16)>) -> bool {
    let Some(room) = device.room(frame.len()) else { return false };
    room[..frame.len()].copy_from_slice(frame);
    let (bytes, partial_checksum) = (frame.len(), partial);
    device.commit(Transmit { bytes, partial_checksum, segmentation: None });
    true
}

/// Sends a frame. If `partial` and the kernel supports it (from Linux 6.11 on), the kernel
/// completes its checksum.
pub(crate) fn send(device: &mut XdpDevice, mut frame: Vec<u8>, partial: bool) {
    let partial = partial && device.capabilities().transmit_checksum;
    let place = partial.then(|| make_partial(&mut frame));
    assert!(queue(device, &frame, place), "there is room");
    assert!(!device.flush().expect("the interface is there"), "it is taken at once");
}

/// Receives, sleeping in between, until `look` accepts a frame.
pub(crate) fn wait_for<T>(
    device: &mut XdpDevice,
    what: &str,
    mut look: impl FnMut(&[u8], Received) -> Option<T>,
) -> T {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        let mut found = None;
        let mut take = |frame: &[u8], received| {
            if found.is_none() {
                found = look(frame, received);
            }
        };
        // One at a time, so that no frame after the accepted one is lost.
        let count = device.receive(1, &mut take).expect("the interface is there");
        if let Some(found) = found {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came: {what}");
        if count == 0 && device.prepare_to_sleep() {
            sleep(device);
        }
    }
}

/// Waits for the next TCP segment.
pub(crate) fn next_segment(device: &mut XdpDevice) -> Segment {
    wait_for(device, "a TCP segment", segment)
}

/// Sleeps until the device is readable, with a time-out.
pub(crate) fn sleep(device: &XdpDevice) {
    let fd = device.descriptor().as_raw_fd();
    let mut wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one initialised entry.
    let ready = unsafe { libc::poll(&raw mut wait, 1, TIME_LIMIT.as_millis() as libc::c_int) };
    assert_eq!(ready, 1, "the device becomes readable");
}
