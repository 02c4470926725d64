//! Defines the memory of requests with several buffers, and of datagrams with their addresses.

use crate::address::RawAddress;
use crate::buffer::Buffer;
use crate::driver::Operation;
use crate::source::Kind;
use std::mem;

/// The buffers of a vectored read or write and their `iovec` array.
pub(crate) struct Vector {
    pub(crate) reads: Vec<Vec<u8>>,
    pub(crate) writes: Vec<Buffer>,
    vectors: Vec<libc::iovec>,
    /// How many buffers of `vectors` are complete.
    done: usize,
    header: libc::msghdr,
}

/// A datagram to send, and its address.
pub(crate) struct AddressedBuffer {
    address: RawAddress,
    pub(crate) buffer: Buffer,
    vector: libc::iovec,
    header: libc::msghdr,
}

fn empty_header() -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid `msghdr` without name, data and control.
    unsafe { mem::zeroed() }
}

impl Vector {
    pub(crate) fn reading(mut reads: Vec<Vec<u8>>) -> Box<Vector> {
        let vectors = reads.iter_mut().map(|bytes| {
            let room = bytes.spare_capacity_mut();
            libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }
        });
        let vectors = vectors.collect();
        Box::new(Vector { reads, writes: Vec::new(), vectors, done: 0, header: empty_header() })
    }

    pub(crate) fn writing(writes: Vec<Buffer>) -> Box<Vector> {
        let vectors = writes.iter().map(|bytes| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
        let vectors = vectors.collect();
        Box::new(Vector { reads: Vec::new(), writes, vectors, done: 0, header: empty_header() })
    }

    /// Creates a vector of buffers in memory of the application.
    pub(crate) fn raw(vectors: Vec<libc::iovec>) -> Box<Vector> {
        let (reads, writes) = (Vec::new(), Vec::new());
        Box::new(Vector { reads, writes, vectors, done: 0, header: empty_header() })
    }

    /// Returns the buffers that are still to be filled or written.
    pub(crate) fn rest(&self) -> &[libc::iovec] {
        &self.vectors[self.done..]
    }

    pub(crate) fn bytes_left(&self) -> usize {
        self.rest().iter().map(|vector| vector.iov_len).sum()
    }

    /// The driver's next operation.
    pub(super) fn operation(&mut self, kind: Kind, writes: bool, offset: u64) -> Operation {
        let left = &mut self.vectors[self.done..];
        let (vector, count) = (left.as_mut_ptr(), left.len());
        let as_message = kind == Kind::Stream && writes || kind.keeps_bounds();
        if as_message {
            self.header.msg_iov = vector;
            self.header.msg_iovlen = count;
        }
        match (as_message, writes) {
            (true, true) => Operation::SendTo { message: &raw const self.header },
            (true, false) => Operation::ReadMessage { message: &raw mut self.header },
            (false, true) => Operation::WriteVectored { vector, count: count as u32, offset },
            (false, false) => Operation::ReadVectored { vector, count: count as u32, offset },
        }
    }

    /// Skips the written bytes.
    pub(super) fn advance(&mut self, mut bytes: usize) {
        for vector in &mut self.vectors[self.done..] {
            let step = bytes.min(vector.iov_len);
            vector.iov_base = vector.iov_base.wrapping_byte_add(step);
            vector.iov_len -= step;
            bytes -= step;
            if vector.iov_len > 0 {
                break;
            }
            self.done += 1;
        }
    }

    /// Extends the vectors by the bytes that the kernel has appended.
    pub(super) fn commit_reads(&mut self, mut bytes: usize) {
        for read in &mut self.reads {
            let step = bytes.min(read.capacity() - read.len());
            // SAFETY: the kernel has filled the spare capacity of the vectors in order, `bytes`
            // bytes of it altogether.
            unsafe { read.set_len(read.len() + step) };
            bytes -= step;
        }
    }
}

impl AddressedBuffer {
    pub(crate) fn new(buffer: Buffer, address: RawAddress) -> Box<AddressedBuffer> {
        let vector =
            libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: buffer.len() };
        let header = empty_header();
        let mut datagram = Box::new(AddressedBuffer { address, buffer, vector, header });
        datagram.header.msg_name = (&raw mut datagram.address.storage).cast();
        datagram.header.msg_namelen = datagram.address.bytes;
        datagram.header.msg_iov = &raw mut datagram.vector;
        datagram.header.msg_iovlen = 1;
        datagram
    }

    /// Creates a datagram of bytes in memory of the application.
    pub(crate) fn raw(start: *const u8, bytes: usize, address: RawAddress) -> Box<AddressedBuffer> {
        let mut datagram = AddressedBuffer::new(Buffer::Static(&[]), address);
        datagram.vector = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes };
        datagram
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.vector.iov_base.cast()
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.vector.iov_len
    }

    /// The driver's operation.
    pub(super) fn operation(&self) -> Operation {
        Operation::SendTo { message: &raw const self.header }
    }
}
