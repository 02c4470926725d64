//! Owns the memory that sendmsg(2) and recvmsg(2) use while a message with ancillary data is in
//! flight.

use super::vector::Vector;
use crate::address::{Address, RawAddress};
use crate::buffer::Buffer;
use crate::control::{self, Arrival, DESCRIPTORS_MAX};
use crate::driver::Operation;
use crate::message::Message;
use std::slice;

/// Value of a header's flags until the kernel has received something with it. The header belongs to
/// the request; the content of the application's ancillary data does not matter meanwhile.
const UNTOUCHED: libc::c_int = -1;

/// A message and its `msghdr`.
///
/// Owns the descriptors that the kernel has written into the ancillary data until they are handed
/// over. It closes those of a message that is not delivered.
pub(crate) struct Envelope {
    /// The application's message; empty if the application has its own `msghdr`, `raw`.
    message: Message,
    raw: *mut libc::msghdr,
    name: RawAddress,
    control: Vec<u8>,
    pieces: Box<Vector>,
    header: libc::msghdr,
    receives: bool,
    /// Whether the ancillary data has descriptors that are not handed over.
    armed: bool,
    /// Whether ancillary data was lost.
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

    /// Creates the envelope of a message to send with the ancillary data `control`.
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

    /// Creates the envelope of a message to receive into its spare capacity; `named` requests the
    /// sender's address.
    pub(crate) fn receiving(mut message: Message, named: bool) -> Box<Envelope> {
        let parts = &mut *message.parts;
        parts.descriptor_room = parts.descriptor_room.min(DESCRIPTORS_MAX);
        parts.address = None;
        parts.arrival = Arrival::default();
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

    /// Creates the envelope of a message whose bytes stay in the application's memory; copies
    /// everything else.
    ///
    /// # Safety
    /// `message` and what it points to must be readable, and the bytes until the envelope is
    /// dropped.
    pub(crate) unsafe fn raw_sending(message: *const libc::msghdr) -> Box<Envelope> {
        // SAFETY: the caller guarantees that the header and what it points to are readable.
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

    /// Creates the envelope of a message to receive into memory of the application.
    ///
    /// # Safety
    /// `message` and all that it points to (but not the array of pieces) must be valid for reading
    /// and writing, and otherwise unused, until the envelope is dropped.
    pub(crate) unsafe fn raw_receiving(message: *mut libc::msghdr) -> Box<Envelope> {
        // SAFETY: the caller guarantees that the header and the array are readable.
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

    /// Returns the ancillary data to send.
    pub(crate) fn control(&self) -> &[u8] {
        &self.control
    }

    /// Returns the application's `msghdr`; null if there is none.
    pub(crate) fn raw_header(&self) -> *mut libc::msghdr {
        self.raw
    }

    /// Returns the room for descriptors, if the receive failed for lack of it although its bytes
    /// arrived.
    pub(crate) fn lost_room(&self) -> Option<usize> {
        self.lost.then_some(self.message.parts.descriptor_room)
    }

    /// Ends the envelope and returns the message.
    pub(crate) fn into_message(mut self) -> Message {
        std::mem::replace(&mut self.message, Message::new(""))
    }

    /// The driver's next operation.
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

    /// Skips the sent bytes; returns true if bytes are left. The ancillary data was sent with the
    /// first byte.
    pub(super) fn advance(&mut self, bytes: usize) -> bool {
        self.header.msg_control = std::ptr::null_mut();
        self.header.msg_controllen = 0;
        self.pieces.advance(bytes);
        self.bytes_left() > 0
    }

    /// Adds what the kernel has received to the application's message or header.
    pub(super) fn commit(&mut self, bytes: usize) {
        if !self.receives {
            return;
        }
        self.lost = self.header.msg_flags & libc::MSG_CTRUNC != 0;
        if !self.raw.is_null() {
            self.armed = false;
            // SAFETY: `raw_receiving`'s caller keeps the header valid and unused until the envelope
            // is dropped.
            let header = unsafe { &mut *self.raw };
            header.msg_namelen = self.header.msg_namelen;
            header.msg_controllen = self.header.msg_controllen;
            header.msg_flags = self.header.msg_flags;
            return;
        }
        let mut brought = self.take_control();
        let parts = &mut *self.message.parts;
        if let Buffer::Owned(buffer) = &mut parts.buffer {
            // SAFETY: the kernel has filled that many bytes of the spare capacity, and the caller
            // passes no more than there is.
            unsafe { buffer.set_len(buffer.len() + bytes) };
        }
        self.lost |= brought.descriptors.len() > parts.descriptor_room;
        brought.descriptors.truncate(parts.descriptor_room);
        parts.descriptors.append(&mut brought.descriptors);
        parts.arrival = brought.arrival;
        if !self.header.msg_name.is_null() {
            let name = RawAddress::parse(self.name.as_bytes(self.header.msg_namelen));
            parts.address = name.ok().filter(|name| *name != Address::Unnamed);
        }
    }

    /// Takes the ancillary data that the kernel has written, once.
    fn take_control(&mut self) -> control::Brought {
        if !std::mem::take(&mut self.armed) || self.header.msg_flags == UNTOUCHED {
            return control::Brought::default();
        }
        let (address, bytes) = (self.header.msg_control.cast::<u8>(), self.header.msg_controllen);
        // SAFETY: the kernel has filled in the header and the ancillary data. It has no operation
        // of the request any more, and no other code has taken the descriptors.
        unsafe { control::take(view(address, bytes)) }
    }
}

impl Drop for Envelope {
    fn drop(&mut self) {
        drop(self.take_control());
    }
}

/// Returns the elements at an address as a slice.
///
/// # Safety
/// There are `count` elements, which stay in place.
unsafe fn view<'a, T>(address: *const T, count: usize) -> &'a [T] {
    if address.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees `count` readable elements that stay in place.
    unsafe { slice::from_raw_parts(address, count) }
}
