//! One receive and transmit queue of an interface as a packet device.

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
/// Where a frame that is sent begins; in front of it lies its metadata.
const TRANSMIT_OFFSET: u32 = 32;
/// The longest frame that is put together of several buffers: an IP packet and Ethernet with tags.
const MAX_FRAME_BYTES: usize = 65_535 + 14 + 8;
/// How many times in a row nothing came before the socket is asked whether its interface exists.
const QUIET_RECEIVES: u32 = 64;

/// Where room for a frame was given.
#[derive(Clone, Copy, Debug)]
enum Offered {
    /// So many bytes of the last frame that is free.
    Frame(u32),
    /// Beside the UMEM.
    Long,
    /// In memory that is not sent: the interface is down and the ring is full.
    Discarded,
}

/// One queue of an interface, as an AF_XDP socket; made by [`XdpPort::open`](super::XdpPort::open).
///
/// Frames come in the UMEM and are valid within the call of [`Device::receive`]; then they return
/// to the kernel, so that a slow application never keeps it from receiving. Frames to be sent have
/// a part of the UMEM of their own. [`Device::flush`] costs one system call if there is something
/// to send; in zero-copy mode often none. Dropping it frees the queue: the kernel has its frames
/// again.
///
/// While the interface is down, frames wait in the ring, and are dropped when that is full.
///
/// Linux does not wake a sleeper on an AF_XDP socket whose interface goes away, nor does poll(2)
/// say so afterwards. [`Device::prepare_to_sleep`] notices before, [`Device::receive`] after at
/// most 64 calls without frames; whoever sleeps without end follows the interface with
/// [`Watch`](crate::network::Watch).
#[derive(Debug)]
pub struct XdpDevice {
    socket: Socket,
    frames: Frames,
    capabilities: Capabilities,
    hardware_address: [u8; 6],
    /// Partial checksums may come (see `partial.rs`).
    virtual_cable: bool,
    /// Frames to be sent, the warmest last.
    free: Vec<u64>,
    /// How many frames may be free at most.
    transmit_frames: usize,
    /// The room that was given and not committed.
    offered: Option<Offered>,
    segmenter: Option<Segmenter>,
    assembly: Assembly,
    quiet_receives: u32,
    /// Why the socket is dead.
    failure: Option<i32>,
    /// The interface was down at the last kick.
    down: bool,
    /// Where frames are written that are dropped.
    discarded: Box<[u8]>,
    counters: DeviceCounters,
}

impl XdpDevice {
    /// The device over a bound socket; the first `receive_frames` are with the kernel.
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
            // In zero-copy mode it is the driver that would have to, and few do.
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

    /// Frames go between the driver and the UMEM without a copy.
    pub fn is_zero_copy(&self) -> bool {
        self.socket.zero_copy
    }

    /// Takes one buffer off the receive ring; true if it was the last of a frame, which was taken.
    fn take_buffer(
        &mut self,
        buffer: libc::xdp_desc,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> bool {
        let Some(frame) = self.frames.frame_of(buffer.addr, buffer.len) else {
            // Not from the kernel that we know; there is no frame to give back.
            self.counters.receive_drops += 1;
            return false;
        };
        // Published only after the batch.
        self.socket.rings.fill.push(frame);
        // SAFETY: the buffer came off the receive ring, so the kernel has handed it over, and its
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

    /// Takes the frames back that were sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.socket.rings.completion.pop() {
            match self.frames.frame_of(address, 0) {
                Some(frame) if self.free.len() < self.transmit_frames => self.free.push(frame),
                _ => self.counters.transmit_drops += 1,
            }
        }
        self.socket.rings.completion.release();
    }

    /// Hands over what is published, in as many calls as this kernel takes for it.
    fn kick(&mut self) -> io::Result<()> {
        let mut before = self.socket.rings.transmit.pending();
        while before > 0 {
            // In copy mode nobody looks at the ring but this call.
            if self.socket.zero_copy && !self.socket.rings.transmit.needs_wakeup() {
                return Ok(());
            }
            self.counters.system_calls += 1;
            let kicked = self.socket.kick_transmit();
            // Without an interface it would be ENXIO.
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

    /// Nothing came: once in a while that is because there is no interface any more.
    fn check_interface(&mut self) -> io::Result<()> {
        self.quiet_receives += 1;
        if self.quiet_receives < QUIET_RECEIVES {
            return Ok(());
        }
        self.quiet_receives = 0;
        self.counters.system_calls += 1;
        self.socket.take_error().map_err(|error| self.fail(error))
    }

    /// Room for a frame that is dropped: a ring that does not move is not waited for.
    fn discarded_room(&mut self, bytes: u32) -> &mut [u8] {
        self.offered = Some(Offered::Discarded);
        if self.discarded.is_empty() {
            self.discarded = vec![0; self.frames.frame_bytes() as usize].into_boxed_slice();
        }
        &mut self.discarded[..bytes as usize]
    }

    /// Whether the kernel would send this frame; it stops at one that it cannot.
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

    /// Queues the frame in the room that the last free one gave.
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

    /// Sends the frame beside the UMEM, behind those that are queued.
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

    /// As [`XdpDevice::commit_long`], for a frame of short segments that was written into the UMEM.
    fn lengthen(&mut self, frame: &Transmit, room: u32) {
        let (Some(segmenter), Some(&from)) = (&mut self.segmenter, self.free.last()) else {
            self.counters.transmit_drops += 1;
            return;
        };
        if let Some(to) = segmenter.room(room as usize) {
            // SAFETY: the frame is among the free ones: the kernel does not have it.
            let from = unsafe { self.frames.read(from + u64::from(TRANSMIT_OFFSET), room) };
            to.copy_from_slice(from);
        }
        self.commit_long(frame);
    }

    /// Hands the long frame over that is held, if there is one.
    fn send_long(&mut self) {
        let Some(segmenter) = self.segmenter.as_mut().filter(|it| it.is_held()) else { return };
        self.counters.system_calls += 1;
        match segmenter.write() {
            Ok(Written::Taken) => self.counters.frames_sent += 1,
            Ok(Written::Later) => {}
            // If the interface has gone, the AF_XDP socket says so.
            Err(_) => self.counters.transmit_drops += 1,
        }
    }

    /// Asks for the checksum of the frame that begins at the address.
    fn write_metadata(&mut self, address: u64, (start, offset): (u16, u16)) {
        let at = address - u64::from(METADATA_BYTES);
        // SAFETY: the frame is among the free ones: the kernel does not have it.
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
        // A long frame counts as its buffers: what is taken at once stays in the cache until the
        // application has it.
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
            // Nothing overtakes it.
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
        // SAFETY: the frame is among the free ones: the kernel does not have it.
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

/// Whether a kick that failed with this may succeed later.
fn may_pass(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENOMEM))
}

/// A frame that comes in several buffers.
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

    /// The whole frame, unless it was too long.
    fn complete(&self) -> Option<&[u8]> {
        (!self.too_long).then_some(&self.bytes)
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.too_long = false;
    }
}
