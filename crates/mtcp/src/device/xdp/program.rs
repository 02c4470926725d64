//! Assembles the XDP program, which decides for each frame whether it goes to the stack or to the
//! kernel.
//!
//! The program looks up the destination of a frame in the map of claims. TCP belongs to the stack
//! if its (address, port) is claimed, or all TCP of the address. Everything else, including ARP,
//! neighbour discovery and ICMP, belongs to the stack only if the whole address is claimed. These
//! frames go to the AF_XDP socket of the queue on which they arrived. All other frames, and those
//! on a queue without a socket, continue to the kernel. ICMP errors about claimed ports do so too:
//! the kernel learns path MTUs from them.
//!
//! TCP with IPv4 options, in fragments or after IPv6 extension headers has no port at a fixed
//! offset. It stays with the kernel unless the whole address is claimed.

use super::assembler::{Assembler, AssemblerError, Condition, Label, Operand, Register, Size};
use std::net::IpAddr;

/// The key of the claims: the destination (IPv4 mapped into IPv6), the port in network byte order
/// (zero for the address itself), and two zero bytes.
pub(super) type ClaimKey = [u8; 20];

/// The value for a port, and for an address whose TCP is claimed.
pub(super) const CLAIM_TCP: u32 = 1;
/// The value for an address of which all packets are claimed.
pub(super) const CLAIM_EVERYTHING: u32 = 2;

/// The key of a port of an address or, with port 0, of the address.
pub(super) fn claim_key(address: IpAddr, port: u16) -> ClaimKey {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut key = [0; 20];
    key[..16].copy_from_slice(&address.octets());
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key
}

// Actions and helpers of linux/bpf.h.
const XDP_PASS: i32 = 2;
const HELPER_MAP_LOOKUP: i32 = 1;
const HELPER_REDIRECT_MAP: i32 = 51;

// Fields of `struct xdp_md`.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;

// Offsets in a frame: Ethernet, then IPv4 without options (RFC 791), IPv6 (RFC 8200) or ARP (RFC
// 826).
const ETHERNET_BYTES: i16 = 14;
const ETHERNET_TYPE: i16 = 12;
const IPV4_FRAGMENT: i16 = ETHERNET_BYTES + 6;
const IPV4_PROTOCOL: i16 = ETHERNET_BYTES + 9;
const IPV4_DESTINATION: i16 = ETHERNET_BYTES + 16;
const IPV4_PAYLOAD: i16 = ETHERNET_BYTES + 20;
const IPV6_NEXT_HEADER: i16 = ETHERNET_BYTES + 6;
const IPV6_DESTINATION: i16 = ETHERNET_BYTES + 24;
const IPV6_PAYLOAD: i16 = ETHERNET_BYTES + 40;
const ARP_TARGET: i16 = ETHERNET_BYTES + 24;
const ARP_END: i16 = ETHERNET_BYTES + 28;
/// Offset of the destination port in a TCP header.
const TCP_PORT: i16 = 2;
const TCP_PORT_END: i16 = 4;
/// Offset of the target in a neighbour solicitation (RFC 4861, section 4.3).
const SOLICITATION_TARGET: i16 = 8;
const SOLICITATION_END: i16 = 24;

const PROTOCOL_TCP: i32 = 6;
const PROTOCOL_ICMPV6: i32 = 58;
const ICMPV6_NEIGHBOUR_SOLICITATION: i32 = 135;
const IPV4_WITHOUT_OPTIONS: i32 = 0x45;

/// Two bytes of a packet as a load in the machine's byte order returns them.
const fn half(bytes: [u8; 2]) -> Operand {
    Operand::Immediate(u16::from_ne_bytes(bytes) as i32)
}

const TYPE_IPV4: Operand = half([0x08, 0x00]);
const TYPE_IPV6: Operand = half([0x86, 0xdd]);
const TYPE_ARP: Operand = half([0x08, 0x06]);

// The use of the registers.
const CONTEXT: Register = Register::R6;
const PACKET: Register = Register::R2;
const PACKET_END: Register = Register::R3;
const SCRATCH: Register = Register::R4;
const FIELD: Register = Register::R5;
const PORT: Register = Register::R7;

// Offset of the key on the stack.
const KEY: i16 = -24;
const KEY_PORT: i16 = KEY + 16;

/// Returns the instructions of the program for these two maps.
pub(super) fn assemble(claims: i32, sockets: i32) -> Result<Vec<[u8; 8]>, AssemblerError> {
    let mut code = Assembler::default();
    let [tcp, address, take, pass] = std::array::from_fn(|_| code.label());
    let [ipv4, ipv6, arp] = std::array::from_fn(|_| code.label());

    code.copy(CONTEXT, Register::R1);
    code.load(Size::Word, PACKET, CONTEXT, CONTEXT_DATA);
    code.load(Size::Word, PACKET_END, CONTEXT, CONTEXT_DATA_END);
    need(&mut code, ETHERNET_BYTES, pass);
    code.load(Size::Half, FIELD, PACKET, ETHERNET_TYPE);
    code.jump_if(FIELD, Condition::Equal, TYPE_IPV4, ipv4);
    code.jump_if(FIELD, Condition::Equal, TYPE_IPV6, ipv6);
    code.jump_if(FIELD, Condition::Equal, TYPE_ARP, arp);
    code.jump(pass);

    code.place(ipv4);
    read_ipv4(&mut code, tcp, address, pass);
    code.place(ipv6);
    read_ipv6(&mut code, tcp, address, pass);
    code.place(arp);
    need(&mut code, ARP_END, pass);
    key_from_ipv4(&mut code, ARP_TARGET);
    code.jump(address);

    code.place(tcp);
    code.store(Size::Half, Register::Frame, KEY_PORT, PORT);
    code.store_immediate(Size::Half, Register::Frame, KEY_PORT + 2, 0);
    look_up(&mut code, claims);
    code.jump_if(Register::R0, Condition::NotEqual, Operand::Immediate(0), take);
    code.store_immediate(Size::Word, Register::Frame, KEY_PORT, 0);
    look_up(&mut code, claims);
    code.jump_if(Register::R0, Condition::NotEqual, Operand::Immediate(0), take);
    code.jump(pass);

    code.place(address);
    code.store_immediate(Size::Word, Register::Frame, KEY_PORT, 0);
    look_up(&mut code, claims);
    code.jump_if(Register::R0, Condition::Equal, Operand::Immediate(0), pass);
    code.load(Size::Word, FIELD, Register::R0, 0);
    let everything = Operand::Immediate(CLAIM_EVERYTHING as i32);
    code.jump_if(FIELD, Condition::NotEqual, everything, pass);

    code.place(take);
    redirect(&mut code, sockets);
    code.place(pass);
    code.set(Register::R0, XDP_PASS);
    code.exit();
    code.finish()
}

/// Returns the instructions of a program that takes every frame.
pub(super) fn assemble_unfiltered(sockets: i32) -> Result<Vec<[u8; 8]>, AssemblerError> {
    let mut code = Assembler::default();
    code.copy(CONTEXT, Register::R1);
    redirect(&mut code, sockets);
    code.finish()
}

/// Emits the end that passes the frame to the socket of its queue, or to the kernel if there is
/// none.
fn redirect(code: &mut Assembler, sockets: i32) {
    code.load_map(Register::R1, sockets);
    code.load(Size::Word, Register::R2, CONTEXT, CONTEXT_QUEUE);
    code.set(Register::R3, XDP_PASS);
    code.call(HELPER_REDIRECT_MAP);
    code.exit();
}

/// Emits code that stores the destination in the key and, if it is at a fixed offset, the port of
/// TCP.
fn read_ipv4(code: &mut Assembler, tcp: Label, address: Label, pass: Label) {
    need(code, IPV4_PAYLOAD, pass);
    key_from_ipv4(code, IPV4_DESTINATION);
    code.load(Size::Byte, FIELD, PACKET, IPV4_PROTOCOL);
    code.jump_if(FIELD, Condition::NotEqual, Operand::Immediate(PROTOCOL_TCP), address);
    code.load(Size::Byte, FIELD, PACKET, ETHERNET_BYTES);
    code.jump_if(FIELD, Condition::NotEqual, Operand::Immediate(IPV4_WITHOUT_OPTIONS), address);
    code.load(Size::Half, FIELD, PACKET, IPV4_FRAGMENT);
    // A fragment: "more fragments" is set, or the offset is not zero. The mask omits the reserved
    // bit and "don't fragment".
    code.and(FIELD, i32::from(u16::from_ne_bytes([0x3f, 0xff])));
    code.jump_if(FIELD, Condition::NotEqual, Operand::Immediate(0), address);
    need(code, IPV4_PAYLOAD + TCP_PORT_END, pass);
    code.load(Size::Half, PORT, PACKET, IPV4_PAYLOAD + TCP_PORT);
    code.jump(tcp);
}

/// Like [`read_ipv4`]. The destination of a neighbour solicitation is its target, because the group
/// to which it is sent has other members.
fn read_ipv6(code: &mut Assembler, tcp: Label, address: Label, pass: Label) {
    let other = code.label();
    need(code, IPV6_PAYLOAD, pass);
    key_from_ipv6(code, IPV6_DESTINATION);
    code.load(Size::Byte, FIELD, PACKET, IPV6_NEXT_HEADER);
    code.jump_if(FIELD, Condition::NotEqual, Operand::Immediate(PROTOCOL_TCP), other);
    need(code, IPV6_PAYLOAD + TCP_PORT_END, pass);
    code.load(Size::Half, PORT, PACKET, IPV6_PAYLOAD + TCP_PORT);
    code.jump(tcp);
    code.place(other);
    code.jump_if(FIELD, Condition::NotEqual, Operand::Immediate(PROTOCOL_ICMPV6), address);
    need(code, IPV6_PAYLOAD + SOLICITATION_END, address);
    code.load(Size::Byte, FIELD, PACKET, IPV6_PAYLOAD);
    let solicitation = Operand::Immediate(ICMPV6_NEIGHBOUR_SOLICITATION);
    code.jump_if(FIELD, Condition::NotEqual, solicitation, address);
    key_from_ipv6(code, IPV6_PAYLOAD + SOLICITATION_TARGET);
    code.jump(address);
}

/// Emits a jump to the label if the packet has fewer bytes.
fn need(code: &mut Assembler, bytes: i16, otherwise: Label) {
    code.copy(SCRATCH, PACKET);
    code.add(SCRATCH, i32::from(bytes));
    code.jump_if(SCRATCH, Condition::Greater, Operand::Register(PACKET_END), otherwise);
}

fn key_from_ipv4(code: &mut Assembler, offset: i16) {
    let prefix = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
    code.store_immediate(Size::Double, Register::Frame, KEY, 0);
    code.store_immediate(Size::Word, Register::Frame, KEY + 8, prefix);
    code.load(Size::Word, FIELD, PACKET, offset);
    code.store(Size::Word, Register::Frame, KEY + 12, FIELD);
}

fn key_from_ipv6(code: &mut Assembler, offset: i16) {
    for part in [0, 8] {
        code.load(Size::Double, FIELD, PACKET, offset + part);
        code.store(Size::Double, Register::Frame, KEY + part, FIELD);
    }
}

/// Emits a look-up of the key. Afterwards register 0 is the address of the entry's value, or zero.
fn look_up(code: &mut Assembler, map: i32) {
    code.load_map(Register::R1, map);
    code.copy(Register::R2, Register::Frame);
    code.add(Register::R2, i32::from(KEY));
    code.call(HELPER_MAP_LOOKUP);
}

#[cfg(test)]
mod tests;
