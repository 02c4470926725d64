//! Encodes and decodes ancillary data of sendmsg(2) and recvmsg(2): cmsg(3).
//!
//! Supports descriptors (`SCM_RIGHTS`), and for datagrams packet information (`IP_PKTINFO`,
//! `IPV6_PKTINFO`), ECN marks (`IP_TOS`, `IPV6_TCLASS`) and segment sizes (`UDP_SEGMENT`,
//! `UDP_GRO`). Skips credentials, timestamps and all other kinds. Inconsistent lengths end the list;
//! nothing is read beyond them.

use crate::message::{Ecn, PacketInfo};
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The most descriptors that the kernel accepts in one message: `SCM_MAX_FD` of `net/scm.h`.
pub(crate) const DESCRIPTORS_MAX: usize = 253;

/// Bytes reserved in a received message for ancillary data other than descriptors: credentials,
/// packet info and timestamps together take less.
pub(crate) const SPARE_BYTES: usize = 512;

/// `SCM_PIDFD` of `linux/socket.h`: a descriptor of the sender's process.
const SCM_PIDFD: libc::c_int = 4;

const DESCRIPTOR_BYTES: usize = size_of::<RawFd>();

/// The header of an entry (`struct cmsghdr` of the kernel): the length with the header, the level,
/// the type.
const LEVEL_AT: usize = size_of::<usize>();
const TYPE_AT: usize = LEVEL_AT + size_of::<libc::c_int>();
const HEADER_BYTES: usize = TYPE_AT + size_of::<libc::c_int>();

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(size_of::<usize>())
}

/// Returns the number of bytes that `count` descriptors take: `CMSG_SPACE`.
pub(crate) fn descriptor_room(count: usize) -> usize {
    if count == 0 { 0 } else { aligned(HEADER_BYTES + count * DESCRIPTOR_BYTES) }
}

/// Appends an entry to the ancillary data.
fn push(control: &mut Vec<u8>, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
    let end = aligned(control.len() + HEADER_BYTES + data.len());
    control.extend_from_slice(&(HEADER_BYTES + data.len()).to_ne_bytes());
    control.extend_from_slice(&level.to_ne_bytes());
    control.extend_from_slice(&kind.to_ne_bytes());
    control.extend_from_slice(data);
    control.resize(end, 0);
}

/// Appends descriptors, unless there are none.
pub(crate) fn push_descriptors(control: &mut Vec<u8>, descriptors: impl Iterator<Item = RawFd>) {
    let data: Vec<u8> = descriptors.flat_map(RawFd::to_ne_bytes).collect();
    if !data.is_empty() {
        push(control, libc::SOL_SOCKET, libc::SCM_RIGHTS, &data);
    }
}

/// Appends the source address and the interface of a datagram, for a socket of the domain
/// `AF_INET6` or else `AF_INET`; false if such a socket cannot send from the address.
pub(crate) fn push_packet_info(control: &mut Vec<u8>, info: PacketInfo, domain: i32) -> bool {
    let interface = info.interface.to_ne_bytes();
    let mut data = Vec::with_capacity(20);
    if domain == libc::AF_INET6 {
        // The kernel takes IPv4 addresses of such a socket as mapped ones.
        let local = match info.local {
            IpAddr::V4(local) => local.to_ipv6_mapped(),
            IpAddr::V6(local) => local,
        };
        data.extend_from_slice(&local.octets());
        data.extend_from_slice(&interface);
        push(control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
        return true;
    }
    let IpAddr::V4(local) = info.local.to_canonical() else { return false };
    data.extend_from_slice(&interface);
    data.extend_from_slice(&local.octets());
    data.extend_from_slice(&Ipv4Addr::UNSPECIFIED.octets());
    push(control, libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
    true
}

/// Appends the ECN mark of a datagram, for a socket of the domain `AF_INET6` or else `AF_INET`. The
/// kernel takes the mark of the destination's family, and ignores the other one.
pub(crate) fn push_ecn(control: &mut Vec<u8>, ecn: Ecn, domain: i32) {
    let value = libc::c_int::from(ecn as u8).to_ne_bytes();
    push(control, libc::IPPROTO_IP, libc::IP_TOS, &value);
    if domain == libc::AF_INET6 {
        push(control, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value);
    }
}

/// Appends the size of the datagrams into which the kernel divides the message.
pub(crate) fn push_segment_size(control: &mut Vec<u8>, bytes: u16) {
    push(control, libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
}

/// One entry of the ancillary data.
struct Entry<'a> {
    level: libc::c_int,
    kind: libc::c_int,
    data: &'a [u8],
}

/// Iterates over the entries, up to the first one with an inconsistent length.
fn entries(mut control: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from_ne_bytes(*control.first_chunk()?);
        let entry = control.get(..length).filter(|entry| entry.len() >= HEADER_BYTES)?;
        let level = number_at(entry, LEVEL_AT)?;
        let kind = number_at(entry, TYPE_AT)?;
        control = control.get(aligned(length)..).unwrap_or_default();
        Some(Entry { level, kind, data: &entry[HEADER_BYTES..] })
    })
}

fn number_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Counts the descriptors in the ancillary data of a message to send.
pub(crate) fn descriptors_in(control: &[u8]) -> usize {
    let rights = entries(control).filter(is_rights);
    rights.map(|entry| entry.data.len() / DESCRIPTOR_BYTES).sum()
}

fn is_rights(entry: &Entry<'_>) -> bool {
    (entry.level, entry.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
}

/// What the ancillary data tells about the arrival of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) packet_info: Option<PacketInfo>,
    pub(crate) ecn: Option<Ecn>,
    pub(crate) segment_size: Option<u16>,
}

impl Arrival {
    /// Parses ancillary data, and skips descriptors.
    pub(crate) fn parse(control: &[u8]) -> Arrival {
        let mut arrival = Arrival::default();
        entries(control).for_each(|entry| arrival.add(&entry));
        arrival
    }

    fn add(&mut self, entry: &Entry<'_>) {
        match (entry.level, entry.kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                // One byte, see ip(7).
                self.ecn = entry.data.first().map(|byte| Ecn::of(*byte)).or(self.ecn);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.ecn = number_at(entry.data, 0).map(|class| Ecn::of(class as u8)).or(self.ecn);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let bytes = number_at(entry.data, 0).and_then(|bytes| u16::try_from(bytes).ok());
                self.segment_size = bytes.filter(|bytes| *bytes > 0);
            }
            _ => self.packet_info = packet_info(entry).or(self.packet_info),
        }
    }
}

/// The ancillary data of a received message, parsed.
#[derive(Default)]
pub(crate) struct Brought {
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) arrival: Arrival,
}

/// Parses the ancillary data that the kernel wrote to `control`. Closes a descriptor of the
/// sender's process (`SCM_PIDFD`).
///
/// # Safety
/// The kernel has written the data, and the descriptors in it have no other owner.
pub(crate) unsafe fn take(control: &[u8]) -> Brought {
    let mut brought = Brought::default();
    for entry in entries(control) {
        let is_process = (entry.level, entry.kind) == (libc::SOL_SOCKET, SCM_PIDFD);
        if is_rights(&entry) || is_process {
            let numbers = entry.data.chunks_exact(DESCRIPTOR_BYTES);
            let numbers = numbers.filter_map(|number| number_at(number, 0)).filter(|fd| *fd >= 0);
            // SAFETY: the kernel has opened these descriptors for this process, and they have no
            // other owner.
            let owned = numbers.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            let owned: Vec<OwnedFd> = owned.collect();
            if !is_process {
                brought.descriptors.extend(owned);
            }
        } else {
            brought.arrival.add(&entry);
        }
    }
    brought
}

fn packet_info(entry: &Entry<'_>) -> Option<PacketInfo> {
    match (entry.level, entry.kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let [interface @ .., _, _, _, _, _, _, _, _] = entry.data else { return None };
            let interface = u32::from_ne_bytes(interface.try_into().ok()?);
            // The address from which to answer. The address in the IP header, which may be a
            // broadcast address, follows it.
            let local: [u8; 4] = *entry.data.get(4..)?.first_chunk()?;
            let header: [u8; 4] = *entry.data.get(8..)?.first_chunk()?;
            let local = if local == [0; 4] { header } else { local };
            Some(PacketInfo { local: Ipv4Addr::from(local).into(), interface })
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            let local: [u8; 16] = *entry.data.first_chunk()?;
            let interface = u32::from_ne_bytes(entry.data.get(16..)?.try_into().ok()?);
            let local = IpAddr::from(local);
            let is_group = local.to_canonical().is_multicast();
            let local = if is_group { Ipv6Addr::UNSPECIFIED.into() } else { local };
            Some(PacketInfo { local, interface })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;
    use std::os::fd::{AsRawFd, IntoRawFd};

    /// Parses the entries with the macros of libc.
    fn as_c_sees_it(control: &[u8]) -> Vec<(i32, i32, Vec<u8>)> {
        let words: Vec<u64> = control
            .chunks(8)
            .map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            })
            .collect();
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = words.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len();
        let mut found = Vec::new();
        // SAFETY: the header describes the words, which are aligned as a `cmsghdr` is.
        unsafe {
            let mut next = libc::CMSG_FIRSTHDR(&header);
            while let Some(entry) = next.as_ref() {
                let bytes = entry.cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = std::slice::from_raw_parts(libc::CMSG_DATA(entry), bytes);
                found.push((entry.cmsg_level, entry.cmsg_type, data.to_vec()));
                next = libc::CMSG_NXTHDR(&header, entry);
            }
        }
        found
    }

    fn info(local: &str, interface: u32) -> PacketInfo {
        PacketInfo { local: local.parse().unwrap(), interface }
    }

    #[test]
    fn entries_are_laid_out_as_in_c() {
        let mut control = Vec::new();
        push_descriptors(&mut control, [3, 4, 5].into_iter());
        assert_eq!(control.len(), descriptor_room(3));
        assert!(push_packet_info(&mut control, info("127.0.0.2", 7), libc::AF_INET));
        assert!(push_packet_info(&mut control, info("::1", 9), libc::AF_INET6));
        let found = as_c_sees_it(&control);
        let numbers: Vec<u8> = [3, 4, 5].into_iter().flat_map(i32::to_ne_bytes).collect();
        assert_eq!(found[0], (libc::SOL_SOCKET, libc::SCM_RIGHTS, numbers));
        assert_eq!((found[1].0, found[1].1), (libc::IPPROTO_IP, libc::IP_PKTINFO));
        assert_eq!(found[1].2[4..], [127, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!((found[2].0, found[2].1), (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO));
        assert_eq!(found[2].2[15..], [&[1][..], &9u32.to_ne_bytes()].concat());
        assert_eq!(found.len(), 3);
        assert_eq!(descriptors_in(&control), 3);
    }

    #[test]
    fn packet_info_of_both_families_round_trips() {
        for (domain, local, found) in [
            (libc::AF_INET, "127.0.0.2", "127.0.0.2"),
            (libc::AF_INET, "::ffff:127.0.0.2", "127.0.0.2"),
            (libc::AF_INET6, "fe80::1", "fe80::1"),
            (libc::AF_INET6, "127.0.0.2", "::ffff:127.0.0.2"),
            (libc::AF_INET6, "ff02::1", "::"),
        ] {
            let mut control = Vec::new();
            assert!(push_packet_info(&mut control, info(local, 3), domain));
            // SAFETY: `control` contains no descriptors.
            let brought = unsafe { take(&control) };
            assert_eq!(brought.arrival.packet_info, Some(info(found, 3)));
        }
        assert!(!push_packet_info(&mut Vec::new(), info("::1", 0), libc::AF_INET));
    }

    #[test]
    fn marks_and_segment_sizes_round_trip() {
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            for domain in [libc::AF_INET, libc::AF_INET6] {
                let mut control = Vec::new();
                push_ecn(&mut control, ecn, domain);
                assert!(push_packet_info(&mut control, info("::ffff:127.0.0.1", 1), domain));
                assert_eq!(Arrival::parse(&control).ecn, Some(ecn));
                assert!(Arrival::parse(&control).packet_info.is_some());
            }
        }
        let mut control = Vec::new();
        push_segment_size(&mut control, 1200);
        let sent = (libc::SOL_UDP, libc::UDP_SEGMENT, 1200u16.to_ne_bytes().to_vec());
        assert_eq!(as_c_sees_it(&control), [sent]);
        // The kernel reports a number of four bytes, and one byte of IPv4's type of service.
        for (reported, expected) in [(1200, Some(1200)), (0, None), (-1, None), (1 << 16, None)] {
            let mut control = Vec::new();
            push(&mut control, libc::SOL_UDP, libc::UDP_GRO, &i32::to_ne_bytes(reported));
            push(&mut control, libc::IPPROTO_IP, libc::IP_TOS, &[0xb9]);
            let arrival = Arrival::parse(&control);
            assert_eq!((arrival.segment_size, arrival.ecn), (expected, Some(Ecn::Ect1)));
        }
    }

    /// A datagram to a broadcast address is answered from the interface's own.
    #[test]
    fn the_address_of_an_answer_comes_before_that_of_the_header() {
        let numbers = |local: [u8; 4], header: [u8; 4]| {
            let mut control = Vec::new();
            let data = [1u32.to_ne_bytes(), local, header].concat();
            push(&mut control, libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
            // SAFETY: `control` contains no descriptors.
            unsafe { take(&control) }.arrival.packet_info
        };
        let broadcast = [127, 255, 255, 255];
        assert_eq!(numbers([127, 0, 0, 1], broadcast), Some(info("127.0.0.1", 1)));
        assert_eq!(numbers([0; 4], [127, 0, 0, 3]), Some(info("127.0.0.3", 1)));
    }

    #[test]
    fn descriptors_are_taken_from_among_other_things() {
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = [OwnedFd::from(reader), OwnedFd::from(writer)].map(IntoRawFd::into_raw_fd);
        let (mut process_end, process) = std::io::pipe().unwrap();
        let process = OwnedFd::from(process).into_raw_fd();
        let mut control = Vec::new();
        push(&mut control, libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &[7; 12]);
        push(&mut control, libc::SOL_SOCKET, SCM_PIDFD, &process.to_ne_bytes());
        push_descriptors(&mut control, pipe.into_iter());
        push(&mut control, libc::SOL_SOCKET, libc::SCM_TIMESTAMP, &[9; 16]);
        // SAFETY: the descriptors were open and have no other owner.
        let brought = unsafe { take(&control) };
        let found: Vec<RawFd> = brought.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        assert_eq!(found, pipe);
        assert_eq!(brought.arrival.packet_info, None);
        assert_eq!(process_end.read(&mut [0; 1]).unwrap(), 0, "not closed");
    }

    proptest! {
        /// Whatever the bytes are, the entries lie within them. No descriptor is taken from them,
        /// because all their numbers are negative.
        #[test]
        fn odd_bytes_are_skipped(
            length in 0usize..80,
            level in 0i32..50,
            kind in 0i32..60,
            bytes in prop::collection::vec(0x80u8..=0xff, 0..120),
        ) {
            let mut control = [
                &length.to_ne_bytes()[..],
                &level.to_ne_bytes(),
                &kind.to_ne_bytes(),
                &bytes,
            ].concat();
            let sum: usize = entries(&control).map(|entry| entry.data.len()).sum();
            prop_assert!(sum <= control.len());
            for cut in [control.len(), length] {
                control.truncate(cut);
                // SAFETY: no number in it is that of an open descriptor.
                let brought = unsafe { take(&control) };
                prop_assert!(brought.descriptors.is_empty());
            }
        }
    }
}
