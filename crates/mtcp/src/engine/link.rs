//! The interface of one engine: packets in and out of a device of whatever kind.

use crate::device::{Device, DeviceCounters, Transmit, Segmentation};
use mtcp_proto::{Checksum, Instant, Packet, Sink, SinkCapabilities};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

pub(crate) struct Link { device: Box<dyn Device>, addresses: Vec<IpAddr> }

impl Link {
    pub(crate) fn new(device: Box<dyn Device>, addresses: Vec<IpAddr>) -> Link { Link { device, addresses } }
    pub(crate) fn addresses(&self) -> &[IpAddr] { &self.addresses }
    pub(super) fn receive(&mut self, _now: Instant, limit: usize, take: &mut dyn FnMut(&[u8], Checksum)) -> io::Result<usize> {
        self.device.receive(limit, &mut |p, r| take(p, if r.checksum_verified { Checksum::Verified } else { Checksum::Unverified }))
    }
    pub(super) fn flush(&mut self) -> io::Result<bool> { self.device.flush() }
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> + use<> { std::iter::once(self.device.descriptor().as_raw_fd()) }
    pub(super) fn prepare_to_sleep(&mut self) -> bool { self.device.prepare_to_sleep() }
    pub(super) fn deadline(&self) -> Option<Instant> { None }
    pub(crate) fn device_counters(&self) -> DeviceCounters { self.device.counters() }
}
impl Sink for Link {
    fn capabilities(&self) -> SinkCapabilities { let c = self.device.capabilities(); SinkCapabilities { checksum: c.transmit_checksum, segmentation_bytes: c.segmentation_bytes } }
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> { self.device.room(bytes) }
    fn commit(&mut self, packet: Packet) {
        let _ : Option<Segmentation> = None;
        self.device.commit(Transmit { bytes: packet.bytes, partial_checksum: packet.partial_checksum.map(|p| (p.start, p.offset)), segmentation: None });
    }
}
