//! Tests the work that devices leave to the kernel: checksums, and cutting long frames. Also tests
//! several queues.

use crate::pairs::{Pair, open_packet, open_tap, xdp_generic, xdp_native};
use mtcp::device::packet::{PacketDevice, PacketOptions};
use mtcp::device::tap::{TapDevice, TapOptions};
use mtcp::device::xdp::XdpPort;
use mtcp::device::{Device, Link, Received, Segmentation, Transmit};
use mtcp_proto::Sequence;
use mtcp_proto::wire::checksum;
use mtcp_proto::wire::ip::{Ecn, IpHeader};
use mtcp_proto::wire::tcp::{Flags, TcpHeader};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use testkit::Namespace;
use testkit::skip;

const HANG: Duration = Duration::from_secs(60);
const SEGMENT_BYTES: usize = 1000;

/// Builds a TCP segment in Ethernet whose checksum is partial, and the instructions for sending it.
fn segment(source: IpAddr, destination: IpAddr, data: &[u8]) -> (Vec<u8>, Transmit) {
    let ip = IpHeader { source, destination, protocol: 6, ecn: Ecn::NotCapable, hop_limit: 64 };
    let tcp = TcpHeader {
        source_port: 7,
        destination_port: 8,
        sequence: Sequence(1),
        flags: Flags::ACK,
        window: 1000,
        ..TcpHeader::default()
    };
    let kind: [u8; 2] = if source.is_ipv6() { [0x86, 0xdd] } else { [0x08, 0x00] };
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 9]].concat();
    frame.extend(kind);
    let start = frame.len() + ip.bytes();
    let header_bytes = start + tcp.bytes();
    frame.resize(header_bytes, 0);
    frame.extend(data);
    ip.write(frame.len() - start, &mut frame[14..]);
    tcp.write(&mut frame[start..]);
    checksum::fill_tcp_partial(source, destination, &mut frame[start..]);
    let segmentation = Segmentation {
        segment_bytes: SEGMENT_BYTES as u16,
        header_bytes: header_bytes as u16,
        ipv6: source.is_ipv6(),
    };
    let transmit = Transmit {
        bytes: frame.len(),
        partial_checksum: Some((start as u16, checksum::TCP_CHECKSUM_OFFSET as u16)),
        segmentation: (data.len() > SEGMENT_BYTES).then_some(segmentation),
    };
    (frame, transmit)
}

fn send(device: &mut dyn Device, frame: &[u8], transmit: Transmit) {
    device.room(frame.len()).unwrap().copy_from_slice(frame);
    device.commit(transmit);
    while device.flush().unwrap() {}
}

/// Receives TCP packets until this number of data bytes has arrived. Returns for each its data,
/// whether the device has verified the checksum, and whether it is correct.
fn receive(device: &mut dyn Device, bytes: usize) -> Vec<(Vec<u8>, bool, bool)> {
    let mut packets: Vec<(Vec<u8>, bool, bool)> = Vec::new();
    let begin = Instant::now();
    while packets.iter().map(|(data, ..)| data.len()).sum::<usize>() < bytes {
        let mut take = |frame: &[u8], received: Received| {
            let Ok((ip, segment)) = IpHeader::parse(&frame[14..]) else { return };
            let Ok((_, data)) = TcpHeader::parse(segment) else { return };
            let right = checksum::verify_tcp(ip.source, ip.destination, segment);
            packets.push((data.to_vec(), received.checksum_verified, right));
        };
        device.receive(64, &mut take).unwrap();
        assert!(begin.elapsed() < HANG, "{} packets came", packets.len());
    }
    packets
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

fn families() -> [(IpAddr, IpAddr); 2] {
    let parse = |one: &str, other: &str| (one.parse().unwrap(), other.parse().unwrap());
    [parse("10.9.0.2", "10.9.0.1"), parse("fd09::2", "fd09::1")]
}

/// Creates a TAP device, and a packet socket on the kernel's side of it.
fn pair(offload: bool) -> (Namespace, TapDevice, PacketDevice) {
    let namespace = Namespace::new();
    namespace.set("ipv6/conf/default/disable_ipv6", "1");
    let tap = open_tap(&namespace, &TapOptions { offload, ..TapOptions::default() });
    let interface = tap.name().to_owned();
    let options = PacketOptions { interface, ..PacketOptions::default() };
    let packet = open_packet(&namespace, &options);
    (namespace, tap, packet)
}

#[test]
fn long_frames_pass_in_one_piece_between_those_who_can() {
    let (_namespace, mut tap, mut packet) = pair(true);
    let data = pattern(60_000);
    for (source, destination) in families() {
        let (frame, transmit) = segment(source, destination, &data);
        send(&mut packet, &frame, transmit);
        let came = receive(&mut tap, data.len());
        assert!(came == [(data.clone(), true, false)], "{} packets from packet", came.len());
        send(&mut tap, &frame, transmit);
        let came = receive(&mut packet, data.len());
        assert!(came == [(data.clone(), true, false)], "{} packets from TAP", came.len());
    }
}

#[test]
fn the_kernel_cuts_and_sums_for_those_who_cannot() {
    let (_namespace, mut tap, mut packet) = pair(false);
    assert_eq!(tap.capabilities().segmentation_bytes, 0);
    for bytes in [10, 60_000] {
        let data = pattern(bytes);
        for (source, destination) in families() {
            let (frame, transmit) = segment(source, destination, &data);
            send(&mut packet, &frame, transmit);
            let came = receive(&mut tap, data.len());
            assert_eq!(came.len(), bytes.div_ceil(SEGMENT_BYTES));
            assert!(came.iter().all(|&(_, _, right)| right), "a wrong checksum");
            let whole: Vec<u8> = came.into_iter().flat_map(|(data, ..)| data).collect();
            assert!(whole == data, "the data differ");
        }
    }
}

#[test]
fn a_packet_socket_without_offload_leaves_nothing_to_the_kernel() {
    let namespace = Namespace::new();
    namespace.set("ipv6/conf/default/disable_ipv6", "1");
    namespace.join("left0", &namespace, "right0");
    for offload in [true, false] {
        let interface = "left0".to_owned();
        let options = PacketOptions { interface, offload, ..PacketOptions::default() };
        let capabilities = open_packet(&namespace, &options).capabilities();
        let left = (capabilities.transmit_checksum, capabilities.segmentation_bytes > 0);
        assert_eq!(left, (offload, offload), "offload {offload}");
    }
}

#[test]
fn a_frame_beyond_the_mtu_that_is_not_to_be_cut_is_refused() {
    let (_namespace, mut tap, mut packet) = pair(true);
    let frame = vec![0xff; 1600];
    let plain = Transmit { bytes: frame.len(), ..Transmit::default() };
    for device in [&mut tap as &mut dyn Device, &mut packet] {
        send(device, &frame, plain);
        let counters = device.counters();
        assert_eq!((counters.frames_sent, counters.transmit_drops), (0, 1));
    }
}

/// Whether AF_XDP supports frames in several buffers; if not, prints that the test skips this part.
fn takes_long_frames(test: &str) -> bool {
    let takes = XdpPort::takes_long_frames().expect("an AF_XDP socket");
    if !takes {
        skip(test, "this kernel gives a frame of AF_XDP one buffer (several from Linux 6.6 on)");
    }
    takes
}

#[test]
fn long_frames_pass_between_two_sockets_of_af_xdp() {
    if !takes_long_frames("long frames between two sockets of AF_XDP") {
        return;
    }
    let Pair { mut left, mut right, vanish: _ends, .. } = xdp_generic();
    // A frame that is cut although it fits into a frame of the UMEM, and one that does not fit.
    for bytes in [2_500, 60_000] {
        let data = pattern(bytes);
        for (source, destination) in families() {
            let (frame, transmit) = segment(source, destination, &data);
            send(&mut *left, &frame, transmit);
            let came = receive(&mut *right, bytes);
            assert!(came == [(data.clone(), true, false)], "{} packets of {bytes}", came.len());
        }
    }
    let (counters, came) = (left.counters(), right.counters());
    assert_eq!((counters.frames_sent, counters.transmit_drops), (4, 0));
    assert_eq!((came.frames_received, came.receive_drops), (4, 0));
}

/// The data of one call must still be in the cache when the application reads it.
#[test]
fn long_frames_are_taken_a_few_at_a_time() {
    const FRAMES: usize = 20;
    let data = pattern(60_000);
    let (source, destination) = families()[0];
    let (frame, transmit) = segment(source, destination, &data);
    let all_at_once = |from: &mut dyn Device, to: &mut dyn Device| {
        for _ in 0..FRAMES {
            send(from, &frame, transmit);
        }
        let (mut came, mut calls) = (0, 0);
        let begin = Instant::now();
        while came < FRAMES {
            let taken = to.receive(64, &mut |taken, _| assert!(taken == frame)).unwrap();
            assert!(taken <= 5, "{taken} frames in one call");
            came += taken;
            calls += usize::from(taken > 0);
            assert!(begin.elapsed() < HANG, "{came} of {FRAMES} came");
        }
        assert!(calls >= FRAMES / 5);
        assert_eq!(to.counters().receive_drops, 0);
    };
    if takes_long_frames("a few long frames of AF_XDP at a time") {
        let Pair { mut left, mut right, vanish: _ends, .. } = xdp_generic();
        all_at_once(&mut *left, &mut *right);
    }
    let (_namespace, mut tap, mut packet) = pair(true);
    all_at_once(&mut packet, &mut tap);
}

#[test]
fn a_native_program_gets_long_frames_cut() {
    let Pair { mut left, mut right, vanish: _ends, .. } = xdp_native();
    let data = pattern(60_000);
    for (source, destination) in families() {
        let (frame, transmit) = segment(source, destination, &data);
        send(&mut *left, &frame, transmit);
        let came = receive(&mut *right, data.len());
        assert_eq!(came.len(), data.len().div_ceil(SEGMENT_BYTES));
        assert!(came.iter().all(|&(_, verified, right)| verified || right), "a wrong checksum");
        let whole: Vec<u8> = came.into_iter().flat_map(|(data, ..)| data).collect();
        assert!(whole == data, "the data differ");
    }
}

#[test]
fn frames_of_all_lengths_leave_af_xdp_in_order() {
    let whole = takes_long_frames("long frames of AF_XDP that come whole");
    let Pair { mut left, mut right, vanish: _ends, .. } =
        if whole { xdp_generic() } else { xdp_native() };
    let (source, destination) = families()[0];
    for round in 1..=20_usize {
        let mut sent = Vec::new();
        for bytes in [10 + round, 20_000 * (round % 4), 900, 2_000 + round, 1_400 / round] {
            let data = &pattern(bytes + round)[round..];
            let (mut frame, mut transmit) = segment(source, destination, data);
            if !left.capabilities().transmit_checksum && transmit.segmentation.is_none() {
                let start = transmit.partial_checksum.take().map_or(0, |(start, _)| start.into());
                checksum::fill_tcp(source, destination, &mut frame[start..]);
            }
            left.room(frame.len()).unwrap().copy_from_slice(&frame);
            left.commit(transmit);
            sent.extend_from_slice(data);
        }
        while left.flush().unwrap() {}
        // Cut into segments, all rounds would not fit into the veth's ring of 256 frames.
        let came = receive(&mut *right, sent.len());
        let whole: Vec<u8> = came.into_iter().flat_map(|(data, ..)| data).collect();
        assert!(whole == sent, "round {round}: the frames came in another order");
    }
}

#[test]
fn long_frames_of_af_xdp_that_are_not_to_be_cut_are_refused() {
    let Pair { mut left, vanish: _ends, .. } = xdp_generic();
    for bytes in [1600, 5000] {
        send(&mut *left, &vec![0xff; bytes], Transmit { bytes, ..Transmit::default() });
    }
    let (frame, transmit) = segment(families()[0].0, families()[0].1, &pattern(5000));
    let outside = Transmit { partial_checksum: Some((5_100, 16)), ..transmit };
    send(&mut *left, &frame, outside);
    assert!(left.room(70_000).is_none(), "longer than any frame");
    let counters = left.counters();
    assert_eq!((counters.frames_sent, counters.transmit_drops), (0, 3));
}

#[test]
fn several_queues_share_what_comes() {
    let namespace = Namespace::new();
    namespace.set("ipv6/conf/default/disable_ipv6", "1");
    namespace.join("left0", &namespace, "right0");
    let options = |interface: &str, queues| PacketOptions {
        interface: interface.to_owned(),
        queues,
        ..PacketOptions::default()
    };
    let mut sender = open_packet(&namespace, &options("left0", 1));
    let mut queues =
        namespace.run(|| PacketDevice::open(&options("right0", 4))).expect("four queues");
    const FLOWS: u8 = 100;
    for last in 0..FLOWS {
        for _ in 0..3 {
            let source = [10, 9, 1, last].into();
            let (frame, transmit) = segment(source, [10, 9, 0, 1].into(), &[last]);
            send(&mut sender, &frame, transmit);
        }
    }
    let mut seen = Vec::new();
    let begin = Instant::now();
    while seen.len() < 3 * usize::from(FLOWS) {
        for (number, queue) in queues.iter_mut().enumerate() {
            let take = &mut |frame: &[u8], _: Received| seen.push((frame[29], number));
            queue.receive(64, take).unwrap();
        }
        assert!(begin.elapsed() < HANG, "{} frames came", seen.len());
    }
    assert_eq!(seen.len(), 3 * usize::from(FLOWS), "each comes once");
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), usize::from(FLOWS), "a flow has one queue");
    let used: std::collections::BTreeSet<usize> = seen.iter().map(|&(_, queue)| queue).collect();
    assert!(used.len() > 1, "only one queue was used");
}

#[test]
fn a_tap_device_has_several_queues() {
    let namespace = Namespace::new();
    let options = TapOptions { queues: 3, link: Link::Ip, ..TapOptions::default() };
    let devices = namespace.run(|| TapDevice::open(&options)).unwrap();
    assert_eq!(devices.len(), 3);
    assert!(devices.iter().all(|device| device.name() == devices[0].name()));
    let name = devices[0].name().to_owned();
    namespace.ip(&format!("link show {name}"));
    drop(devices);
    let gone = namespace.run(|| std::path::Path::new(&format!("/sys/class/net/{name}")).exists());
    assert!(!gone, "the interface outlives its device");
}
