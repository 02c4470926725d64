//! Tests the program's actions on single frames by running it in the kernel without an interface.

use super::super::bpf::{self, Map, MapKind};
use super::super::memory::{Frames, Mapping};
use super::super::socket::{RingSizes, Socket, Unbound};
use super::super::{CopyMode, interface::Interface};
use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

const PASS: u32 = 2;
const REDIRECT: u32 = 4;
const OURS_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x3456);

/// The program with a socket, in a network namespace of its own. A redirect needs a socket as its
/// target.
struct Fixture {
    claims: Map<ClaimKey>,
    sockets: Map<[u8; 4]>,
    program: OwnedFd,
    _socket: Socket,
}

impl Fixture {
    fn verdict(&self, frame: &[u8]) -> u32 {
        bpf::test_run(&self.program, frame).expect("the program runs")
    }

    fn claim(&self, address: impl Into<IpAddr>, port: u16, value: u32) {
        self.claims.set(&claim_key(address.into(), port), value).expect("there is room");
    }
}

/// Whether this process may load programs and has others, with their packages; if not, the test of
/// the calling thread is skipped.
fn may_load(others: &[(&str, &str)]) -> bool {
    let thread = std::thread::current();
    testkit::can_make_networks(thread.name().unwrap_or_default(), others)
}

fn with_program(test: impl FnOnce(&Fixture) + Send) {
    if !may_load(&[("ip", "iproute2")]) {
        return;
    }
    let furnish = || {
        // SAFETY: unshare takes only a number; it moves only this thread, which ends with the test.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "needs root");
        let ip = |arguments: &str| {
            let status = Command::new("ip").args(arguments.split(' ')).status();
            assert!(status.expect("ip was found").success(), "ip {arguments}");
        };
        ip("link add ours type veth peer name theirs");
        ip("link set ours up");
        let interface = Interface::open("ours").expect("the interface");
        let umem = Arc::new(Mapping::anonymous(128 * 2048).expect("memory"));
        let frames = Frames::split(&umem, 2048, 1).remove(0);
        let socket = Unbound::open().expect("a socket");
        socket.register(&umem, 2048, false).expect("memory that can be locked");
        let sizes = RingSizes { receive: 64, transmit: 64 };
        let socket = socket
            .bind(&interface, 0, sizes, CopyMode::Copy.flags(), &frames, None)
            .expect("a queue");
        let claims = Map::new(MapKind::Hash, 64).expect("a map");
        let sockets: Map<[u8; 4]> = Map::new(MapKind::XskMap, 1).expect("a map");
        let descriptor = socket.descriptor.as_raw_fd() as u32;
        sockets.set(&0_u32.to_ne_bytes(), descriptor).expect("an entry");
        let code = assemble(claims.descriptor(), sockets.descriptor()).expect("a program");
        let program = bpf::load_program(&code, true).expect("the verifier agrees");
        test(&Fixture { claims, sockets, program, _socket: socket });
    };
    std::thread::scope(|scope| scope.spawn(furnish).join()).expect("the test succeeds");
}

fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&[2; 12], &kind.to_be_bytes()[..], packet].concat()
}

fn ipv4(destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1];
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet.extend(destination.octets());
    packet.extend(payload);
    ethernet(0x0800, &packet)
}

fn ipv6(destination: Ipv6Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, protocol, 64];
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend(destination.octets());
    packet.extend(payload);
    ethernet(0x86dd, &packet)
}

fn tcp(port: u16) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[..2].copy_from_slice(&999_u16.to_be_bytes());
    header[2..4].copy_from_slice(&port.to_be_bytes());
    header
}

fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    [&[135, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..]].concat()
}

fn arp(target: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend([0; 16]);
    packet.extend(target.octets());
    ethernet(0x0806, &packet)
}

#[test]
fn only_claimed_ports_of_claimed_addresses_are_taken() {
    with_program(|program| {
        assert_eq!(program.verdict(&ipv4(OURS_V4, 6, &tcp(80))), PASS, "nothing is claimed");
        program.claim(OURS_V4, 80, CLAIM_TCP);
        program.claim(OURS_V6, 443, CLAIM_TCP);
        assert_eq!(program.verdict(&ipv4(OURS_V4, 6, &tcp(80))), REDIRECT);
        assert_eq!(program.verdict(&ipv4(OURS_V4, 6, &tcp(81))), PASS);
        assert_eq!(program.verdict(&ipv4(Ipv4Addr::new(10, 0, 0, 3), 6, &tcp(80))), PASS);
        assert_eq!(program.verdict(&ipv4(OURS_V4, 17, &tcp(80))), PASS, "UDP");
        assert_eq!(program.verdict(&ipv6(OURS_V6, 6, &tcp(443))), REDIRECT);
        assert_eq!(program.verdict(&ipv6(OURS_V6, 6, &tcp(80))), PASS);
        assert_eq!(program.verdict(&ipv6(OURS_V6, 58, &solicitation(OURS_V6))), PASS);
        assert_eq!(program.verdict(&arp(OURS_V4)), PASS);
        program.claims.remove(&claim_key(OURS_V4.into(), 80)).expect("it was claimed");
        assert_eq!(program.verdict(&ipv4(OURS_V4, 6, &tcp(80))), PASS, "released");
    });
}

#[test]
fn all_tcp_of_an_address_leaves_the_rest_to_the_kernel() {
    with_program(|program| {
        program.claim(OURS_V4, 0, CLAIM_TCP);
        program.claim(OURS_V6, 0, CLAIM_TCP);
        for port in [1, 80, 65_535] {
            assert_eq!(program.verdict(&ipv4(OURS_V4, 6, &tcp(port))), REDIRECT);
            assert_eq!(program.verdict(&ipv6(OURS_V6, 6, &tcp(port))), REDIRECT);
        }
        assert_eq!(program.verdict(&arp(OURS_V4)), PASS);
        assert_eq!(program.verdict(&ipv4(OURS_V4, 1, &[8; 8])), PASS, "ping");
        assert_eq!(program.verdict(&ipv6(OURS_V6, 58, &solicitation(OURS_V6))), PASS);
    });
}

#[test]
fn a_whole_address_is_taken_with_arp_and_neighbour_discovery() {
    with_program(|program| {
        program.claim(OURS_V4, 0, CLAIM_EVERYTHING);
        program.claim(OURS_V6, 0, CLAIM_EVERYTHING);
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff12, 0x3456);
        let neighbour = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x12, 0x3456);
        assert_eq!(program.verdict(&arp(OURS_V4)), REDIRECT);
        assert_eq!(program.verdict(&arp(Ipv4Addr::new(10, 0, 0, 9))), PASS);
        assert_eq!(program.verdict(&ipv4(OURS_V4, 6, &tcp(80))), REDIRECT);
        assert_eq!(program.verdict(&ipv4(OURS_V4, 1, &[8; 8])), REDIRECT, "ping");
        assert_eq!(program.verdict(&ipv6(group, 58, &solicitation(OURS_V6))), REDIRECT);
        let other = ipv6(group, 58, &solicitation(neighbour));
        assert_eq!(program.verdict(&other), PASS, "the group has other members");
        assert_eq!(program.verdict(&ipv6(OURS_V6, 58, &[136; 24])), REDIRECT, "an answer");
        assert_eq!(program.verdict(&ipv6(OURS_V6, 58, &[1; 8])), REDIRECT, "an error");
    });
}

#[test]
fn what_has_no_port_in_its_place_is_not_taken_for_tcp() {
    with_program(|program| {
        program.claim(OURS_V4, 80, CLAIM_TCP);
        let whole = ipv4(OURS_V4, 6, &tcp(80));
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = whole.clone();
            change(&mut frame);
            program.verdict(&frame)
        };
        assert_eq!(with(&|_| {}), REDIRECT);
        assert_eq!(with(&|frame| frame[14] = 0x46), PASS, "options");
        assert_eq!(with(&|frame| frame[20] = 0x20), PASS, "the first fragment");
        assert_eq!(with(&|frame| frame[21] = 1), PASS, "a later fragment");
        assert_eq!(with(&|frame| frame[12..14].copy_from_slice(&[0x81, 0])), PASS, "a tag");
        for end in 14..14 + 20 + 4 {
            assert_eq!(with(&|frame| frame.truncate(end)), PASS, "cut to {end} bytes");
        }
        assert_eq!(with(&|frame| frame.truncate(14 + 20 + 4)), REDIRECT);
    });
}

#[test]
fn every_frame_can_be_taken() {
    with_program(|program| {
        let code = assemble_unfiltered(program.sockets.descriptor()).expect("no jumps");
        let unfiltered = bpf::load_program(&code, true).expect("the verifier agrees");
        let verdict = |frame: &[u8]| bpf::test_run(&unfiltered, frame).expect("it runs");
        assert_eq!(verdict(&ipv4(OURS_V4, 17, &[0; 8])), REDIRECT);
        assert_eq!(verdict(&ethernet(0x88b5, &[])), REDIRECT);
        program.sockets.remove(&0_u32.to_ne_bytes()).expect("there is a socket");
        assert_eq!(verdict(&ethernet(0x88b5, &[])), PASS, "no socket, so the kernel's");
        program.claim(OURS_V4, 80, CLAIM_TCP);
        assert_eq!(program.verdict(&ipv4(OURS_V4, 6, &tcp(80))), PASS);
    });
}

#[test]
fn a_program_that_the_verifier_rejects_comes_with_its_log() {
    if !may_load(&[]) {
        return;
    }
    let mut code = Assembler::default();
    code.copy(Register::R0, Register::R7);
    code.exit();
    let error =
        bpf::load_program(&code.finish().expect("no jumps"), true).expect_err("R7 is not set");
    assert!(error.to_string().contains("R7 !read_ok"), "{error}");
}
