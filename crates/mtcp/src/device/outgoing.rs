//! Buffers one frame of up to 64 KiB, after virtio's header, for a device that takes one frame for
//! each write(2).

use super::Transmit;
use super::offload::{self, HEADER_BYTES};
use crate::system::check_length;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The longest packet of IPv4. Longer packets (jumbograms) are never sent.
pub(super) const PACKET_BYTES_MAX: usize = 65_535;
pub(super) const ETHERNET_HEADER_BYTES: usize = 14;
/// The longest frame with its header.
pub(super) const BUFFER_BYTES: usize = HEADER_BYTES + ETHERNET_HEADER_BYTES + PACKET_BYTES_MAX;

/// The result of writing the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The kernel has accepted it.
    Taken,
    /// The kernel cannot accept it now; until then there is no room for another one.
    Later,
}

/// One buffer, which stays in the cache because a frame is written as soon as it is complete.
#[derive(Debug)]
pub(super) struct Outgoing {
    memory: Box<[u8]>,
    room_bytes: Option<usize>,
    /// Bytes, including the header, of the frame that has still to be written.
    held_bytes: Option<usize>,
}

impl Outgoing {
    pub(super) fn new() -> Outgoing {
        let memory = vec![0; BUFFER_BYTES].into_boxed_slice();
        Outgoing { memory, room_bytes: None, held_bytes: None }
    }

    /// Whether the last frame is still in the buffer.
    pub(super) fn is_held(&self) -> bool {
        self.held_bytes.is_some()
    }

    /// Returns room for a frame; `None` while another is held, and for one that is too long.
    pub(super) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.room_bytes = None;
        if self.is_held() || bytes > BUFFER_BYTES - HEADER_BYTES {
            return None;
        }
        self.room_bytes = Some(bytes);
        Some(&mut self.memory[HEADER_BYTES..HEADER_BYTES + bytes])
    }

    /// Adds the header to the frame in the last room; false if the frame is longer than the room or
    /// `limit_bytes`, or an offset is outside of it.
    pub(super) fn seal(&mut self, frame: &Transmit, limit_bytes: usize) -> bool {
        let Some(room) = self.room_bytes.take() else { return false };
        let header = offload::write(frame).filter(|_| frame.bytes <= room.min(limit_bytes));
        let Some(header) = header else { return false };
        self.memory[..HEADER_BYTES].copy_from_slice(&header);
        self.held_bytes = Some(HEADER_BYTES + frame.bytes);
        true
    }

    /// Writes the frame in the buffer to a non-blocking descriptor.
    ///
    /// # Errors
    /// The kernel's reason for refusing the frame, which is then dropped.
    pub(super) fn write(&mut self, to: BorrowedFd<'_>) -> io::Result<Written> {
        let Some(bytes) = self.held_bytes.take() else { return Ok(Written::Taken) };
        let frame = &self.memory[..bytes];
        // SAFETY: the kernel reads the bytes of the slice.
        let outcome = unsafe { libc::write(to.as_raw_fd(), frame.as_ptr().cast(), frame.len()) };
        match check_length(outcome) {
            Ok(_) => Ok(Written::Taken),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
                self.held_bytes = Some(bytes);
                Ok(Written::Later)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_frame_is_kept_until_it_is_taken() {
        let (near, far) = UnixDatagram::pair().expect("sockets");
        near.set_nonblocking(true).expect("it is set");
        let mut outgoing = Outgoing::new();
        let mut sent = 0_u32;
        loop {
            outgoing.room(100).expect("nothing is held").fill(sent as u8);
            let frame = Transmit { bytes: 100, ..Transmit::default() };
            assert!(outgoing.seal(&frame, 100));
            if outgoing.write(near.as_fd()).expect("the peer is there") == Written::Later {
                break;
            }
            sent += 1;
        }
        assert!(outgoing.is_held() && outgoing.room(100).is_none());
        for number in 0..=sent {
            let mut frame = [0; 200];
            let bytes = far.recv(&mut frame).expect("a frame");
            assert_eq!(bytes, HEADER_BYTES + 100);
            assert_eq!(frame[HEADER_BYTES..bytes], [number as u8; 100]);
            assert_eq!(outgoing.write(near.as_fd()).expect("room"), Written::Taken);
        }
        drop(far);
        outgoing.room(60).expect("nothing is held").fill(0);
        assert!(outgoing.seal(&Transmit { bytes: 60, ..Transmit::default() }, 100));
        assert!(outgoing.write(near.as_fd()).is_err());
        assert!(!outgoing.is_held(), "a refused frame is gone");
    }

    #[test]
    fn only_what_fits_is_sealed() {
        let (near, mut far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let mut outgoing = Outgoing::new();
        let frame = |bytes| Transmit { bytes, ..Transmit::default() };
        assert!(!outgoing.seal(&frame(60), 100), "without room");
        assert!(outgoing.room(BUFFER_BYTES).is_none(), "longer than any frame");
        assert!(outgoing.room(60).is_some() && !outgoing.seal(&frame(61), 100));
        assert!(outgoing.room(60).is_some() && !outgoing.seal(&frame(60), 59));
        let outside = Transmit { partial_checksum: Some((50, 16)), ..frame(60) };
        assert!(outgoing.room(60).is_some() && !outgoing.seal(&outside, 100));
        assert_eq!(outgoing.write(near.as_fd()).expect("nothing to do"), Written::Taken);
        drop(near);
        assert_eq!(far.read(&mut [0; 8]).expect("the end"), 0);
    }
}
