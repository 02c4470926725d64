//! Defines how packets pass between a stack and a device: checksum state, offloads, and the trait
//! `Sink`.

use std::net::IpAddr;

/// What is known about the checksums of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: the stack verifies them.
    Unverified,
    /// The device has verified them, or the packet never left the machine.
    Verified,
    /// The packet was looped back from this stack or another core's: the checksum may be partial,
    /// and the source is one of the stack's addresses.
    Looped,
}

/// A packet that the stack has written into the memory of a [`Sink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its length, from the IP header on.
    pub bytes: usize,
    /// The IP destination, whose next hop the device must find.
    pub destination: IpAddr,
    /// If `Some`, the transport checksum is only that of the pseudo-header, and the device
    /// completes it; used only if [`SinkCapabilities::checksum`] is set.
    pub partial_checksum: Option<PartialChecksum>,
    /// If `Some`, the device cuts the packet into segments with this number of bytes of TCP
    /// payload; used only within [`SinkCapabilities::segmentation_bytes`]. Its checksum is then
    /// partial.
    pub segment_bytes: Option<u16>,
}

/// The position of a checksum to complete (as in virtio's header).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// The first byte that is summed, from the beginning of the IP header.
    pub start: u16,
    /// Offset from `start` at which the sum is stored.
    pub offset: u16,
}

/// The offloads of a device for outgoing packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCapabilities {
    /// Whether the device completes partial checksums.
    pub checksum: bool,
    /// The longest packet that it cuts into segments by itself; zero if it does not.
    pub segmentation_bytes: u32,
}

/// Takes outgoing packets.
pub trait Sink {
    /// The offloads of the device.
    fn capabilities(&self) -> SinkCapabilities;

    /// Returns a buffer for one packet of at most `bytes`, or `None` if the device is full. If
    /// nothing was committed since the last call, it is the same buffer.
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Sends the packet that was written into the last buffer.
    fn commit(&mut self, packet: Packet);
}
