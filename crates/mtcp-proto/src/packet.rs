//! Packets between a stack and its device: what is known of them, and where they go.

use std::net::IpAddr;

/// What is known about the checksums of a packet that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: the stack verifies them.
    Unverified,
    /// The device has verified them, or the packet never left the machine.
    Verified,
    /// The packet is one of this stack's, or of another core's, that was looped back: the checksum
    /// may be partial, and the source is one of the stack's addresses.
    Looped,
}

/// A packet that the stack has written into the memory of a [`Sink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its length, from the IP header on.
    pub bytes: usize,
    /// The IP destination, whose next hop the device must find.
    pub destination: IpAddr,
    /// If `Some`, the transport checksum is that of the pseudo-header only, and whoever sends the
    /// packet completes it; given only where [`SinkCapabilities::checksum`] allows it.
    pub partial_checksum: Option<PartialChecksum>,
    /// If `Some`, the packet is to be cut into segments with so many bytes of TCP payload; given
    /// only within [`SinkCapabilities::segmentation_bytes`]. Its checksum is then partial.
    pub segment_bytes: Option<u16>,
}

/// Where a checksum is to be completed (as virtio's header has it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// The first byte that is summed, from the beginning of the IP header.
    pub start: u16,
    /// Where the sum goes, from `start`.
    pub offset: u16,
}

/// What a device does with packets on their way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCapabilities {
    /// It completes partial checksums.
    pub checksum: bool,
    /// The longest packet that it cuts into segments by itself; zero if it does not.
    pub segmentation_bytes: u32,
}

/// Where packets go.
pub trait Sink {
    /// What the device does.
    fn capabilities(&self) -> SinkCapabilities;

    /// Room for one packet of at most `bytes`; the same room again if nothing was committed. `None`
    /// if the device is full.
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Sends the packet that was written into the last room.
    fn commit(&mut self, packet: Packet);
}
