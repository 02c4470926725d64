//! Lists the open connections of a stack in memory that another process can read, also after this
//! process was killed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Most connections in the memory; further ones are not listed.
const RECORDS: usize = 1 << 16;

/// The first bytes of the memory.
#[repr(C)]
struct Header {
    /// Nonzero if the program has ended by itself.
    ended: AtomicU32,
    /// Index from which on no record was ever used.
    end: AtomicU32,
}

/// One connection. The record is valid while `family` is not zero.
#[repr(C)]
struct Record {
    family: AtomicU16,
    ports: [AtomicU16; 2],
    /// The local address and the peer's; an IPv4 address is in the first word.
    addresses: [[AtomicU32; 4]; 2],
}

const BYTES: usize = size_of::<Header>() + RECORDS * size_of::<Record>();

/// The open connections of a program, in memory that processes share through a descriptor.
pub struct SharedConnections {
    memory: NonNull<u8>,
}

// SAFETY: the shared memory contains only atomics.
unsafe impl Send for SharedConnections {}
// SAFETY: the shared memory contains only atomics.
unsafe impl Sync for SharedConnections {}

impl SharedConnections {
    /// Creates empty memory; returns it with the descriptor by which another process opens it.
    ///
    /// # Errors
    /// The errors of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn new() -> io::Result<(SharedConnections, OwnedFd)> {
        // SAFETY: the name ends with zero.
        let fd = unsafe { libc::memfd_create(c"mtcp-connections".as_ptr(), libc::MFD_CLOEXEC) };
        let descriptor = owned(fd)?;
        // SAFETY: ftruncate takes only numbers.
        if unsafe { libc::ftruncate(descriptor.as_raw_fd(), BYTES as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((SharedConnections::open(&descriptor)?, descriptor))
    }

    /// Opens the memory that another process has created.
    ///
    /// # Errors
    /// The errors of fstat(2) and mmap(2); `EINVAL` if the descriptor is of another kind.
    pub fn open(descriptor: &OwnedFd) -> io::Result<SharedConnections> {
        // SAFETY: stat is plain data, for which all zeros is valid; fstat fills it.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a valid structure, which fstat writes.
        if unsafe { libc::fstat(descriptor.as_raw_fd(), &raw mut status) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if usize::try_from(status.st_size) != Ok(BYTES) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, descriptor.as_raw_fd());
        // SAFETY: a new mapping of the descriptor's size, at an address that the kernel chooses.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, fd, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedConnections { memory })
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory begins with a header and lives as long as `self`; zeros are a valid
        // header.
        unsafe { self.memory.cast::<Header>().as_ref() }
    }

    fn records(&self) -> &[Record] {
        // SAFETY: `RECORDS` records follow the header in the memory.
        unsafe {
            let first = self.memory.add(size_of::<Header>()).cast::<Record>();
            std::slice::from_raw_parts(first.as_ptr(), RECORDS)
        }
    }

    /// Stores the connection of the stack's socket with this index, in place of the previous one.
    pub(crate) fn insert(&self, index: u32, local: SocketAddr, remote: SocketAddr) {
        let Some(record) = self.records().get(index as usize) else { return };
        record.family.store(0, Ordering::Release);
        for (place, name) in [local, remote].iter().enumerate() {
            record.ports[place].store(name.port(), Ordering::Relaxed);
            for (word, value) in record.addresses[place].iter().zip(words(name.ip())) {
                word.store(value, Ordering::Relaxed);
            }
        }
        self.header().end.fetch_max(index + 1, Ordering::Relaxed);
        let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        record.family.store(family as u16, Ordering::Release);
    }

    /// Removes the connection of the socket with this index.
    pub(crate) fn remove(&self, index: u32) {
        if let Some(record) = self.records().get(index as usize) {
            record.family.store(0, Ordering::Release);
        }
    }

    /// Records that the program ends by itself and that the stack has closed its connections.
    pub fn mark_ended(&self) {
        self.header().ended.store(1, Ordering::Release);
    }

    /// The connections whose peers must be reset; none if the program has ended by itself.
    pub fn connections(&self) -> Vec<(SocketAddr, SocketAddr)> {
        if self.header().ended.load(Ordering::Acquire) != 0 {
            return Vec::new();
        }
        let end = (self.header().end.load(Ordering::Relaxed) as usize).min(RECORDS);
        self.records()[..end].iter().filter_map(Record::names).collect()
    }
}

impl Drop for SharedConnections {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), BYTES) };
    }
}

impl std::fmt::Debug for SharedConnections {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SharedConnections").finish_non_exhaustive()
    }
}

impl Record {
    fn names(&self) -> Option<(SocketAddr, SocketAddr)> {
        let family = i32::from(self.family.load(Ordering::Acquire));
        let name = |place: usize| {
            let words: [u32; 4] =
                std::array::from_fn(|word| self.addresses[place][word].load(Ordering::Relaxed));
            let ip: IpAddr = match family {
                libc::AF_INET => IpAddr::V4(words[0].into()),
                libc::AF_INET6 => {
                    let bits = words.iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
                    IpAddr::V6(bits.into())
                }
                _ => return None,
            };
            Some(SocketAddr::new(ip, self.ports[place].load(Ordering::Relaxed)))
        };
        Some((name(0)?, name(1)?))
    }
}

fn words(ip: IpAddr) -> [u32; 4] {
    match ip {
        IpAddr::V4(ip) => [ip.to_bits(), 0, 0, 0],
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            [bits >> 96, bits >> 64, bits >> 32, bits].map(|word| word as u32)
        }
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
