//! Resets the connections of a program that was killed, as the kernel ends those of its sockets.
//!
//! The program keeps its open connections in [`SharedConnections`], memory that it shares with a
//! process that outlives it. When the program has ended without saying so, that process takes the
//! device and begins to connect from each of the addresses: the peer answers the SYN with an
//! acknowledgement of what it has (RFC 9293, section 3.5.2, half-open connections; RFC 5961,
//! section 4), and the stack answers that with a reset that the peer accepts, because its number is
//! the peer's own.

use crate::config::{Config, DeviceKind, Mode};
use crate::device::tap::lacks_link;
use crate::{Context, Descriptor, Family, Mtcp, StartError};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Connections that the memory has room for; further ones are not reset.
const RECORDS: usize = 1 << 16;
/// Connections that are reset at once.
const BATCH: usize = 1024;
/// How long a batch waits for the peers' answers; the SYN is not repeated before.
const ANSWERS: Duration = Duration::from_millis(400);
/// How long the kernel may take to notice the link of a TAP device: it looks once a second.
const LINK: Duration = Duration::from_millis(1100);
/// How long the device is tried: the kernel frees it a moment after the program's end.
const DEVICE: Duration = Duration::from_secs(3);

/// The memory's first bytes.
#[repr(C)]
struct Header {
    /// The program has ended by itself.
    ended: AtomicU32,
    /// No record from here on was ever used.
    end: AtomicU32,
}

/// One connection. The record counts once `family` is set, and no more once it is zero.
#[repr(C)]
struct Record {
    family: AtomicU16,
    ports: [AtomicU16; 2],
    /// The local address and the peer's; the first word alone is an IPv4 address.
    addresses: [[AtomicU32; 4]; 2],
}

const BYTES: usize = size_of::<Header>() + RECORDS * size_of::<Record>();

/// The open connections of a program, in memory that is shared by a descriptor.
pub struct SharedConnections {
    memory: NonNull<u8>,
}

// SAFETY: all that is shared are atomics.
unsafe impl Send for SharedConnections {}
// SAFETY: as above.
unsafe impl Sync for SharedConnections {}

impl SharedConnections {
    /// Empty memory, and what another process opens it by.
    ///
    /// # Errors
    /// Of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn new() -> io::Result<(SharedConnections, OwnedFd)> {
        // SAFETY: the name ends with zero.
        let fd = unsafe { libc::memfd_create(c"mtcp-connections".as_ptr(), libc::MFD_CLOEXEC) };
        let descriptor = owned(fd)?;
        // SAFETY: plain numbers.
        if unsafe { libc::ftruncate(descriptor.as_raw_fd(), BYTES as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((SharedConnections::open(&descriptor)?, descriptor))
    }

    /// The memory of another process.
    ///
    /// # Errors
    /// Of fstat(2) and mmap(2); `EINVAL`: it is none.
    pub fn open(descriptor: &OwnedFd) -> io::Result<SharedConnections> {
        // SAFETY: a structure of plain data, which fstat fills.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is valid.
        if unsafe { libc::fstat(descriptor.as_raw_fd(), &raw mut status) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if usize::try_from(status.st_size) != Ok(BYTES) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, descriptor.as_raw_fd());
        // SAFETY: new memory, wherever the kernel likes, of the descriptor's size.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, fd, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedConnections { memory })
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory begins with it and lives as long as `self`; zero is valid.
        unsafe { self.memory.cast::<Header>().as_ref() }
    }

    fn records(&self) -> &[Record] {
        // SAFETY: so many records follow the header.
        unsafe {
            let first = self.memory.add(size_of::<Header>()).cast::<Record>();
            std::slice::from_raw_parts(first.as_ptr(), RECORDS)
        }
    }

    /// Inserts a connection in place of what the descriptor had.
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

    /// Notes that the program ends by itself, and that the stack has closed its connections.
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
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
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
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Resets connections of a stack that is no more, from its addresses.
///
/// # Errors
/// [`StartError`]: the device cannot be had.
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

/// Waits until the kernel sends through a TAP device again: it notices up to a second later that
/// the device has an owner, and drops the peers' answers before.
fn await_link(interface: &str) {
    let begin = Instant::now();
    // Where the flags cannot be read, the attempts are made all the same.
    while matches!(lacks_link(interface), Ok(true)) && begin.elapsed() < LINK {
        std::thread::sleep(Duration::from_millis(2));
    }
    // The queue follows the flag.
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

/// Moves the stack for some time.
fn wait(context: &mut Context, time: Duration) {
    let Ok(set) = context.epoll_create() else { return };
    let mut room = [crate::EpollEvent::default()];
    // The device may have gone: then nothing can be sent.
    let _ = context.epoll_wait(set, &mut room, Some(time));
    let _ = context.close(set);
}
