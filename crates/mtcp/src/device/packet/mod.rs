//! Implements packet sockets (packet(7)): frames of an interface that the kernel also uses.
//!
//! This device is for addresses that the kernel does not have: the kernel receives every frame as
//! well, and answers those to its own addresses. Frames are read and written by recvmmsg(2) and
//! sendmmsg(2) and not through a shared ring. The slots of such a ring have one length, so frames
//! of 64 KiB, which segmentation offload produces, would make it long and cold in the cache. The
//! third version of the ring has no slots, but delays frames by a millisecond.
//!
//! Needs CAP_NET_RAW, and Linux 4.20 for `PACKET_IGNORE_OUTGOING`.

mod batch;
mod filter;

use self::batch::{Batch, FRAME_BYTES_MAX};
use super::offload::{self, HEADER_BYTES};
use super::{Capabilities, Device, DeviceCounters, Link, Received, Transmit};
use crate::system::{
    Plain, bind_packet_socket, check, errno, get_option, interface, new_socket, set_option,
};
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const ETHERNET_HEADER_BYTES: usize = 14;
/// Frames per system call.
const BATCH_FRAMES: usize = 64;
const FANOUT_HASH: libc::c_int = 0;
/// The kernel chooses an unused number.
const FANOUT_UNIQUE_ID: libc::c_int = 0x2000;

/// The settings of a packet socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// The interface, which must be an Ethernet or the loopback.
    pub interface: String,
    /// Number of sockets to which the kernel distributes frames by a hash of the addresses: 1 to
    /// 256.
    pub queues: u16,
    /// The kernel copies only frames for these addresses, their neighbour discovery and ARP; at
    /// most 256 addresses. If empty, it copies every frame.
    pub addresses: Vec<IpAddr>,
    /// Sends without the queueing discipline: faster, but frames are dropped when the interface is
    /// busy.
    pub bypass_qdisc: bool,
    /// Whether the kernel computes checksums and segments sent packets. Received frames are as the
    /// kernel has them: long, and without checksums, if the sender left them so.
    pub offload: bool,
    /// Bytes that may wait to be received, as the kernel counts them (SO_RCVBUF).
    pub receive_buffer_bytes: u32,
    /// Bytes that may wait to be sent, as the kernel counts them (SO_SNDBUF).
    pub send_buffer_bytes: u32,
}

impl Default for PacketOptions {
    fn default() -> PacketOptions {
        PacketOptions {
            interface: String::new(),
            queues: 1,
            addresses: Vec::new(),
            bypass_qdisc: false,
            offload: true,
            receive_buffer_bytes: 8 << 20,
            send_buffer_bytes: 2 << 20,
        }
    }
}

/// The reason why there is no packet socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The settings are out of range.
    #[error("cannot open a packet socket: {0}; correct the section [device] or [address]")]
    Options(&'static str),
    /// There is no such interface.
    #[error("cannot open the interface {name}: {source}; name one that `ip link` shows")]
    Interface {
        /// Its name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error(
        "cannot open a packet socket: {0}; it needs CAP_NET_RAW: run as root, or grant it with \
         `setcap cap_net_raw+ep PROGRAM`"
    )]
    Open(#[source] io::Error),
    /// The socket cannot be configured.
    #[error(
        "cannot {action} a packet socket: {source}; use Linux 4.20 or later with CONFIG_PACKET"
    )]
    Configure {
        /// The action that failed.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// One packet socket.
pub struct PacketDevice {
    socket: OwnedFd,
    index: i32,
    mtu: u16,
    hardware_address: [u8; 6],
    offload: bool,
    received: Batch,
    outgoing: Batch,
    /// The number of slots of `outgoing` that are sent; the queued slots follow them.
    sent: usize,
    queued: usize,
    room_bytes: Option<usize>,
    gone: bool,
    /// Frames for which the kernel had no room; the kernel resets its counter when it is read.
    kernel_drops: Cell<u64>,
    counters: DeviceCounters,
}

impl PacketDevice {
    /// Opens the sockets of an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// [`PacketError`] with cause and remedy.
    pub fn open(options: &PacketOptions) -> Result<Vec<PacketDevice>, PacketError> {
        if options.queues == 0 || options.queues > 256 {
            return Err(PacketError::Options("queues must be 1 to 256"));
        }
        if options.addresses.len() > filter::ADDRESSES_MAX {
            return Err(PacketError::Options("there are more than 256 addresses to filter"));
        }
        let mut devices = Vec::with_capacity(usize::from(options.queues));
        let mut group = FANOUT_UNIQUE_ID << 16;
        for _ in 0..options.queues {
            let device = open_queue(options)?;
            if options.queues > 1 {
                group = join(&device.socket, group)
                    .map_err(configure("share the frames of the interface with"))?;
            }
            devices.push(device);
        }
        Ok(devices)
    }

    /// Whether the interface no longer exists; one that is only down may come up again.
    fn is_gone(&mut self) -> bool {
        let mut request = interface("");
        request.ifr_ifru.ifru_ifindex = self.index;
        self.counters.system_calls += 1;
        let socket = self.socket.as_raw_fd();
        // SAFETY: the request is an initialised ifreq, which SIOCGIFNAME reads and writes.
        let outcome = unsafe { libc::ioctl(socket, libc::SIOCGIFNAME as _, &raw mut request) };
        self.gone |= check(outcome).is_err();
        self.gone
    }

    /// Sends the queued frames, as far as the kernel accepts them.
    fn send(&mut self) {
        while self.sent < self.queued {
            self.counters.system_calls += 1;
            match self.outgoing.send(self.socket.as_fd(), self.sent..self.queued) {
                Ok(count) => {
                    self.sent += count;
                    self.counters.frames_sent += count as u64;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => return,
                    Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) if self.is_gone() => {
                        self.counters.transmit_drops += (self.queued - self.sent) as u64;
                        self.sent = self.queued;
                    }
                    // The kernel refuses the first of them: ENOBUFS because a queue is full,
                    // EMSGSIZE, EINVAL.
                    _ => {
                        self.counters.transmit_drops += 1;
                        self.sent += 1;
                    }
                },
            }
        }
        (self.sent, self.queued) = (0, 0);
    }

    fn receive_batch(&mut self, limit: usize) -> io::Result<usize> {
        self.counters.system_calls += 1;
        match self.received.receive(self.socket.as_fd(), limit) {
            Ok(count) => Ok(count),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                _ if self.is_gone() => Err(errno(libc::ENXIO)),
                // The interface may come back, and a lack of memory passes.
                Some(libc::ENETDOWN | libc::ENOMEM | libc::ENOBUFS) => Ok(0),
                _ => Err(error),
            },
        }
    }
}

fn configure(action: &'static str) -> impl Fn(io::Error) -> PacketError {
    move |source| PacketError::Configure { action, source }
}

fn open_queue(options: &PacketOptions) -> Result<PacketDevice, PacketError> {
    // With protocol 0, no frame arrives before the filter is attached.
    let socket = new_socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(PacketError::Open)?;
    let (index, mtu, hardware_address) = describe(&socket, &options.interface)?;
    let fd = socket.as_fd();
    let set =
        |name, action| set_option(fd, libc::SOL_PACKET, name, &1_i32).map_err(configure(action));
    set(libc::PACKET_VNET_HDR, "ask for offloads of")?;
    set(libc::PACKET_IGNORE_OUTGOING, "leave outgoing frames out of")?;
    if options.bypass_qdisc {
        set(libc::PACKET_QDISC_BYPASS, "bypass the queueing discipline of")?;
    }
    set_buffers(fd, options).map_err(configure("set the buffers of"))?;
    attach(fd, &filter::program(&options.addresses)).map_err(configure("filter the frames of"))?;
    // Neighbour discovery uses multicast, which an interface may filter.
    let membership = Membership {
        index,
        kind: libc::PACKET_MR_ALLMULTI as u16,
        address_bytes: 0,
        address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
        .map_err(configure("ask for multicast on"))?;
    bind_packet_socket(fd, index as u32, libc::ETH_P_ALL as u16).map_err(configure("bind"))?;
    Ok(PacketDevice {
        socket,
        index,
        mtu,
        hardware_address,
        offload: options.offload,
        received: Batch::new(BATCH_FRAMES),
        outgoing: Batch::new(BATCH_FRAMES),
        sent: 0,
        queued: 0,
        room_bytes: None,
        gone: false,
        kernel_drops: Cell::new(0),
        counters: DeviceCounters::default(),
    })
}

/// Returns index, MTU and hardware address of an interface.
fn describe(socket: &OwnedFd, name: &str) -> Result<(i32, u16, [u8; 6]), PacketError> {
    let ask = |number: libc::c_ulong| {
        let mut request = interface(name);
        // SAFETY: the request is an initialised ifreq, which these calls read and write.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), number as _, &raw mut request) })
            .map(|_| request)
            .map_err(|source| PacketError::Interface { name: name.to_owned(), source })
    };
    let index = ask(libc::SIOCGIFINDEX)?;
    let mtu = ask(libc::SIOCGIFMTU)?;
    let address = ask(libc::SIOCGIFHWADDR)?;
    // SAFETY: each call has set the member that is read, for which any pattern is valid.
    let (index, mtu, address) = unsafe {
        (index.ifr_ifru.ifru_ifindex, mtu.ifr_ifru.ifru_mtu, address.ifr_ifru.ifru_hwaddr)
    };
    if ![libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sa_family) {
        return Err(PacketError::Options("the interface is neither Ethernet nor the loopback"));
    }
    let mut hardware_address = [0; 6];
    for (to, from) in hardware_address.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    // The MTU of loopback is 65,536, which no IPv4 packet has.
    Ok((index, u16::try_from(mtu).unwrap_or(u16::MAX), hardware_address))
}

fn set_buffers(socket: BorrowedFd<'_>, options: &PacketOptions) -> io::Result<()> {
    let buffers = [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.receive_buffer_bytes),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, options.send_buffer_bytes),
    ];
    for (forced, permitted, bytes) in buffers {
        // The kernel doubles the number.
        let bytes = (bytes / 2).min(i32::MAX as u32 / 2) as i32;
        // Without CAP_NET_ADMIN the kernel limits the size.
        if set_option(socket, libc::SOL_SOCKET, forced, &bytes).is_err() {
            set_option(socket, libc::SOL_SOCKET, permitted, &bytes)?;
        }
    }
    Ok(())
}

fn attach(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let bytes = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the kernel reads `len` instructions at the pointer, which is valid during the call.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const program).cast(), bytes)
    };
    check(outcome).map(|_| ())
}

/// Joins a fanout group of sockets, or creates one; returns the group for the next socket.
fn join(socket: &OwnedFd, group: libc::c_int) -> io::Result<libc::c_int> {
    let (level, name) = (libc::SOL_PACKET, libc::PACKET_FANOUT);
    set_option(socket.as_fd(), level, name, &(group | FANOUT_HASH << 16))?;
    let joined: libc::c_int = get_option(socket.as_fd(), level, name, 0)?;
    Ok(joined & 0xffff)
}

/// packet_mreq of linux/if_packet.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Membership {
    index: i32,
    kind: u16,
    address_bytes: u16,
    address: [u8; 8],
}

// SAFETY: integers without padding.
unsafe impl Plain for Membership {}

/// tpacket_stats of linux/if_packet.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Statistics {
    packets: u32,
    drops: u32,
}

// SAFETY: integers without padding.
unsafe impl Plain for Statistics {}

impl Device for PacketDevice {
    fn capabilities(&self) -> Capabilities {
        // If the interface cannot segment, the kernel does it.
        let packet_bytes_max = (FRAME_BYTES_MAX - ETHERNET_HEADER_BYTES) as u32;
        Capabilities {
            link: Link::Ethernet,
            mtu: self.mtu,
            transmit_checksum: self.offload,
            segmentation_bytes: if self.offload { packet_bytes_max } else { 0 },
        }
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        Some(self.hardware_address)
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        if self.gone {
            return Err(errno(libc::ENXIO));
        }
        let mut count = 0;
        while count < limit {
            let wanted = (limit - count).min(BATCH_FRAMES);
            let came = self.receive_batch(wanted)?;
            for slot in 0..came {
                let parts = self.received.received(slot).and_then(<[u8]>::split_first_chunk);
                let frame = parts.and_then(|(header, frame)| {
                    offload::parse(*header, frame.len()).map(|received| (frame, received))
                });
                match frame {
                    Some((frame, received)) => {
                        take(frame, received);
                        self.counters.frames_received += 1;
                    }
                    None => self.counters.receive_drops += 1,
                }
            }
            count += came;
            if came < wanted {
                break;
            }
        }
        Ok(count)
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.room_bytes = None;
        if bytes > FRAME_BYTES_MAX {
            self.counters.transmit_drops += 1;
            return None;
        }
        if self.queued == self.outgoing.slots() {
            self.send();
            if self.queued != 0 {
                self.counters.transmit_full += 1;
                return None;
            }
        }
        self.room_bytes = Some(bytes);
        Some(&mut self.outgoing.slot(self.queued)[HEADER_BYTES..HEADER_BYTES + bytes])
    }

    fn commit(&mut self, frame: Transmit) {
        let room = self.room_bytes.take().filter(|&room| frame.bytes <= room);
        let Some(header) = offload::write(&frame).filter(|_| room.is_some()) else {
            self.counters.transmit_drops += 1;
            return;
        };
        self.outgoing.slot(self.queued)[..HEADER_BYTES].copy_from_slice(&header);
        self.outgoing.set_length(self.queued, HEADER_BYTES + frame.bytes);
        self.queued += 1;
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.send();
        if self.gone { Err(errno(libc::ENXIO)) } else { Ok(self.queued != 0) }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The descriptor needs no arming: it is readable as long as there are frames.
    fn prepare_to_sleep(&mut self) -> bool {
        true
    }

    fn counters(&self) -> DeviceCounters {
        let none = Statistics { packets: 0, drops: 0 };
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        if let Ok(statistics) = get_option(self.socket.as_fd(), level, name, none) {
            self.kernel_drops.set(self.kernel_drops.get() + u64::from(statistics.drops));
        }
        let receive_drops = self.counters.receive_drops + self.kernel_drops.get();
        DeviceCounters { receive_drops, ..self.counters }
    }
}
