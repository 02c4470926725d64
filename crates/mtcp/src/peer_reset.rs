//! Resets the connections of a program that was killed, as the kernel does for its own sockets.
//!
//! The program keeps its open connections in [`SharedConnections`], memory that it shares with a
//! process that outlives it. When the program has ended without calling
//! [`SharedConnections::mark_ended`], that process takes over the device and starts to connect from
//! each of the addresses. The peer answers the SYN with an acknowledgement of its own state (RFC
//! 9293, section 3.5.2, half-open connections; RFC 5961, section 4). The stack answers that with a
//! reset, which the peer accepts because its number is the one that the peer sent.

use crate::config::{Config, DeviceKind, Mode};
use crate::device::tap::lacks_link;
use crate::{Context, Descriptor, Family, Mtcp, StartError};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Most connections in the memory; further ones are not reset.
const RECORDS: usize = 1 << 16;
/// Connections that are reset at the same time.
const BATCH: usize = 1024;
/// How long a batch waits for the peers' answers; no SYN is repeated before.
const ANSWERS: Duration = Duration::from_millis(400);
/// How long the kernel may take to detect the link of a TAP device: it checks once a second.
const LINK: Duration = Duration::from_millis(1100);
/// How long opening the device is retried: the kernel frees it a moment after the program's end.
const DEVICE: Duration = Duration::from_secs(3);

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

    /// Stores a connection, in place of the previous one of this descriptor.
    pub fn insert(&self, descriptor: Descriptor, local: SocketAddr, remote: SocketAddr) {
        let index = descriptor.0 as usize;
        let Some(record) = self.records().get(index) else { return };
        record.family.store(0, Ordering::Release);
        for (place, name) in [local, remote].iter().enumerate() {
            record.ports[place].store(name.port(), Ordering::Relaxed);
            for (word, value) in record.addresses[place].iter().zip(words(name.ip())) {
                word.store(value, Ordering::Relaxed);
            }
        }
        self.header().end.fetch_max(index as u32 + 1, Ordering::Relaxed);
        let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        record.family.store(family as u16, Ordering::Release);
    }

    /// Removes the descriptor's connection.
    pub fn remove(&self, descriptor: Descriptor) {
        if let Some(record) = self.records().get(descriptor.0 as usize) {
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

/// Resets connections of a stack that no longer exists, from its addresses.
///
/// # Errors
/// [`StartError`] if the device cannot be opened.
pub fn reset(
    mut config: Config,
    connections: &[(SocketAddr, SocketAddr)],
) -> Result<(), StartError> {
    config.engine.mode = Mode::Complete;
    config.engine.cores = 1;
    config.stat.enabled = false;
    config.capture = None;
    config.grace = Duration::ZERO;
    let mut context = start(&config)?;
    if config.device.kind == DeviceKind::Tap {
        await_link(&config.device.interface);
    }
    for batch in connections.chunks(BATCH) {
        let attempts: Vec<Descriptor> =
            batch.iter().filter_map(|names| attempt(&mut context, *names).ok()).collect();
        wait(&mut context, ANSWERS);
        for descriptor in attempts {
            // Aborting a connection attempt sends nothing.
            let _ = context.abort(descriptor);
        }
    }
    // A peer that answers later gets a reset because no connection matches its segment.
    wait(&mut context, ANSWERS);
    Ok(())
}

fn start(config: &Config) -> Result<Context, StartError> {
    let begin = Instant::now();
    loop {
        match Mtcp::start(config.clone()).and_then(|mtcp| mtcp.context(0)) {
            Err(_) if begin.elapsed() < DEVICE => std::thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

/// Waits until the kernel sends through a TAP device again. The kernel detects up to a second later
/// that the device has an owner, and until then drops the peers' answers.
fn await_link(interface: &str) {
    let begin = Instant::now();
    // If the flags cannot be read, the connection attempts are made nevertheless.
    while matches!(lacks_link(interface), Ok(true)) && begin.elapsed() < LINK {
        std::thread::sleep(Duration::from_millis(2));
    }
    // The kernel starts the queue shortly after it sets the flag.
    std::thread::sleep(Duration::from_millis(2));
}

fn attempt(
    context: &mut Context,
    (local, remote): (SocketAddr, SocketAddr),
) -> io::Result<Descriptor> {
    let family = if local.is_ipv4() { Family::V4 } else { Family::V6 };
    let descriptor = context.socket(family)?;
    context.set_nonblocking(descriptor, true)?;
    context.set_option(descriptor, crate::SocketOption::ReuseAddress(true))?;
    context.bind(descriptor, local)?;
    match context.connect(descriptor, remote) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(descriptor),
        done => done.map(|()| descriptor),
    }
}

/// Runs the stack for some time.
fn wait(context: &mut Context, time: Duration) {
    let Ok(set) = context.epoll_create() else { return };
    let mut room = [crate::EpollEvent::default()];
    // An error means that the device is gone, and that nothing can be sent.
    let _ = context.epoll_wait(set, &mut room, Some(time));
    let _ = context.close(set);
}
