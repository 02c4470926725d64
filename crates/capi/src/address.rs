//! Converts socket addresses between C and Rust.

use crate::failure::Failure;
use channel::Address;
use libc::{c_void, sockaddr, sockaddr_storage, socklen_t};

const SIZE: Failure = Failure::invalid(
    "the size does not suit the family of the address: pass sizeof of its struct sockaddr",
);
const FAMILY: Failure = Failure::own(
    libc::EAFNOSUPPORT,
    "the family of the address is unknown: use AF_INET, AF_INET6 or AF_UNIX",
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
        let (raw, size) = address.to_sockaddr();
        if self.used == self.rooms.len() {
            self.rooms.push(Box::new(raw));
        }
        let room = &mut *self.rooms[self.used];
        *room = raw;
        self.used += 1;
        ((&raw mut *room).cast(), size as usize)
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
    match Address::from_sockaddr(raw) {
        Ok(Address::Unnamed) if raw.starts_with(&(libc::AF_UNSPEC as u16).to_ne_bytes()) => {
            Err(FAMILY)
        }
        Ok(Address::Unnamed) => Err(SIZE),
        Ok(address) => Ok(address),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(SIZE),
        Err(_) => Err(FAMILY),
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
    let (raw, bytes) = address.to_sockaddr();
    // SAFETY: the caller guarantees `*size` writable bytes, and no more of them are filled.
    unsafe {
        let room = (*size).min(bytes) as usize;
        (&raw const raw).cast::<u8>().copy_to_nonoverlapping(to.cast(), room);
        *size = bytes;
    }
    Ok(())
}
