//! Puts the simulator's links around a device, in real time. Such a device is never full: frames
//! that the network cannot carry are lost.

use mtcp::device::{Capabilities, Device, DeviceCounters, Received, Transmit};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;
use testkit::link::{Impairment, Link};
use testkit::random::Random;

/// A device for Ethernet frames behind a network with the same impairment in both directions.
pub(crate) struct ImpairedDevice<D> {
    inner: D,
    origin: Instant,
    incoming: Direction,
    outgoing: Direction,
    /// The frame that is being written.
    scratch: Vec<u8>,
}

impl<D: Device> ImpairedDevice<D> {
    pub(crate) fn new(inner: D, impairment: &Impairment, seed: u64) -> ImpairedDevice<D> {
        let mut random = Random::new(seed);
        let mut direction = || Direction::new(impairment, random.fork());
        let (incoming, outgoing) = (direction(), direction());
        ImpairedDevice { inner, origin: Instant::now(), incoming, outgoing, scratch: Vec::new() }
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Passes frames that have arrived to the inner device, as long as it has room.
    fn send_due(&mut self) {
        let now_ns = self.now_ns();
        while let Some((bytes, _)) = self.outgoing.next_due(now_ns) {
            let Some(room) = self.inner.room(bytes.len()) else { return };
            room[..bytes.len()].copy_from_slice(bytes);
            self.inner.commit(Transmit { bytes: bytes.len(), ..Transmit::default() });
            self.outgoing.in_flight.pop_first();
        }
    }
}

impl<D: Device> Device for ImpairedDevice<D> {
    /// Without offloads of sent frames: the device would repair a corrupted checksum.
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { transmit_checksum: false, segmentation_bytes: 0, ..inner }
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.inner.hardware_address()
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        self.flush()?;
        let now_ns = self.now_ns();
        let incoming = &mut self.incoming;
        self.inner.receive(limit, &mut |frame, received| {
            incoming.carry(now_ns, frame, received.checksum_verified);
        })?;
        let mut count = 0;
        while count < limit
            && let Some((bytes, checksum_verified)) = incoming.next_due(now_ns)
        {
            take(bytes, Received { checksum_verified });
            incoming.in_flight.pop_first();
            count += 1;
        }
        Ok(count)
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.scratch.resize(bytes, 0);
        Some(&mut self.scratch)
    }

    fn commit(&mut self, frame: Transmit) {
        let now_ns = self.now_ns();
        self.outgoing.carry(now_ns, &self.scratch[..frame.bytes], false);
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.send_due();
        self.inner.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    /// Its engine does not sleep while frames are in flight.
    fn prepare_to_sleep(&mut self) -> bool {
        let in_flight = [&self.incoming, &self.outgoing].map(|way| way.in_flight.len());
        in_flight == [0, 0] && self.inner.prepare_to_sleep()
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

/// One direction of the network, with the frames in flight by time of arrival and number, and
/// whether their checksums are verified.
struct Direction {
    link: Link,
    in_flight: BTreeMap<(u64, u64), (Vec<u8>, bool)>,
    count: u64,
}

impl Direction {
    fn new(impairment: &Impairment, random: Random) -> Direction {
        let link = Link::of_frames(impairment.clone(), random);
        Direction { link, in_flight: BTreeMap::new(), count: 0 }
    }

    fn carry(&mut self, now_ns: u64, frame: &[u8], verified: bool) {
        let mut arrivals = Vec::new();
        self.link.carry(now_ns, frame.to_vec(), &mut arrivals);
        for arrival in arrivals {
            self.count += 1;
            let verified = verified && !arrival.corrupt;
            self.in_flight.insert((arrival.at_ns, self.count), (arrival.bytes, verified));
        }
    }

    fn next_due(&self, now_ns: u64) -> Option<(&[u8], bool)> {
        let (&(at_ns, _), (bytes, verified)) = self.in_flight.first_key_value()?;
        (at_ns <= now_ns).then_some((bytes.as_slice(), *verified))
    }
}
