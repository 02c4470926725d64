//! Generates the classic BPF program that selects the frames that the kernel copies to a packet
//! socket (Documentation/networking/filter.rst).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most addresses, so that the program stays far below the kernel's limit of 4,096 instructions.
pub(super) const ADDRESSES_MAX: usize = 256;

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ACCEPT: u32 = u32::MAX;
const REJECT: u32 = 0;

/// Address of the metadata of a frame for BPF loads: SKF_AD_OFF plus SKF_AD_VLAN_TAG_PRESENT.
const VLAN_TAG_PRESENT: u32 = (-0x1000_i32 + 48) as u32;
const ETHERTYPE_AT: u32 = 12;
const IPV4_DESTINATION_AT: u32 = 14 + 16;
const IPV6_DESTINATION_AT: u32 = 14 + 24;
const ETHERTYPE_IPV4: u32 = 0x0800;
const ETHERTYPE_ARP: u32 = 0x0806;
const ETHERTYPE_IPV6: u32 = 0x86dd;

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Accepts the frame if the loaded number is equal to `value`.
fn accept_if(value: u32) -> [libc::sock_filter; 2] {
    [instruction(JUMP_IF_EQUAL, 0, 1, value), instruction(RETURN, 0, 0, ACCEPT)]
}

/// Generates a program that accepts ARP, and packets for one of these addresses or its
/// solicited-node multicast address; without addresses, every frame. It rejects frames whose VLAN
/// tag the hardware has removed, because they belong to another interface.
pub(super) fn program(addresses: &[IpAddr]) -> Vec<libc::sock_filter> {
    let mut program = vec![
        instruction(LOAD_WORD, 0, 0, VLAN_TAG_PRESENT),
        instruction(JUMP_IF_EQUAL, 1, 0, 0),
        instruction(RETURN, 0, 0, REJECT),
    ];
    if addresses.is_empty() {
        program.push(instruction(RETURN, 0, 0, ACCEPT));
        return program;
    }
    let v4 = addresses.iter().filter_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    let v6 = addresses.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(*address),
        IpAddr::V4(_) => None,
    });
    program.push(instruction(LOAD_HALF, 0, 0, ETHERTYPE_AT));
    program.extend(accept_if(ETHERTYPE_ARP));
    push_section(&mut program, ETHERTYPE_IPV4, ipv4_section(v4));
    push_section(&mut program, ETHERTYPE_IPV6, ipv6_section(v6));
    program.push(instruction(RETURN, 0, 0, REJECT));
    program
}

/// Adds a section that runs if the EtherType is this one; each section ends with a return.
fn push_section(
    program: &mut Vec<libc::sock_filter>,
    ethertype: u32,
    section: Vec<libc::sock_filter>,
) {
    program.push(instruction(JUMP_IF_EQUAL, 1, 0, ethertype));
    // Conditional jumps are limited to 255 instructions.
    program.push(instruction(JUMP, 0, 0, section.len() as u32));
    program.extend(section);
}

fn ipv4_section(addresses: impl Iterator<Item = Ipv4Addr>) -> Vec<libc::sock_filter> {
    let mut section = vec![instruction(LOAD_WORD, 0, 0, IPV4_DESTINATION_AT)];
    section.extend(addresses.flat_map(|address| accept_if(address.to_bits())));
    section.push(instruction(RETURN, 0, 0, REJECT));
    section
}

fn ipv6_section(addresses: impl Iterator<Item = Ipv6Addr>) -> Vec<libc::sock_filter> {
    let mut section = Vec::new();
    for address in addresses {
        for address in [address, solicited_node(address)] {
            for (index, word) in words(address).into_iter().enumerate() {
                // To the instruction after the accepting return, whichever word differs.
                let skip = 2 * (3 - index as u8) + 1;
                let at = IPV6_DESTINATION_AT + 4 * index as u32;
                section.push(instruction(LOAD_WORD, 0, 0, at));
                section.push(instruction(JUMP_IF_EQUAL, 0, skip, word));
            }
            section.push(instruction(RETURN, 0, 0, ACCEPT));
        }
    }
    section.push(instruction(RETURN, 0, 0, REJECT));
    section
}

fn words(address: Ipv6Addr) -> [u32; 4] {
    let bits = address.to_bits();
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

/// The solicited-node multicast address of an address (RFC 4291, section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    const PREFIX: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from_bits(PREFIX | (address.to_bits() & 0xff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does.
    fn accepts(program: &[libc::sock_filter], frame: &[u8], tagged: bool) -> bool {
        let (mut at, mut loaded) = (0, 0_u32);
        loop {
            let step = program[at];
            at += 1;
            let bytes = |count: usize| frame.get(step.k as usize..step.k as usize + count);
            match step.code {
                LOAD_WORD if step.k == VLAN_TAG_PRESENT => loaded = tagged.into(),
                LOAD_WORD => match bytes(4) {
                    Some(word) => loaded = u32::from_be_bytes(word.try_into().unwrap()),
                    None => return false,
                },
                LOAD_HALF => match bytes(2) {
                    Some(half) => loaded = u16::from_be_bytes(half.try_into().unwrap()).into(),
                    None => return false,
                },
                JUMP => at += step.k as usize,
                JUMP_IF_EQUAL => {
                    at += usize::from(if loaded == step.k { step.jt } else { step.jf });
                }
                RETURN => return step.k == ACCEPT,
                code => panic!("unknown code {code}"),
            }
        }
    }

    fn frame(destination: IpAddr) -> Vec<u8> {
        let mut frame = vec![0; 80];
        match destination {
            IpAddr::V4(address) => {
                frame[12..14].copy_from_slice(&[0x08, 0x00]);
                frame[30..34].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
                frame[38..54].copy_from_slice(&address.octets());
            }
        }
        frame
    }

    #[test]
    fn only_frames_for_the_addresses_are_taken() {
        let mut addresses: Vec<IpAddr> = (0..100).map(|last| [10, 0, 0, last].into()).collect();
        addresses.extend((0..100_u16).map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 1, last])));
        let program = program(&addresses);
        assert!(program.len() < 4096);
        for &address in &addresses {
            assert!(accepts(&program, &frame(address), false), "{address}");
            assert!(!accepts(&program, &frame(address), true), "tagged {address}");
        }
        let strangers = ["10.0.1.1", "10.0.0.100", "fd00::1:64", "fd01::1:1", "ff02::1"];
        for stranger in strangers {
            assert!(!accepts(&program, &frame(stranger.parse().unwrap()), false), "{stranger}");
        }
        let asked: IpAddr = "ff02::1:ff01:63".parse().unwrap();
        assert!(accepts(&program, &frame(asked), false));
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert!(accepts(&program, &arp, false));
        assert!(!accepts(&program, &[0; 13], false));
    }

    #[test]
    fn without_addresses_all_but_tagged_frames_are_taken() {
        let program = program(&[]);
        assert!(accepts(&program, &[0; 60], false));
        assert!(!accepts(&program, &[0; 60], true));
    }
}
