//! Tests full rings in both directions, and the number of system calls for them.

use super::frames::{datagram, make_partial, queue, wait_for};
use super::veth_pair::{OURS, OWNED, THEIRS, TIME_LIMIT, VethPair, kernel};
use super::{open, small};
use mtcp::device::Device;
use mtcp::device::xdp::{AttachMode, Claim};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use testkit::retried;
use testkit::skip;

const TRANSMIT_FRAMES: u32 = 64;

/// Creates a socket of the other kernel with room for everything that a test sends.
fn receiver_with_time_limit(veth_pair: &VethPair, address: IpAddr) -> UdpSocket {
    let bind = || UdpSocket::bind(SocketAddr::new(address, 0)).expect("a port");
    let socket = veth_pair.theirs.run(bind);
    socket.set_read_timeout(Some(TIME_LIMIT)).expect("a limit");
    socket
}

#[test]
fn a_full_device_says_so_and_sends_all_at_once() {
    for attach in [AttachMode::Native, AttachMode::Generic] {
        for (ours, theirs) in OURS.into_iter().zip(THEIRS) {
            let veth_pair = VethPair::new(1);
            let mut port = open(&veth_pair, &small(attach));
            let device = &mut port.devices[0];
            let sums = device.capabilities().transmit_checksum;
            if !sums {
                assert!(kernel() < (6, 11), "the kernel completes checksums from 6.11 on");
                skip("checksums left to the kernel by AF_XDP", "it completes them from 6.11 on");
            }
            assert_eq!(device.capabilities().mtu, 1500);
            let socket = receiver_with_time_limit(&veth_pair, theirs);
            let to = socket.local_addr().expect("an address");
            let from = SocketAddr::new(ours, 4000);
            let mut number = 0_u32;
            for _round in 0..8 {
                let first = number;
                let calls = device.counters().system_calls;
                loop {
                    let mut frame = datagram(from, to, &number.to_be_bytes());
                    let place = (sums && number % 2 == 1).then(|| make_partial(&mut frame));
                    if !queue(device, &frame, place) {
                        break;
                    }
                    number += 1;
                }
                assert_eq!(number - first, TRANSMIT_FRAMES);
                while device.flush().expect("the interface is there") {}
                let calls = device.counters().system_calls - calls;
                // Kernels send at least this number of frames in a call, and 5.10 no more.
                let most = u64::from(TRANSMIT_FRAMES / 16) + 1;
                assert!((1..=most).contains(&calls), "{calls} calls");
                for expected in first..number {
                    let mut heard = [0; 8];
                    let length = retried(|| socket.recv(&mut heard)).expect("it arrives");
                    assert_eq!(heard[..length], expected.to_be_bytes());
                }
            }
            let counters = device.counters();
            assert_eq!(counters.frames_sent, u64::from(number));
            assert_eq!(counters.transmit_full, 8);
            assert_eq!(counters.transmit_drops, 0);
        }
    }
}

#[test]
fn frames_that_cannot_be_sent_are_dropped_and_counted() {
    let veth_pair = VethPair::new(1);
    let mut port = open(&veth_pair, &small(AttachMode::Auto));
    let device = &mut port.devices[0];
    assert!(device.room(5000).is_none(), "longer than a frame");
    let socket = receiver_with_time_limit(&veth_pair, THEIRS[0]);
    let to = socket.local_addr().expect("an address");
    let frame = datagram(SocketAddr::new(OURS[0], 4000), to, b"sound");
    // Frames without room, too short, and with a checksum offset outside of the frame.
    device.commit(mtcp::device::Transmit { bytes: 60, ..Default::default() });
    assert!(queue(device, &frame[..13], None));
    assert!(queue(device, &frame, Some((40, 60))));
    assert!(queue(device, &frame, None));
    assert!(!device.flush().expect("the interface is there"));
    assert_eq!(retried(|| socket.recv(&mut [0; 8])).expect("the sound one arrives"), 5);
    let counters = device.counters();
    assert_eq!((counters.frames_sent, counters.transmit_drops), (1, 3));
}

#[test]
fn a_full_receive_ring_drops_counts_and_recovers() {
    const SENT: u64 = 1000;
    for attach in [AttachMode::Native, AttachMode::Generic] {
        let veth_pair = VethPair::new(1);
        let mut port = open(&veth_pair, &small(attach));
        port.ownership.claim(&Claim::Address(OWNED[0])).expect("there is room");
        veth_pair.theirs.ip("neigh replace 10.0.0.3 lladdr 02:00:00:00:00:01 dev theirs");
        let device = &mut port.devices[0];
        let socket = receiver_with_time_limit(&veth_pair, THEIRS[0]);
        let to = SocketAddr::new(OWNED[0], 9);
        for _ in 0..SENT {
            socket.send_to(b"flood", to).expect("it is sent");
        }
        // A frame sent after the flood marks its end.
        let mut came = 0;
        let mut rounds = 0;
        loop {
            socket.send_to(b"last", to).expect("it is sent");
            let last = wait_for(device, "a frame", |frame, _| {
                came += u64::from(frame.ends_with(b"flood"));
                Some(frame.ends_with(b"last"))
            });
            rounds += 1;
            if last {
                break;
            }
            assert!(rounds < SENT * 2);
        }
        assert!((1..=128).contains(&came), "no more than the ring holds: {came}");
        assert!(device.counters().receive_drops > 0);
        for number in 0..1000_u32 {
            socket.send_to(&number.to_be_bytes(), to).expect("it is sent");
            let expected = number.to_be_bytes();
            wait_for(device, "a frame after the flood", |frame, _| {
                frame.ends_with(&expected).then_some(())
            });
        }
    }
}
