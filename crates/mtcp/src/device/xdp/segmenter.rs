//! Sends long frames, which the kernel cuts, through a packet socket (packet(7)) beside AF_XDP.
//!
//! In copy mode the kernel builds a packet for every sent frame, and passes it to the driver. A
//! packet socket does the same and, unlike AF_XDP, supports segmentation offload (by virtio's
//! header before the frame). For 64 KiB the kernel builds one packet instead of 45, and a virtual
//! cable (veth) carries it to the kernel at its other end in one piece.
//!
//! Only a virtual cable has a segmenter. On a network card the packets of such a socket would wait
//! in a queueing discipline and on a queue of its choice, whereas AF_XDP bypasses the former and
//! uses a fixed queue. Segments of a connection would then overtake each other. The same happens on
//! a cable with a queueing discipline, which TCP tolerates.

use super::error::{XdpError, failed};
use super::interface::Interface;
use crate::device::Transmit;
use crate::device::outgoing::{ETHERNET_HEADER_BYTES, Outgoing, PACKET_BYTES_MAX, Written};
use crate::system::{bind_packet_socket, new_socket, set_option};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes that the kernel may hold, as it counts them: many frames, so that none waits on this side.
const SEND_BUFFER_BYTES: i32 = 16 << 20;
const REMEDY: &str = "the kernel needs CONFIG_PACKET; or switch `transmit_segmentation` off";

/// The path for frames that have to be cut, or do not fit into a frame of the UMEM.
#[derive(Debug)]
pub(super) struct Segmenter {
    socket: OwnedFd,
    outgoing: Outgoing,
    /// The longest frame that is not cut.
    single_bytes: usize,
}

impl Segmenter {
    pub(super) fn open(interface: &Interface) -> Result<Segmenter, XdpError> {
        // With protocol 0, here and in the binding, the socket receives no frame.
        let socket = new_socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
            .map_err(failed("open a packet socket", REMEDY))?;
        let fd = socket.as_fd();
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1_i32)
            .map_err(failed("ask for offloads of a packet socket", REMEDY))?;
        // With a smaller buffer, frames wait more often.
        let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES);
        bind_packet_socket(fd, interface.index, 0)
            .map_err(failed("bind a packet socket", REMEDY))?;
        let single_bytes = interface.mtu as usize + ETHERNET_HEADER_BYTES;
        Ok(Segmenter { socket, outgoing: Outgoing::new(), single_bytes })
    }

    /// Whether frames of this length are always cut.
    pub(super) fn cuts(&self, bytes: usize) -> bool {
        bytes > self.single_bytes
    }

    /// Whether the last frame was not accepted yet.
    pub(super) fn is_held(&self) -> bool {
        self.outgoing.is_held()
    }

    /// Returns room as [`Outgoing::room`].
    pub(super) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.outgoing.room(bytes)
    }

    /// Completes the frame in the last room; false if the kernel cannot send it.
    pub(super) fn seal(&mut self, frame: &Transmit) -> bool {
        let cut = ETHERNET_HEADER_BYTES + PACKET_BYTES_MAX;
        let limit = if frame.segmentation.is_some() { cut } else { self.single_bytes };
        self.outgoing.seal(frame, limit)
    }

    /// Writes the frame as [`Outgoing::write`].
    pub(super) fn write(&mut self) -> io::Result<Written> {
        self.outgoing.write(self.socket.as_fd())
    }
}
