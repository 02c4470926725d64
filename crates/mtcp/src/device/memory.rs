//! Implements two devices joined by memory: what one sends, the other receives. It serves for
//! tests, for two stacks in one process, and to measure the cost of the stack without a system
//! below it.
//!
//! The device neither completes partial checksums nor cuts long frames: the other end accepts them
//! as they are, as the kernel does between two ends of a veth.

use super::frames::{self, Reader, Writer};
use super::{Capabilities, Device, DeviceCounters, Link, Received, Transmit};
use crate::system::{check, errno};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const ETHERNET_HEADER_BYTES: usize = 14;
/// Marks a frame whose checksum is partial.
const PARTIAL: u32 = 1;
/// Bytes of a message that makes a socket not writable while it is unread: more than a quarter of
/// the socket's send buffer.
const BLOCKER_BYTES: usize = 64 * 1024;
const SEND_BUFFER_BYTES: libc::c_int = 64 * 1024;

/// The settings of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The kind of frames.
    pub link: Link,
    /// The longest IP packet that is not cut.
    pub mtu: u16,
    /// Bytes of the ring of each direction, at least twice the longest frame. A small ring is fast
    /// because it stays in the cache.
    pub ring_bytes: usize,
    /// Whether partial checksums are passed on. The other end treats them as verified.
    pub transmit_checksum: bool,
    /// The longest IP packet that is passed on in one piece although it exceeds the MTU; zero for
    /// none.
    pub segmentation_bytes: u32,
}

impl Default for MemoryOptions {
    fn default() -> MemoryOptions {
        MemoryOptions {
            link: Link::Ip,
            mtu: 1500,
            ring_bytes: 256 * 1024,
            transmit_checksum: true,
            segmentation_bytes: 0,
        }
    }
}

/// One end of a pair. When the other end is dropped, the frames that it sent can still be received;
/// after them every call fails with `ENETDOWN`.
pub struct MemoryDevice {
    options: MemoryOptions,
    hardware_address: [u8; 6],
    writer: Writer,
    reader: Reader,
    /// A socket connected with the other end's. A byte makes the other end's readable. A long
    /// message that the other end has not read keeps ours from being writable.
    bell: OwnedFd,
    /// Whether there may be bytes to read from the socket.
    rung: bool,
    /// The length of the last room that was refused since the last sleep.
    refused_bytes: Option<usize>,
    counters: DeviceCounters,
}

impl MemoryDevice {
    /// Creates two devices that are joined.
    ///
    /// # Errors
    /// The errors of socketpair(2): too many open files.
    pub fn pair(options: MemoryOptions) -> io::Result<(MemoryDevice, MemoryDevice)> {
        let packet = usize::from(options.mtu).max(options.segmentation_bytes as usize);
        let longest = packet + ETHERNET_HEADER_BYTES;
        let (left_writer, right_reader) = frames::ring(options.ring_bytes, longest);
        let (right_writer, left_reader) = frames::ring(options.ring_bytes, longest);
        let (left_bell, right_bell) = bells()?;
        let end = |writer, reader, bell, last| MemoryDevice {
            options,
            hardware_address: [2, 0, 0, 0, 0, last],
            writer,
            reader,
            bell,
            rung: false,
            refused_bytes: None,
            counters: DeviceCounters::default(),
        };
        let left = end(left_writer, left_reader, left_bell, 1);
        Ok((left, end(right_writer, right_reader, right_bell, 2)))
    }

    fn frame_bytes_max(&self) -> usize {
        match self.options.link {
            Link::Ethernet => self.writer.longest(),
            Link::Ip => self.writer.longest() - ETHERNET_HEADER_BYTES,
        }
    }

    /// Makes the other end's descriptor readable or, with the length of a blocker, also makes ours
    /// not writable. If the socket is full, the other end is readable already.
    fn ring_bell(&mut self, bytes: usize) {
        static MESSAGE: [u8; BLOCKER_BYTES] = [0; BLOCKER_BYTES];
        self.counters.system_calls += 1;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message outlives the call, and `bytes` is at most its length.
        unsafe { libc::send(self.bell.as_raw_fd(), MESSAGE.as_ptr().cast(), bytes, flags) };
    }

    /// Reads all bytes that the other end has sent, which makes its descriptor writable.
    fn silence_bell(&mut self) {
        let mut sink = [0_u8; 16 * 1024];
        loop {
            self.counters.system_calls += 1;
            // SAFETY: the kernel writes at most the length of the array.
            let count = unsafe {
                let to = sink.as_mut_ptr().cast();
                libc::recv(self.bell.as_raw_fd(), to, sink.len(), libc::MSG_DONTWAIT)
            };
            if count <= 0 {
                break;
            }
        }
        self.rung = false;
    }
}

/// Creates two connected sockets.
fn bells() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut ends = [-1; 2];
    // SAFETY: the kernel writes two descriptors into the array.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    // SAFETY: both descriptors are new and have no other owner.
    let ends = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    for end in &ends {
        crate::system::set_option(
            end.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            &SEND_BUFFER_BYTES,
        )?;
    }
    Ok(ends.into())
}

impl Device for MemoryDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            link: self.options.link,
            mtu: self.options.mtu,
            transmit_checksum: self.options.transmit_checksum,
            segmentation_bytes: self.options.segmentation_bytes,
        }
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        (self.options.link == Link::Ethernet).then_some(self.hardware_address)
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        // This must precede the frames: a side that closes has published all its frames before.
        let closed = self.writer.is_closed();
        let (count, writer_waits) = self.reader.read(limit, &mut |frame, mark| {
            take(frame, Received { checksum_verified: mark & PARTIAL != 0 });
        });
        if writer_waits {
            self.silence_bell();
        }
        if closed && count == 0 && limit > 0 {
            return Err(errno(libc::ENETDOWN));
        }
        self.counters.frames_received += count as u64;
        Ok(count)
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.frame_bytes_max() {
            self.counters.transmit_drops += 1;
            return None;
        }
        let room = self.writer.room(bytes);
        if room.is_none() {
            self.refused_bytes = Some(bytes);
            self.counters.transmit_full += 1;
        }
        room
    }

    fn commit(&mut self, frame: Transmit) {
        let mark = if frame.partial_checksum.is_some() { PARTIAL } else { 0 };
        if self.writer.commit(frame.bytes, mark) {
            self.counters.frames_sent += 1;
        } else {
            self.counters.transmit_drops += 1;
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        if self.writer.publish() {
            self.ring_bell(1);
        }
        if self.writer.is_closed() { Err(errno(libc::ENETDOWN)) } else { Ok(false) }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn prepare_to_sleep(&mut self) -> bool {
        if self.rung {
            self.silence_bell();
        }
        self.rung = true;
        if let Some(bytes) = self.refused_bytes.take() {
            // The blocker is sent first, so that a reader that sees the waiting writer finds it.
            self.ring_bell(BLOCKER_BYTES);
            if !self.writer.wait_for_room(bytes) {
                return false;
            }
        }
        self.reader.prepare_to_sleep()
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}
