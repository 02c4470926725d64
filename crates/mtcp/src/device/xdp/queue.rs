//! Implements one receive and transmit queue of an interface as a packet device.

use super::interface::Interface;
use super::memory::Frames;
use super::partial::has_partial_checksum;
use super::segmenter::Segmenter;
use super::socket::{METADATA_BYTES, Socket};
use crate::device::outgoing::{PACKET_BYTES_MAX, Written};
use crate::device::{Capabilities, Device, DeviceCounters, Link, Received, Transmit};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

const ETHERNET_BYTES: u32 = 14;
/// Offset of a sent frame in its buffer; its metadata is before it.
const TRANSMIT_OFFSET: u32 = 32;
/// The longest frame that is assembled from several buffers: an IP packet and Ethernet with tags.
const MAX_FRAME_BYTES: usize = 65_535 + 14 + 8;
/// Number of consecutive calls without frames after which the socket is asked whether its interface
/// exists.
const QUIET_RECEIVES: u32 = 64;

/// The place of the room that was returned.
#[derive(Clone, Copy, Debug)]
enum Offered {
    /// This number of bytes of the last free frame.
    Frame(u32),
    /// The buffer for long frames, outside of the UMEM.
    Long,
    /// Memory that is not sent, because the interface is down and the ring is full.
    Discarded,
}

/// One queue of an interface, as an AF_XDP socket; created by
/// [`XdpPort::open`](super::XdpPort::open).
///
/// Received frames are in the UMEM and valid within the call of [`Device::receive`]. Afterwards
/// they return to the kernel, so that a slow application never keeps it from receiving. Sent frames
/// have a separate part of the UMEM. [`Device::flush`] costs one system call if there are frames to
/// send; in zero-copy mode often none. Dropping the device frees the queue, and the kernel receives
/// its frames again.
///
/// While the interface is down, frames wait in the ring, and are dropped when that is full.
///
/// When the interface is removed, Linux neither wakes a thread that sleeps on its AF_XDP socket,
/// nor reports it by poll(2) afterwards. [`Device::prepare_to_sleep`] detects a removal before the
/// sleep, [`Device::receive`] after at most 64 calls without frames. A thread that sleeps without a
/// limit must watch the interface with [`Watch`](crate::network::Watch).
#[derive(Debug)]
pub struct XdpDevice {
    socket: Socket,
    frames: Frames,
    capabilities: Capabilities,
    hardware_address: [u8; 6],
    /// Whether partial checksums may arrive (see `partial.rs`).
    virtual_cable: bool,
    /// Free frames for sending; the most recently used is last.
    free: Vec<u64>,
    /// The number of frames for sending.
    transmit_frames: usize,
    /// The room that was returned and not committed.
    offered: Option<Offered>,
    segmenter: Option<Segmenter>,
    assembly: Assembly,
    quiet_receives: u32,
    /// The errno that made the socket unusable.
    failure: Option<i32>,
    /// Whether the interface was down at the last kick.
    down: bool,
    /// Memory for frames that are dropped.
    discarded: Box<[u8]>,
    counters: DeviceCounters,
}

impl XdpDevice {
    /// Creates the device over a bound socket; the kernel has the first `receive_frames` frames.
    pub(super) fn new(
        socket: Socket,
        frames: Frames,
        interface: &Interface,
        receive_frames: u32,
        metadata: bool,
        segmenter: Option<Segmenter>,
    ) -> XdpDevice {
        let longest = match segmenter {
            Some(_) => PACKET_BYTES_MAX as u32,
            None => frames.frame_bytes() - TRANSMIT_OFFSET - ETHERNET_BYTES,
        };
        let capabilities = Capabilities {
            link: Link::Ethernet,
            mtu: interface.mtu.min(longest) as u16,
            // In zero-copy mode the driver would have to complete the checksum, and few do.
            transmit_checksum: metadata && !socket.zero_copy,
            segmentation_bytes: if segmenter.is_some() { PACKET_BYTES_MAX as u32 } else { 0 },
        };
        let free: Vec<u64> = frames.addresses().skip(receive_frames as usize).collect();
        XdpDevice {
            socket,
            capabilities,
            hardware_address: interface.hardware_address,
            virtual_cable: interface.virtual_cable,
            transmit_frames: free.len(),
            free,
            frames,
            offered: None,
            segmenter,
            assembly: Assembly::default(),
            quiet_receives: 0,
            failure: None,
            down: false,
            discarded: Box::default(),
            counters: DeviceCounters::default(),
        }
    }

    /// Whether frames are transferred between the driver and the UMEM without a copy.
    pub fn is_zero_copy(&self) -> bool {
        self.socket.zero_copy
    }

    /// Takes one buffer from the receive ring. True if it was the last one of a frame, which was
    /// passed on.
    fn take_buffer(
        &mut self,
        buffer: libc::xdp_desc,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> bool {
        let Some(frame) = self.frames.frame_of(buffer.addr, buffer.len) else {
            // The kernel never returns such an address; there is no frame to give back.
            self.counters.receive_drops += 1;
            return false;
        };
        // Published only after the whole batch.
        self.socket.rings.fill.push(frame);
        // SAFETY: the buffer came from the receive ring, so the kernel has passed it to us, and its
        // return is not published yet.
        let bytes = unsafe { self.frames.read(buffer.addr, buffer.len) };
        let last = buffer.options & libc::XDP_PKT_CONTD == 0;
        let frame = if last && self.assembly.is_idle() {
            Some(bytes)
        } else {
            self.assembly.add(bytes);
            if !last {
                return false;
            }
            self.assembly.complete()
        };
        if let Some(frame) = frame {
            let checksum_verified = self.virtual_cable && has_partial_checksum(frame);
            take(frame, Received { checksum_verified });
        } else {
            self.counters.receive_drops += 1;
        }
        let taken = frame.is_some();
        self.assembly.clear();
        taken
    }

    /// Takes back the frames that the kernel has sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.socket.rings.completion.pop() {
            match self.frames.frame_of(address, 0) {
                Some(frame) if self.free.len() < self.transmit_frames => self.free.push(frame),
                _ => self.counters.transmit_drops += 1,
            }
        }
        self.socket.rings.completion.release();
    }

    /// Makes the kernel send the published frames, in as many calls as this kernel needs.
    fn kick(&mut self) -> io::Result<()> {
        let mut before = self.socket.rings.transmit.pending();
        while before > 0 {
            // In copy mode the kernel reads the ring only in this call.
            if self.socket.zero_copy && !self.socket.rings.transmit.needs_wakeup() {
                return Ok(());
            }
            self.counters.system_calls += 1;
            let kicked = self.socket.kick_transmit();
            // A removed interface would give ENXIO.
            let errno = kicked.as_ref().err().and_then(io::Error::raw_os_error);
            self.down = errno == Some(libc::ENETDOWN);
            match kicked {
                _ if self.down => return Ok(()),
                Err(error) if !may_pass(&error) => return Err(self.fail(error)),
                _ => {}
            }
            let after = self.socket.rings.transmit.pending();
            if after >= before || self.socket.zero_copy {
                return Ok(());
            }
            before = after;
        }
        Ok(())
    }

    fn fail(&mut self, error: io::Error) -> io::Error {
        self.failure = error.raw_os_error();
        error
    }

    fn check(&self) -> io::Result<()> {
        self.failure.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// Called when no frame arrived: asks the socket from time to time whether the interface still
    /// exists.
    fn check_interface(&mut self) -> io::Result<()> {
        self.quiet_receives += 1;
        if self.quiet_receives < QUIET_RECEIVES {
            return Ok(());
        }
        self.quiet_receives = 0;
        self.counters.system_calls += 1;
        self.socket.take_error().map_err(|error| self.fail(error))
    }

    /// Returns room for a frame that is dropped, because the device does not wait for a ring that
    /// is stuck.
    fn discarded_room(&mut self, bytes: u32) -> &mut [u8] {
        self.offered = Some(Offered::Discarded);
        if self.discarded.is_empty() {
            self.discarded = vec![0; self.frames.frame_bytes() as usize].into_boxed_slice();
        }
        &mut self.discarded[..bytes as usize]
    }

    /// Whether the kernel can send this frame; it would stop at one that it cannot.
    fn is_sound(&self, frame: &Transmit, room: u32) -> bool {
        let fits = |(start, offset): (u16, u16)| {
            usize::from(start) + usize::from(offset) + 2 <= frame.bytes
        };
        frame.bytes >= ETHERNET_BYTES as usize
            && frame.bytes <= room as usize
            && frame
                .partial_checksum
                .is_none_or(|place| self.capabilities.transmit_checksum && fits(place))
    }

    /// Queues the frame in the room of the last free frame.
    fn commit_frame(&mut self, frame: &Transmit) {
        let Some(address) = self.free.pop() else { return };
        let address = address + u64::from(TRANSMIT_OFFSET);
        let mut options = 0;
        if let Some(place) = frame.partial_checksum {
            self.write_metadata(address, place);
            options = libc::XDP_TX_METADATA;
        }
        let descriptor = libc::xdp_desc { addr: address, len: frame.bytes as u32, options };
        // The ring has an entry for every frame, so this cannot fail.
        let queued = self.socket.rings.transmit.push(descriptor);
        debug_assert!(queued, "the transmit ring has room for all frames");
        self.counters.frames_sent += 1;
    }

    /// Sends the frame in the long buffer, after the queued ones.
    fn commit_long(&mut self, frame: &Transmit) {
        if !self.segmenter.as_mut().is_some_and(|segmenter| segmenter.seal(frame)) {
            self.counters.transmit_drops += 1;
            return;
        }
        self.socket.rings.transmit.publish();
        if self.kick().is_ok() {
            self.send_long();
        }
    }

    /// Does the same as [`XdpDevice::commit_long`] for a frame with short segments that was written
    /// into the UMEM.
    fn lengthen(&mut self, frame: &Transmit, room: u32) {
        let (Some(segmenter), Some(&from)) = (&mut self.segmenter, self.free.last()) else {
            self.counters.transmit_drops += 1;
            return;
        };
        if let Some(to) = segmenter.room(room as usize) {
            // SAFETY: the frame is free, so the kernel does not use it.
            let from = unsafe { self.frames.read(from + u64::from(TRANSMIT_OFFSET), room) };
            to.copy_from_slice(from);
        }
        self.commit_long(frame);
    }

    /// Passes the long frame in the buffer to the kernel, if there is one.
    fn send_long(&mut self) {
        let Some(segmenter) = self.segmenter.as_mut().filter(|it| it.is_held()) else { return };
        self.counters.system_calls += 1;
        match segmenter.write() {
            Ok(Written::Taken) => self.counters.frames_sent += 1,
            Ok(Written::Later) => {}
            // If the interface was removed, the AF_XDP socket reports it.
            Err(_) => self.counters.transmit_drops += 1,
        }
    }

    /// Requests the checksum of the frame at this address.
    fn write_metadata(&mut self, address: u64, (start, offset): (u16, u16)) {
        let at = address - u64::from(METADATA_BYTES);
        // SAFETY: the frame is free, so the kernel does not use it.
        let metadata = unsafe { self.frames.write(at, METADATA_BYTES) };
        metadata.fill(0);
        metadata[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
        metadata[8..10].copy_from_slice(&start.to_ne_bytes());
        metadata[10..12].copy_from_slice(&offset.to_ne_bytes());
    }
}

impl Device for XdpDevice {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        Some(self.hardware_address)
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        self.check()?;
        let (mut taken, mut buffers) = (0, 0);
        // A long frame counts as its buffers, so that the received data stays in the cache until
        // the application has read it.
        while buffers < limit || !self.assembly.is_idle() {
            let Some(buffer) = self.socket.rings.receive.pop() else { break };
            buffers += 1;
            taken += usize::from(self.take_buffer(buffer, take));
        }
        if buffers == 0 {
            self.check_interface()?;
            return Ok(0);
        }
        self.quiet_receives = 0;
        self.counters.frames_received += taken as u64;
        self.socket.rings.receive.release();
        self.socket.rings.fill.publish();
        if self.socket.zero_copy && self.socket.rings.fill.needs_wakeup() {
            self.counters.system_calls += 1;
            self.socket.kick_receive();
        }
        Ok(taken)
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.offered = None;
        let held = self.segmenter.as_ref().is_some_and(Segmenter::is_held);
        if held {
            // No later frame may overtake the long one.
            self.counters.transmit_full += 1;
            return None;
        }
        let frame_bytes = self.frames.frame_bytes() - TRANSMIT_OFFSET;
        let cut = self.segmenter.as_ref().is_some_and(|segmenter| segmenter.cuts(bytes));
        let fitting = u32::try_from(bytes).ok().filter(|&bytes| bytes <= frame_bytes && !cut);
        let Some(bytes) = fitting else {
            let room = self.segmenter.as_mut()?.room(bytes)?;
            self.offered = Some(Offered::Long);
            return Some(room);
        };
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(&frame) = self.free.last() else {
            if self.down {
                return Some(self.discarded_room(bytes));
            }
            self.counters.transmit_full += 1;
            return None;
        };
        self.offered = Some(Offered::Frame(bytes));
        // SAFETY: the frame is free, so the kernel does not use it.
        Some(unsafe { self.frames.write(frame + u64::from(TRANSMIT_OFFSET), bytes) })
    }

    fn commit(&mut self, frame: Transmit) {
        match self.offered.take() {
            Some(Offered::Long) => self.commit_long(&frame),
            Some(Offered::Frame(room)) if frame.segmentation.is_some() => {
                self.lengthen(&frame, room);
            }
            Some(Offered::Frame(room)) if self.is_sound(&frame, room) => self.commit_frame(&frame),
            _ => self.counters.transmit_drops += 1,
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.check()?;
        self.socket.rings.transmit.publish();
        let kicked = self.kick();
        self.reclaim();
        kicked?;
        self.send_long();
        let held = self.segmenter.as_ref().is_some_and(Segmenter::is_held);
        Ok(held || !self.down && self.socket.rings.transmit.pending() > 0)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.descriptor.as_fd()
    }

    fn prepare_to_sleep(&mut self) -> bool {
        if !self.socket.rings.receive.is_empty() || self.failure.is_some() {
            return false;
        }
        self.counters.system_calls += 1;
        match self.socket.take_error() {
            Ok(()) => true,
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    fn counters(&self) -> DeviceCounters {
        let mut counters = self.counters;
        if let Ok(kernel) = self.socket.statistics() {
            counters.receive_drops +=
                kernel.rx_dropped + kernel.rx_ring_full + kernel.rx_fill_ring_empty_descs;
            counters.transmit_drops += kernel.tx_invalid_descs;
        }
        counters
    }
}

/// Whether a kick that failed with this error may succeed later.
fn may_pass(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENOMEM))
}

/// A frame that arrives in several buffers.
#[derive(Debug, Default)]
struct Assembly {
    bytes: Vec<u8>,
    too_long: bool,
}

impl Assembly {
    fn is_idle(&self) -> bool {
        self.bytes.is_empty() && !self.too_long
    }

    fn add(&mut self, part: &[u8]) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(MAX_FRAME_BYTES);
        }
        if self.too_long || self.bytes.len() + part.len() > MAX_FRAME_BYTES {
            self.too_long = true;
        } else {
            self.bytes.extend_from_slice(part);
        }
    }

    /// The complete frame, unless it was too long.
    fn complete(&self) -> Option<&[u8]> {
        (!self.too_long).then_some(&self.bytes)
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.too_long = false;
    }
}
