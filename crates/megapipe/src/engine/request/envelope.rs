//! Messages with control data on their way: the memory that sendmsg(2) and recvmsg(2) work on.

use super::vector::Vector;
use crate::address::{Address, RawAddress};
use crate::buffer::Buffer;
use crate::control::{self, DESCRIPTORS_MAX};
use crate::driver::Operation;
use crate::message::Message;
use std::slice;

/// What the flags of a header are until the kernel has received something by it. The header is the
/// request's own; what an application has in its control data meanwhile does not matter.
const UNTOUCHED: libc::c_int = -1;

/// A message and its description for the kernel.
///
/// Descriptors that the kernel has put into the control data belong to it until they are handed
/// over: those of a message that is not delivered are closed.
pub(crate) struct Envelope {
    /// The application's message; an empty one stands for its own `msghdr`, `raw`.
    message: Message,
    raw: *mut libc::msghdr,
    name: RawAddress,
    control: Vec<u8>,
    pieces: Box<Vector>,
    header: libc::msghdr,
    receives: bool,
    /// Whether descriptors that the kernel has put into the control data are not handed over.
    armed: bool,
    /// Whether some of what came beside the bytes was lost.
    lost: bool,
}

impl Envelope {
    fn new(message: Message, pieces: Vec<libc::iovec>, control: Vec<u8>) -> Box<Envelope> {
        // SAFETY: all-zero bytes are a valid `msghdr` without name, data and control.
        let header = unsafe { std::mem::zeroed() };
        let mut envelope = Box::new(Envelope {
            message,
            raw: std::ptr::null_mut(),
            name: RawAddress::room(),
            control,
            pieces: Vector::raw(pieces),
            header,
            receives: false,
            armed: false,
            lost: false,
        });
        if !envelope.control.is_empty() {
            envelope.header.msg_control = envelope.control.as_mut_ptr().cast();
            envelope.header.msg_controllen = envelope.control.len() as _;
        }
        envelope
    }

    /// A message to be sent; `control` describes what goes with its bytes.
    pub(crate) fn sending(
        message: Message,
        address: Option<RawAddress>,
        control: Vec<u8>,
    ) -> Box<Envelope> {
        let bytes = message.bytes();
        let piece =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut envelope = Envelope::new(message, vec![piece], control);
        if let Some(address) = address {
            envelope.name = address;
            envelope.show_name();
        }
        envelope
    }

    /// A message to be received into its spare capacity; `named` asks for the sender's address.
    pub(crate) fn receiving(mut message: Message, named: bool) -> Box<Envelope> {
        let parts = &mut *message.parts;
        parts.descriptor_room = parts.descriptor_room.min(DESCRIPTORS_MAX);
        parts.address = None;
        parts.packet_info = None;
        let room = control::descriptor_room(parts.descriptor_room) + control::SPARE_BYTES;
        let piece = match &mut parts.buffer {
            Buffer::Owned(bytes) => {
                let spare = bytes.spare_capacity_mut();
                libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() }
            }
            _ => libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
        };
        let mut envelope = Envelope::new(message, vec![piece], vec![0; room]);
        envelope.expect();
        if named {
            envelope.show_name();
        }
        envelope
    }

    /// A message whose bytes stay the application's; all else of it is copied.
    ///
    /// # Safety
    ///
    /// `message` and what it points to must be readable, and the bytes until the envelope ends.
    pub(crate) unsafe fn raw_sending(message: *const libc::msghdr) -> Box<Envelope> {
        // SAFETY: the caller vouches for the header and what it describes.
        let (found, pieces, control, name) = unsafe {
            let found = *message;
            let pieces = view(found.msg_iov.cast_const(), found.msg_iovlen);
            let control = view(found.msg_control.cast::<u8>().cast_const(), found.msg_controllen);
            let name = view(found.msg_name.cast::<u8>().cast_const(), found.msg_namelen as usize);
            (found, pieces.to_vec(), control.to_vec(), name)
        };
        let mut envelope = Envelope::new(Message::new(""), pieces, control);
        envelope.raw = message.cast_mut();
        if !found.msg_name.is_null() {
            envelope.name = RawAddress::copy(name);
            envelope.show_name();
        }
        envelope
    }

    /// A message that is received into memory of the application's.
    ///
    /// # Safety
    ///
    /// `message` and all that it points to (but not the array of pieces) must be valid for reading
    /// and writing, and nobody else's, until the envelope ends.
    pub(crate) unsafe fn raw_receiving(message: *mut libc::msghdr) -> Box<Envelope> {
        // SAFETY: the caller vouches for the header and the array.
        let (found, pieces) = unsafe {
            let found = *message;
            (found, view(found.msg_iov.cast_const(), found.msg_iovlen).to_vec())
        };
        let mut envelope = Envelope::new(Message::new(""), pieces, Vec::new());
        envelope.raw = message;
        envelope.expect();
        envelope.header.msg_name = found.msg_name;
        envelope.header.msg_namelen = found.msg_namelen;
        envelope.header.msg_control = found.msg_control;
        envelope.header.msg_controllen = found.msg_controllen;
        envelope
    }

    fn expect(&mut self) {
        self.receives = true;
        self.armed = true;
        self.header.msg_flags = UNTOUCHED;
    }

    fn show_name(&mut self) {
        self.header.msg_name = (&raw mut self.name.storage).cast();
        self.header.msg_namelen = self.name.bytes;
    }

    pub(crate) fn bytes_left(&self) -> usize {
        self.pieces.bytes_left()
    }

    /// The control data that is to be sent.
    pub(crate) fn control(&self) -> &[u8] {
        &self.control
    }

    /// The application's `msghdr`; null if there is none.
    pub(crate) fn raw_header(&self) -> *mut libc::msghdr {
        self.raw
    }

    /// Why the receive has failed though its bytes are there.
    pub(crate) fn lost_room(&self) -> Option<usize> {
        self.lost.then_some(self.message.parts.descriptor_room)
    }

    /// Ends the envelope.
    pub(crate) fn into_message(mut self) -> Message {
        std::mem::replace(&mut self.message, Message::new(""))
    }

    /// What the driver is to do next.
    pub(super) fn operation(&mut self) -> Operation {
        let pieces = self.pieces.rest();
        self.header.msg_iov = pieces.as_ptr().cast_mut();
        self.header.msg_iovlen = pieces.len() as _;
        if self.receives {
            Operation::ReadMessage { message: &raw mut self.header }
        } else {
            Operation::SendTo { message: &raw const self.header }
        }
    }

    /// Skips what has been sent; true if bytes are left. The control data has gone with the first
    /// of them.
    pub(super) fn advance(&mut self, bytes: usize) -> bool {
        self.header.msg_control = std::ptr::null_mut();
        self.header.msg_controllen = 0;
        self.pieces.advance(bytes);
        self.bytes_left() > 0
    }

    /// Hands over what the kernel has received.
    pub(super) fn commit(&mut self, bytes: usize) {
        if !self.receives {
            return;
        }
        self.lost = self.header.msg_flags & libc::MSG_CTRUNC != 0;
        if !self.raw.is_null() {
            self.armed = false;
            // SAFETY: the application keeps its header for the request.
            let header = unsafe { &mut *self.raw };
            header.msg_namelen = self.header.msg_namelen;
            header.msg_controllen = self.header.msg_controllen;
            header.msg_flags = self.header.msg_flags;
            return;
        }
        let mut brought = self.take_control();
        let parts = &mut *self.message.parts;
        if let Buffer::Owned(buffer) = &mut parts.buffer {
            // SAFETY: the kernel has filled that many bytes of the spare room, and the caller asks
            // for no more than there is.
            unsafe { buffer.set_len(buffer.len() + bytes) };
        }
        self.lost |= brought.descriptors.len() > parts.descriptor_room;
        brought.descriptors.truncate(parts.descriptor_room);
        parts.descriptors.append(&mut brought.descriptors);
        parts.packet_info = brought.packet_info;
        if !self.header.msg_name.is_null() {
            let name = RawAddress::parse(self.name.as_bytes(self.header.msg_namelen));
            parts.address = name.ok().filter(|name| *name != Address::Unnamed);
        }
    }

    /// Takes what the kernel has put into the control data, once.
    fn take_control(&mut self) -> control::Brought {
        if !std::mem::take(&mut self.armed) || self.header.msg_flags == UNTOUCHED {
            return control::Brought::default();
        }
        let (address, bytes) = (self.header.msg_control.cast::<u8>(), self.header.msg_controllen);
        // SAFETY: the kernel has filled the header in, and so the control data; it has nothing of
        // the request any more, and nobody else has taken the descriptors.
        unsafe { control::take(view(address, bytes)) }
    }
}

impl Drop for Envelope {
    fn drop(&mut self) {
        drop(self.take_control());
    }
}

/// The elements at an address.
///
/// # Safety
///
/// There must be that many, which stay in place.
unsafe fn view<'a, T>(address: *const T, count: usize) -> &'a [T] {
    if address.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for it.
    unsafe { slice::from_raw_parts(address, count) }
}
