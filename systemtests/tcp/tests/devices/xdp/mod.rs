//! Tests AF_XDP over a veth, with kernels at both ends: claimed packets arrive here, and all others
//! stay with the kernel.

mod frames;
mod lifetime;
mod load;
mod veth_pair;

use frames::{next_segment, refusal, segment, send, wait_for};
use mtcp::device::Device;
use mtcp::device::xdp::{AttachMode, Attachment, Claim, CopyMode, XdpError, XdpOptions, XdpPort};
use socket2::{Domain, Socket, Type};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Instant;
use testkit::retried;
use testkit::skip;
use veth_pair::{INTERFACE, OURS, OWNED, THEIRS, TIME_LIMIT, VethPair, connect, tells_queues};

const BOTH_MODES: [AttachMode; 2] = [AttachMode::Native, AttachMode::Generic];
const PORT: u16 = 80;
const KERNELS_PORT: u16 = 81;

/// Options with few frames and no offloads.
fn small(attach: AttachMode) -> XdpOptions {
    XdpOptions {
        attach,
        receive_frames: 128,
        transmit_frames: 64,
        transmit_segmentation: false,
        ..XdpOptions::default()
    }
}

fn open(veth_pair: &VethPair, options: &XdpOptions) -> XdpPort {
    veth_pair.ours.run(|| XdpPort::open(INTERFACE, 1, options).expect("the port opens"))
}

/// Makes the other kernel connect to a claimed port. It receives only our resets; returns their
/// number.
fn refuse(veth_pair: &VethPair, port: &mut XdpPort, to: SocketAddr, partial: bool) -> u64 {
    let device = &mut port.devices[0];
    thread::scope(|scope| {
        let client = scope.spawn(|| veth_pair.theirs.run(|| connect(to)));
        let (mut next, mut resets, mut has_come) = (Some(next_segment(device)), 0, false);
        loop {
            // A SYN that has waited for a second is repeated, and the next client may receive the
            // repetition.
            if let Some(syn) = next.take() {
                assert!(syn.syn && syn.payload.is_empty());
                assert!(THEIRS.contains(&syn.source.ip()));
                assert!(syn.checksum_verified, "the other kernel has left the checksum partial");
                has_come |= syn.destination == to;
                send(device, refusal(&syn), partial);
                resets += 1;
            } else if client.is_finished() {
                break;
            }
            let mut take = |frame: &[u8], received| next = segment(frame, received);
            device.receive(1, &mut take).expect("the interface is there");
            thread::yield_now();
        }
        assert!(has_come, "no SYN for {to}");
        let error = client.join().expect("no panic").expect_err("nobody has accepted");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        resets
    })
}

#[test]
fn claimed_ports_are_ours_and_the_rest_stays_with_the_kernel() {
    for mode in BOTH_MODES {
        let veth_pair = VethPair::new(1);
        let mut port = open(&veth_pair, &small(mode));
        let native = *port.ownership.attachment() == Attachment::Native;
        assert_eq!(native, mode == AttachMode::Native);
        assert!(!port.devices[0].is_zero_copy());
        veth_pair.assert_kernels_talk(KERNELS_PORT);
        for address in OURS {
            port.ownership.claim(&Claim::Ports(address, PORT..=PORT)).expect("there is room");
        }
        let mut resets = 0;
        for address in OURS {
            for partial in [false, true] {
                resets += refuse(&veth_pair, &mut port, SocketAddr::new(address, PORT), partial);
            }
        }
        veth_pair.assert_kernels_talk(KERNELS_PORT);
        assert_eq!(port.devices[0].counters().frames_sent, resets);

        // Released packets belong to the kernel again, and so do all packets when the ownership is
        // dropped.
        port.ownership.release(&Claim::Ports(OURS[0], PORT..=PORT)).expect("it is released");
        port.ownership.release(&Claim::Ports(OURS[0], PORT..=PORT)).expect("once more is fine");
        veth_pair.assert_kernels_talk_over(OURS[0], PORT);
        drop(port);
        veth_pair.assert_kernels_talk(PORT);
    }
}

#[test]
fn all_tcp_of_an_address_can_be_claimed() {
    let veth_pair = VethPair::new(1);
    let mut port = open(&veth_pair, &small(AttachMode::Auto));
    for address in OURS {
        port.ownership.claim(&Claim::Tcp(address)).expect("there is room");
        refuse(&veth_pair, &mut port, SocketAddr::new(address, PORT), true);
    }
    refuse(&veth_pair, &mut port, SocketAddr::new(OURS[0], KERNELS_PORT), false);
}

#[test]
fn a_whole_address_comes_with_arp_and_neighbour_discovery() {
    for mode in BOTH_MODES {
        let veth_pair = VethPair::new(1);
        let mut port = open(&veth_pair, &small(mode));
        for address in OWNED {
            port.ownership.claim(&Claim::Address(address)).expect("there is room");
        }
        let device = &mut port.devices[0];
        let ask = |to: IpAddr| {
            let socket = UdpSocket::bind(SocketAddr::new(
                if to.is_ipv4() { THEIRS[0] } else { THEIRS[1] },
                0,
            ));
            let socket = socket.expect("an address of theirs");
            socket.send_to(b"hello", SocketAddr::new(to, 9)).expect("it is sent");
            socket
        };
        let sockets = veth_pair.theirs.run(|| OWNED.map(ask));
        let mut arp = None;
        let mut solicited = false;
        wait_for(device, "ARP and a neighbour solicitation", |frame, _| {
            match frame[12..14] {
                [0x08, 0x06] => arp = Some(frame.to_vec()),
                [0x86, 0xdd] => solicited |= frame[20] == 58 && frame[54] == 135,
                _ => panic!("nobody knows where we are, but sends IPv4"),
            }
            (arp.is_some() && solicited).then_some(())
        });
        // They have asked for our hardware address (RFC 826): the datagram follows.
        let request = arp.expect("it was seen");
        let mut reply = request.clone();
        reply[..6].copy_from_slice(&request[6..12]);
        reply[6..12].copy_from_slice(&veth_pair::OUR_MAC);
        reply[21] = 2;
        reply[22..28].copy_from_slice(&veth_pair::OUR_MAC);
        reply[28..32].copy_from_slice(&request[38..42]);
        reply[32..42].copy_from_slice(&request[22..32]);
        send(device, reply, false);
        wait_for(device, "the datagram", |frame, _| frame.ends_with(b"hello").then_some(()));
        drop(sockets);
        veth_pair.assert_kernels_talk(KERNELS_PORT);
    }
}

#[test]
fn every_queue_has_a_device_over_one_umem() {
    const FLOWS: usize = 64;
    if !tells_queues("a device for every queue") {
        return;
    }
    for mode in BOTH_MODES {
        let veth_pair = VethPair::new(2);
        let options = small(mode);
        let error = veth_pair.ours.run(|| XdpPort::open(INTERFACE, 1, &options));
        let error = error.expect_err("a queue would be left to the kernel");
        assert!(matches!(error, XdpError::Queues { present: 2, asked: 1, .. }), "{error}");
        assert!(error.to_string().contains("ethtool -L ours combined 1"));

        let port = veth_pair.ours.run(|| XdpPort::open(INTERFACE, 2, &options).expect("it opens"));
        port.ownership.claim(&Claim::Address(OWNED[0])).expect("there is room");
        veth_pair.theirs.ip("neigh replace 10.0.0.3 lladdr 02:00:00:00:00:01 dev theirs");
        // The sender's kernel chooses a queue for each connection.
        let to = SocketAddr::new(OWNED[0], PORT);
        let clients: Vec<Socket> =
            veth_pair.theirs.run(|| (0..FLOWS).map(|_| begin_to_connect(to)).collect());
        let mut devices = port.devices;
        let mut came = [BTreeSet::new(), BTreeSet::new()];
        let deadline = Instant::now() + TIME_LIMIT;
        while came.iter().map(BTreeSet::len).sum::<usize>() < FLOWS {
            for (device, came) in devices.iter_mut().zip(&mut came) {
                let mut take = |frame: &[u8], received| {
                    came.insert(segment(frame, received).expect("a SYN").source);
                };
                device.receive(16, &mut take).expect("the interface is there");
            }
            assert!(Instant::now() < deadline, "{came:?} of {FLOWS} came");
        }
        // Only a native program on a veth sees the queue on which a frame arrived.
        let spread = came.iter().all(|came| !came.is_empty());
        assert_eq!(spread, mode == AttachMode::Native, "{came:?}");
        drop(clients);

        // Each device sends independently, from its own thread.
        let heard = veth_pair.theirs.run(|| UdpSocket::bind(SocketAddr::new(THEIRS[0], 0)));
        let heard = heard.expect("a port");
        heard.set_read_timeout(Some(TIME_LIMIT)).expect("a limit");
        let to = heard.local_addr().expect("an address");
        thread::scope(|scope| {
            for (index, device) in devices.iter_mut().enumerate() {
                let from = SocketAddr::new(OWNED[0], 1000 + index as u16);
                let frame = frames::datagram(from, to, &[index as u8]);
                scope.spawn(move || send(device, frame, index == 1));
            }
        });
        let mut senders = [0; 2].map(|_: u8| {
            let (_, from) = retried(|| heard.recv_from(&mut [0; 8])).expect("it arrives");
            from.port()
        });
        senders.sort_unstable();
        assert_eq!(senders, [1000, 1001]);
    }
}

fn begin_to_connect(to: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_nonblocking(true).expect("it is set");
    let error = socket.connect(&to.into()).expect_err("nobody has answered yet");
    assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
    socket
}

#[test]
fn frames_of_several_buffers_arrive_whole() {
    const BYTES: usize = 1 << 20;
    let data: Vec<u8> = (0..BYTES as u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    if !XdpPort::takes_long_frames().expect("a socket") {
        let veth_pair = VethPair::new(1);
        veth_pair.ours.ip(&format!("link set {INTERFACE} mtu 9000"));
        let port = veth_pair.ours.run(|| XdpPort::open(INTERFACE, 1, &XdpOptions::default()));
        let error = port.expect_err("its frames do not fit into one buffer");
        assert!(matches!(error, XdpError::LongFrames { frame: 9022, room: 3840, .. }), "{error}");
        return skip("frames of several buffers", "AF_XDP has them from Linux 6.6 on");
    }
    // A native program disables the sender's segmentation offload; a large MTU does not.
    for (mode, mtu, least) in
        [(AttachMode::Native, 9000, 8000), (AttachMode::Generic, 1500, 20_000)]
    {
        for address in OURS {
            let veth_pair = VethPair::new(1);
            for (side, interface) in [(&veth_pair.ours, INTERFACE), (&veth_pair.theirs, "theirs")] {
                side.ip(&format!("link set {interface} mtu {mtu}"));
            }
            let mut port = open(&veth_pair, &XdpOptions { attach: mode, ..XdpOptions::default() });
            port.ownership.claim(&Claim::Ports(address, PORT..=PORT)).expect("there is room");
            assert_eq!(port.devices[0].capabilities().mtu, mtu);
            let to = SocketAddr::new(address, PORT);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut client = veth_pair.theirs.run(|| connect(to)).expect("we answer");
                    client.write_all(&data).expect("it is sent");
                });
                let (received, longest) = receive_stream(&mut port, BYTES, mtu - 60);
                assert!(received == data, "every byte is as it was sent");
                assert!(longest > least, "{mode:?}: the longest frame had {longest} bytes");
            });
        }
    }
}

/// A minimal TCP receiver: takes data in order, and acknowledges it.
fn receive_stream(port: &mut XdpPort, bytes: usize, segment_bytes: u16) -> (Vec<u8>, usize) {
    let device = &mut port.devices[0];
    let syn = next_segment(device);
    let first = syn.sequence.wrapping_add(1);
    send(device, frames::acknowledgement(&syn, 1000, first, Some(segment_bytes)), true);
    let (mut data, mut longest) = (Vec::with_capacity(bytes), 0);
    while data.len() < bytes {
        let segment = next_segment(device);
        let expected = first.wrapping_add(data.len() as u32);
        if segment.sequence == expected {
            data.extend_from_slice(&segment.payload);
            longest = longest.max(segment.frame_bytes);
        }
        let next = first.wrapping_add(data.len() as u32);
        send(device, frames::acknowledgement(&segment, 1001, next, None), true);
    }
    (data, longest)
}

#[test]
fn a_cable_with_one_queue_keeps_long_frames_unless_told_otherwise() {
    let attachment = |queues: usize, attach| {
        let veth_pair = VethPair::new(queues);
        let options = small(attach);
        let port = veth_pair.ours.run(|| XdpPort::open(INTERFACE, queues, &options));
        let port = port.expect("the port opens");
        let mtu = port.devices[0].capabilities().mtu;
        assert_eq!((mtu, port.devices[0].capabilities().segmentation_bytes), (1500, 0));
        port.ownership.attachment().clone()
    };
    if XdpPort::takes_long_frames().expect("a socket") {
        let Attachment::Generic(Some(reason)) = attachment(1, AttachMode::Auto) else {
            panic!("a native program ends segmentation offload");
        };
        assert!(reason.contains("segmentation offload"), "{reason}");
    } else {
        assert_eq!(attachment(1, AttachMode::Auto), Attachment::Native, "they would be lost");
    }
    assert_eq!(attachment(1, AttachMode::Generic), Attachment::Generic(None));
    assert_eq!(attachment(1, AttachMode::Native), Attachment::Native);
    if !tells_queues("a cable with two queues") {
        return;
    }
    // Only a native program can distinguish queues.
    assert_eq!(attachment(2, AttachMode::Auto), Attachment::Native);
}

#[test]
fn only_partial_checksums_count_as_verified() {
    // Both ends are ours: a frame with a complete checksum might have come from anywhere.
    let veth_pair = VethPair::new(1);
    let mut port = open(&veth_pair, &small(AttachMode::Auto));
    port.ownership.claim(&Claim::Ports(OURS[0], PORT..=PORT)).expect("there is room");
    let mut peer = veth_pair.theirs.run(|| XdpPort::open("theirs", 1, &small(AttachMode::Auto)));
    let peer = peer.as_mut().expect("the port opens");
    for partial in [false, peer.devices[0].capabilities().transmit_checksum] {
        send(&mut peer.devices[0], frames::syn_from_them(PORT), partial);
        let syn = next_segment(&mut port.devices[0]);
        assert!(syn.syn);
        assert_eq!(syn.checksum_verified, partial);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let veth_pair = VethPair::new(1);
    let refuse = |interface: &str, options: &XdpOptions| {
        veth_pair.ours.run(|| XdpPort::open(interface, 1, options)).expect_err("it is refused")
    };
    let good = XdpOptions::default();
    assert!(matches!(refuse("nobody", &good), XdpError::NoInterface { .. }));
    assert!(matches!(refuse("a\0b", &good), XdpError::NoInterface { .. }));
    assert!(matches!(refuse("lo", &good), XdpError::NotEthernet { .. }));
    for bad in [
        XdpOptions { frame_bytes: 1024, ..good.clone() },
        XdpOptions { receive_frames: 100, ..good.clone() },
        XdpOptions { transmit_frames: 1 << 20, ..good.clone() },
        XdpOptions { max_claims: 0, ..good.clone() },
    ] {
        assert!(matches!(refuse(INTERFACE, &bad), XdpError::Option(_)));
    }
    // A veth cannot work without the copy.
    let error = refuse(INTERFACE, &XdpOptions { copy: CopyMode::ZeroCopy, ..good.clone() });
    assert!(error.to_string().contains("choose the copy mode `auto`"), "{error}");

    let port = open(&veth_pair, &XdpOptions { max_claims: 4, ..good });
    let claim = |claim: Claim| port.ownership.claim(&claim);
    assert!(matches!(claim(Claim::Ports(OURS[0], 0..=9)), Err(XdpError::Option(_))));
    let empty = std::ops::RangeInclusive::new(9, 1);
    assert!(matches!(claim(Claim::Ports(OURS[0], empty)), Err(XdpError::Option(_))));
    let error = claim(Claim::Ports(OURS[0], 1..=5)).expect_err("there is room for four");
    assert!(matches!(error, XdpError::TooManyClaims { .. }), "{error}");
    claim(Claim::Ports(OURS[0], 11..=14)).expect("nothing of the refused claim is left");
}
