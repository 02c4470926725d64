//! Converts socket addresses between C and Rust.

use crate::failure::Failure;
use channel::Address;
use libc::{c_void, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, sockaddr_un, socklen_t};
use std::ffi::OsStr;
use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PATH_OFFSET: usize = offset_of!(sockaddr_un, sun_path);
const SIZE: Failure = Failure::invalid(
    "the size does not suit the family of the address: pass sizeof of its struct sockaddr",
);

/// Storage for addresses that events point to, until the next dispatch.
#[derive(Default)]
pub(crate) struct Addresses {
    #[expect(clippy::vec_box, reason = "each stays in place while more are kept")]
    rooms: Vec<Box<sockaddr_storage>>,
    used: usize,
}

impl Addresses {
    /// Stores an address. Returns the pointer to it, and its size.
    pub(crate) fn keep(&mut self, address: &Address) -> (*mut c_void, usize) {
        let (raw, size) = form(address);
        if self.used == self.rooms.len() {
            // SAFETY: all-zero bytes are a valid address of no family.
            self.rooms.push(Box::new(unsafe { std::mem::zeroed() }));
        }
        let room: *mut c_void = (&raw mut *self.rooms[self.used]).cast();
        // SAFETY: the room is as large as the array.
        unsafe { room.cast::<[u8; size_of::<sockaddr_storage>()]>().write(raw) };
        self.used += 1;
        (room, size)
    }

    /// Makes the storage available again.
    pub(crate) fn forget(&mut self) {
        self.used = 0;
    }
}

/// Parses the address that C points to.
///
/// # Safety
///
/// `address` must be null or point to `size` readable bytes.
pub(crate) unsafe fn read(address: *const sockaddr, size: socklen_t) -> Result<Address, Failure> {
    if address.is_null() {
        return Err(Failure::NULL);
    }
    let bytes = (size as usize).min(size_of::<sockaddr_storage>());
    // SAFETY: the caller guarantees that the bytes are readable.
    parse(unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) })
}

/// Parses an address from its bytes.
pub(crate) fn parse(raw: &[u8]) -> Result<Address, Failure> {
    let Some((family, _)) = raw.split_first_chunk::<2>() else { return Err(SIZE) };
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET if raw.len() >= size_of::<sockaddr_in>() => {
            // SAFETY: there are enough bytes, and any bytes are a valid value.
            let v4: sockaddr_in = unsafe { raw.as_ptr().cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::from(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))).into())
        }
        libc::AF_INET6 if raw.len() >= size_of::<sockaddr_in6>() => {
            // SAFETY: there are enough bytes, and any bytes are a valid value.
            let v6: sockaddr_in6 = unsafe { raw.as_ptr().cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let (port, flow) = (u16::from_be(v6.sin6_port), v6.sin6_flowinfo);
            Ok(SocketAddr::from(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id)).into())
        }
        libc::AF_UNIX if raw.len() > PATH_OFFSET => Ok(match &raw[PATH_OFFSET..] {
            [0, name @ ..] => Address::Abstract(name.to_vec()),
            path => {
                let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
                Path::new(OsStr::from_bytes(&path[..end])).into()
            }
        }),
        libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX => Err(SIZE),
        _ => Err(Failure::own(
            libc::EAFNOSUPPORT,
            "the family of the address is unknown: use AF_INET, AF_INET6 or AF_UNIX",
        )),
    }
}

/// Writes an address for C. Before the call `*size` is the available length, afterwards the size of
/// the address, of which no more than the available length was written.
///
/// # Safety
///
/// `size` must be null or point to the number of writable bytes at `to`.
pub(crate) unsafe fn put(
    address: &Address,
    to: *mut sockaddr,
    size: *mut socklen_t,
) -> Result<(), Failure> {
    if to.is_null() || size.is_null() {
        return Err(Failure::NULL);
    }
    let (raw, bytes) = form(address);
    // SAFETY: the caller guarantees `*size` writable bytes, and no more of them are filled.
    unsafe {
        let room = (*size as usize).min(bytes);
        raw.as_ptr().copy_to_nonoverlapping(to.cast(), room);
        *size = bytes as socklen_t;
    }
    Ok(())
}

/// Returns the address in C's form, and its size.
pub(crate) fn form(address: &Address) -> ([u8; size_of::<sockaddr_storage>()], usize) {
    let mut raw = [0; size_of::<sockaddr_storage>()];
    let mut put = |at: usize, bytes: &[u8]| {
        let end = (at + bytes.len()).min(raw.len());
        raw[at.min(end)..end].copy_from_slice(&bytes[..end.saturating_sub(at)]);
        end
    };
    let family = |family: i32| (family as u16).to_ne_bytes();
    let size = match address {
        Address::Inet(SocketAddr::V4(v4)) => {
            put(0, &family(libc::AF_INET));
            put(offset_of!(sockaddr_in, sin_port), &v4.port().to_be_bytes());
            put(offset_of!(sockaddr_in, sin_addr), &v4.ip().octets());
            size_of::<sockaddr_in>()
        }
        Address::Inet(SocketAddr::V6(v6)) => {
            put(0, &family(libc::AF_INET6));
            put(offset_of!(sockaddr_in6, sin6_port), &v6.port().to_be_bytes());
            put(offset_of!(sockaddr_in6, sin6_flowinfo), &v6.flowinfo().to_ne_bytes());
            put(offset_of!(sockaddr_in6, sin6_addr), &v6.ip().octets());
            put(offset_of!(sockaddr_in6, sin6_scope_id), &v6.scope_id().to_ne_bytes());
            size_of::<sockaddr_in6>()
        }
        Address::Path(path) => {
            put(0, &family(libc::AF_UNIX));
            put(PATH_OFFSET, path.as_os_str().as_bytes()) + 1
        }
        Address::Abstract(name) => {
            put(0, &family(libc::AF_UNIX));
            put(PATH_OFFSET + 1, name)
        }
        Address::Unnamed => put(0, &family(libc::AF_UNIX)),
    };
    (raw, size)
}
