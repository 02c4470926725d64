//! Defines the interface of packet devices, the trait `Device`, and implements it in its modules.

pub mod capture;
pub mod memory;
pub mod packet;
pub mod tap;
pub mod xdp;

mod frames;
mod offload;
mod outgoing;

use std::io;
use std::os::fd::BorrowedFd;

/// The kind of a device's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet II frame.
    Ethernet,
    /// An IP packet without a link-layer header.
    Ip,
}

/// The capabilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kind of its frames.
    pub link: Link,
    /// The longest IP packet, in bytes.
    pub mtu: u16,
    /// Whether it completes partial checksums of sent frames.
    pub transmit_checksum: bool,
    /// The longest IP packet that it cuts into segments by itself; zero if it does not.
    pub segmentation_bytes: u32,
}

/// The device's information about a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The transport checksum was verified, or the frame never left this machine.
    pub checksum_verified: bool,
}

/// The device's instructions for a frame to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes of the frame.
    pub bytes: usize,
    /// If `Some`, the transport checksum is that of the pseudo-header and has to be completed: the
    /// offset in the frame at which the sum starts, and the offset from there at which it is
    /// stored.
    pub partial_checksum: Option<(u16, u16)>,
    /// If `Some`, the device cuts the frame into segments.
    pub segmentation: Option<Segmentation>,
}

/// How a device cuts a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Bytes of TCP payload in each segment but the last.
    pub segment_bytes: u16,
    /// Bytes of all headers, including TCP's.
    pub header_bytes: u16,
    /// Whether the packet is IPv6.
    pub ipv6: bool,
}

/// Counters of a device since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Received frames.
    pub frames_received: u64,
    /// Sent frames.
    pub frames_sent: u64,
    /// Received frames that were dropped: too long, cut off, no room.
    pub receive_drops: u64,
    /// Frames that the system refused.
    pub transmit_drops: u64,
    /// Frames for which there was no room at the time.
    pub transmit_full: u64,
    /// System calls.
    pub system_calls: u64,
}

/// One queue of a packet device; it belongs to one thread.
///
/// A caller sends frames with `room`, a write into it, and `commit` for each frame, and then one
/// `flush`.
pub trait Device: Send {
    /// The capabilities of the device.
    fn capabilities(&self) -> Capabilities;

    /// Its hardware address, on Ethernet.
    fn hardware_address(&self) -> Option<[u8; 6]>;

    /// Receives at most `limit` available frames, without waiting, and passes each to `take`; the
    /// frame is valid during that call. Returns their number.
    ///
    /// # Errors
    /// Only errors that are permanent: the device is gone (`ENXIO`, `ENETDOWN`), or the system
    /// refuses to read it.
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8], Received))
    -> io::Result<usize>;

    /// Returns room for one frame of at most `bytes`; `None` if the device is full, or never takes
    /// so many. Without a `commit` the next call returns the same room.
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Queues the frame that was written into the last room.
    fn commit(&mut self, frame: Transmit);

    /// Passes queued frames to the system, all at once. Frames that the system does not accept now
    /// stay queued; true if there are any.
    ///
    /// # Errors
    /// As [`Device::receive`].
    fn flush(&mut self) -> io::Result<bool>;

    /// A descriptor that becomes readable when frames arrive, once [`Device::prepare_to_sleep`] has
    /// returned true, and writable when a full device has room again.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Arms the descriptor. False if there are frames, and the caller must not sleep.
    fn prepare_to_sleep(&mut self) -> bool;

    /// The counters since the creation.
    fn counters(&self) -> DeviceCounters;
}
