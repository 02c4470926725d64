//! Implements one AF_XDP socket: its options, its rings, and the system calls for them.

use super::error::{XdpError, failed};
use super::interface::Interface;
use super::memory::{Frames, Mapping};
use super::rings::{Consumer, Producer};
use crate::system::{Plain, check, check_length, errno, get_option, new_socket, set_option};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes before a frame that contain instructions for the kernel (`struct xsk_tx_metadata`); the
/// frame to send follows them.
pub(super) const METADATA_BYTES: u32 = 24;
/// The socket option by which recent kernels send more than 32 frames in one system call.
const MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// How long a queue may stay busy, because the kernel closes a closed socket in the background.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Bytes that the kernel counts for a packet in flight in addition to its data; a generous
/// estimate.
const PACKET_OVERHEAD_BYTES: u32 = 2048;
const REMEDY: &str = "the kernel needs CONFIG_XDP_SOCKETS, Linux 5.10 or newer";

/// Sizes of a socket's rings: powers of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingSizes {
    pub(super) receive: u32,
    pub(super) transmit: u32,
}

/// A socket before it is bound.
#[derive(Debug)]
pub(super) struct Unbound(OwnedFd);

impl Unbound {
    pub(super) fn open() -> Result<Unbound, XdpError> {
        new_socket(libc::AF_XDP, libc::SOCK_RAW, 0)
            .map(Unbound)
            .map_err(failed("open an AF_XDP socket", REMEDY))
    }

    /// Makes the memory the UMEM of this socket; true if frames can have metadata.
    pub(super) fn register(
        &self,
        umem: &Mapping,
        frame_bytes: u32,
        metadata: bool,
    ) -> Result<bool, XdpError> {
        let mut region = libc::xdp_umem_reg {
            addr: umem.start().as_ptr() as u64,
            len: umem.bytes() as u64,
            chunk_size: frame_bytes,
            headroom: 0,
            flags: if metadata { libc::XDP_UMEM_TX_METADATA_LEN } else { 0 },
            tx_metadata_len: if metadata { METADATA_BYTES } else { 0 },
        };
        let mut granted = metadata;
        let mut result = set_xdp_option(&self.0, libc::XDP_UMEM_REG, &region);
        if metadata && is_errno(&result, libc::EINVAL) {
            // The kernel does not support metadata.
            (region.flags, region.tx_metadata_len, granted) = (0, 0, false);
            result = set_xdp_option(&self.0, libc::XDP_UMEM_REG, &region);
        }
        match result {
            Ok(()) => Ok(granted),
            Err(source) if matches!(source.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => {
                Err(XdpError::LockedMemory { bytes: umem.bytes(), source })
            }
            Err(source) => Err(failed("register memory with AF_XDP", REMEDY)(source)),
        }
    }

    /// Whether a frame may arrive in several buffers: from Linux 6.6 on.
    pub(super) fn takes_several_buffers(&self) -> bool {
        let nowhere = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_USE_SG,
            sxdp_ifindex: 0,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        // A kernel checks the flags first, and then finds that there is no such interface.
        bind(&self.0, &nowhere).is_err_and(|error| error.raw_os_error() != Some(libc::EINVAL))
    }

    /// Creates the rings, gives the kernel the first `sizes.receive` frames, and binds the socket.
    /// The UMEM is that of `first`, or this socket's own. The flags select how frames are
    /// transferred.
    pub(super) fn bind(
        self,
        interface: &Interface,
        queue: u32,
        sizes: RingSizes,
        flags: u16,
        frames: &Frames,
        first: Option<&Socket>,
    ) -> Result<Socket, XdpError> {
        let mut rings = self.rings(sizes).map_err(failed("make AF_XDP rings", REMEDY))?;
        for address in frames.addresses().take(sizes.receive as usize) {
            rings.fill.push(address);
        }
        rings.fill.publish();
        // These two options affect only the number of system calls.
        let _ = set_xdp_option(&self.0, MAX_TX_SKB_BUDGET, &sizes.transmit);
        let in_flight = sizes.transmit.saturating_mul(frames.frame_bytes() + PACKET_OVERHEAD_BYTES);
        let _ = set_option(self.0.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &in_flight);

        let mut address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_USE_NEED_WAKEUP | flags,
            sxdp_ifindex: interface.index,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        if let Some(first) = first {
            // All other flags are those of the first socket.
            address.sxdp_flags = libc::XDP_SHARED_UMEM;
            address.sxdp_shared_umem_fd = first.descriptor.as_raw_fd() as u32;
        }
        bind_retrying(&self.0, &address, interface, queue)?;
        let options: u32 = get_option(self.0.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS, 0)
            .map_err(failed("read the mode of an AF_XDP socket", REMEDY))?;
        let zero_copy = options & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(Socket { rings, descriptor: self.0, zero_copy })
    }

    fn rings(&self, sizes: RingSizes) -> io::Result<Rings> {
        for (name, count) in [
            (libc::XDP_UMEM_FILL_RING, sizes.receive),
            (libc::XDP_RX_RING, sizes.receive),
            (libc::XDP_UMEM_COMPLETION_RING, sizes.transmit),
            (libc::XDP_TX_RING, sizes.transmit),
        ] {
            set_xdp_option(&self.0, name, &count)?;
        }
        let zero = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
        let offsets = libc::xdp_mmap_offsets { rx: zero, tx: zero, fr: zero, cr: zero };
        let offsets = get_option(self.0.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, offsets)?;
        let map = |ring: &libc::xdp_ring_offset, count: u32, entry: usize, page: u64| {
            let bytes = ring.desc as usize + count as usize * entry;
            Mapping::ring(&self.0, bytes, page as libc::off_t)
        };
        let (address, packet) = (size_of::<u64>(), size_of::<libc::xdp_desc>());
        let fill = map(&offsets.fr, sizes.receive, address, libc::XDP_UMEM_PGOFF_FILL_RING)?;
        let completion =
            map(&offsets.cr, sizes.transmit, address, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
        let receive = map(&offsets.rx, sizes.receive, packet, libc::XDP_PGOFF_RX_RING as u64)?;
        let transmit = map(&offsets.tx, sizes.transmit, packet, libc::XDP_PGOFF_TX_RING as u64)?;
        Ok(Rings {
            fill: Producer::new(fill, &offsets.fr, sizes.receive),
            completion: Consumer::new(completion, &offsets.cr, sizes.transmit),
            receive: Consumer::new(receive, &offsets.rx, sizes.receive),
            transmit: Producer::new(transmit, &offsets.tx, sizes.transmit),
        })
    }
}

/// The rings of a socket, from the side of the process.
#[derive(Debug)]
pub(super) struct Rings {
    /// Frames for received data.
    pub(super) fill: Producer<u64>,
    /// Frames that were sent.
    pub(super) completion: Consumer<u64>,
    /// Frames that were received.
    pub(super) receive: Consumer<libc::xdp_desc>,
    /// Frames to send.
    pub(super) transmit: Producer<libc::xdp_desc>,
}

/// A bound socket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) rings: Rings,
    pub(super) descriptor: OwnedFd,
    pub(super) zero_copy: bool,
}

impl Socket {
    /// Makes the kernel process the transmit ring; never waits.
    pub(super) fn kick_transmit(&self) -> io::Result<()> {
        let fd = self.descriptor.as_raw_fd();
        // SAFETY: the call has neither data nor an address.
        let result = unsafe {
            libc::sendto(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        check_length(result).map(|_| ())
    }

    /// Makes the kernel process the fill ring; never waits.
    pub(super) fn kick_receive(&self) {
        let (fd, nothing) = (self.descriptor.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: the call has neither room for data nor for an address.
        unsafe {
            libc::recvfrom(
                fd,
                nothing,
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// Returns an error that occurred in the background: the interface was removed.
    pub(super) fn take_error(&self) -> io::Result<()> {
        match get_option(self.descriptor.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR, 0)? {
            0 => Ok(()),
            number => Err(errno(number)),
        }
    }

    /// The kernel's counters of the socket.
    pub(super) fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        let zero = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        get_option(self.descriptor.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS, zero)
    }
}

fn bind_retrying(
    socket: &OwnedFd,
    address: &libc::sockaddr_xdp,
    interface: &Interface,
    queue: u32,
) -> Result<(), XdpError> {
    let deadline = Instant::now() + BUSY_LIMIT;
    loop {
        let Err(source) = bind(socket, address) else { return Ok(()) };
        if source.raw_os_error() != Some(libc::EBUSY) {
            let remedy = "choose the copy mode `auto`, and switch the interface on";
            return Err(failed("bind an AF_XDP socket", remedy)(source));
        }
        if Instant::now() >= deadline {
            let interface = interface.name.clone();
            return Err(XdpError::QueueBusy { interface, queue, source });
        }
        thread::sleep(BUSY_PAUSE);
    }
}

fn bind(socket: &OwnedFd, address: &libc::sockaddr_xdp) -> io::Result<()> {
    let bytes = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the address is an initialised sockaddr_xdp of this size.
    let result = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const *address).cast::<libc::sockaddr>(), bytes)
    };
    check(result).map(drop)
}

fn is_errno(result: &io::Result<()>, errno: i32) -> bool {
    result.as_ref().is_err_and(|error| error.raw_os_error() == Some(errno))
}

// SAFETY: five integers without padding.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: sixteen integers of one size.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: six integers of one size.
unsafe impl Plain for libc::xdp_statistics {}

fn set_xdp_option<T: Plain>(socket: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_XDP, name, value)
}
