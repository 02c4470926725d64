//! Where packets come from and go to, behind one trait.

pub mod capture;
pub mod impaired;
pub mod memory;
pub mod packet;
pub mod tap;
pub mod xdp;

mod frames;
mod offload;
mod outgoing;

use std::io;
use std::os::fd::BorrowedFd;

/// What a frame is on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet II frame.
    Ethernet,
    /// An IP packet without anything around it.
    Ip,
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What its frames are.
    pub link: Link,
    /// The longest IP packet, in bytes.
    pub mtu: u16,
    /// It completes partial checksums of what is sent.
    pub transmit_checksum: bool,
    /// The longest IP packet that it cuts into segments by itself; zero if it does not.
    pub segmentation_bytes: u32,
}

/// What a device says about a frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The transport checksum was verified, or the frame never left this machine.
    pub checksum_verified: bool,
}

/// What a device needs to know about a frame that is to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes of the frame.
    pub bytes: usize,
    /// The transport checksum is that of the pseudo-header and is to be completed: where summing
    /// starts, from the beginning of the frame, and where the sum goes, from there.
    pub partial_checksum: Option<(u16, u16)>,
    /// Cut into segments of so many bytes of TCP payload.
    pub segmentation: Option<Segmentation>,
}

/// How a device cuts a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Bytes of TCP payload in each segment but the last.
    pub segment_bytes: u16,
    /// Bytes of all headers, up to and with TCP's.
    pub header_bytes: u16,
    /// Whether it is IPv6.
    pub ipv6: bool,
}

/// What a device has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Frames that came.
    pub frames_received: u64,
    /// Frames that were sent.
    pub frames_sent: u64,
    /// Frames that came and could not be taken: too long, cut off, no room.
    pub receive_drops: u64,
    /// Frames that the system refused.
    pub transmit_drops: u64,
    /// Frames for which there was no room at the moment.
    pub transmit_full: u64,
    /// System calls.
    pub system_calls: u64,
}

/// One queue of a packet device; it belongs to one thread.
///
/// Sending is `room`, write, `commit`, for as many frames as there are, then one `flush`.
pub trait Device: Send {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Its hardware address, on Ethernet.
    fn hardware_address(&self) -> Option<[u8; 6]>;

    /// Takes at most `limit` frames that are there, without waiting; each is valid for the length
    /// of its call. Gives their number.
    ///
    /// # Errors
    /// Only what cannot pass: the device is gone (`ENXIO`, `ENETDOWN`).
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8], Received))
    -> io::Result<usize>;

    /// Room for one frame of at most `bytes`; `None` if the device is full, or never takes so many.
    /// Without a `commit` the next call gives the same room.
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Queues the frame that was written into the last room.
    fn commit(&mut self, frame: Transmit);

    /// Hands queued frames to the system, once for all of them. Frames that the system does not
    /// take now stay queued: true if there are any.
    ///
    /// # Errors
    /// As [`Device::receive`].
    fn flush(&mut self) -> io::Result<bool>;

    /// Becomes readable when frames come, once [`Device::prepare_to_sleep`] has said that none are
    /// there; writable when a full device has room again.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Arms the descriptor; false if frames are there, and the caller must not sleep.
    fn prepare_to_sleep(&mut self) -> bool;

    /// What has been counted.
    fn counters(&self) -> DeviceCounters;
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        (**self).hardware_address()
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        (**self).receive(limit, take)
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        (**self).room(bytes)
    }

    fn commit(&mut self, frame: Transmit) {
        (**self).commit(frame);
    }

    fn flush(&mut self) -> io::Result<bool> {
        (**self).flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        (**self).descriptor()
    }

    fn prepare_to_sleep(&mut self) -> bool {
        (**self).prepare_to_sleep()
    }

    fn counters(&self) -> DeviceCounters {
        (**self).counters()
    }
}
