//! Copies bytes between the application's memory and the stack's; each byte is copied once.

use super::MtcpDriver;
use crate::driver::entry::Phase;
use crate::engine::Port;
use crate::socket::errors::errno;
use megapipe::driver_api::{Operation, Outcome, Output};
use mtcp_proto::{Error, Readiness, SendFlags, Shutdown, SocketId};

/// Buffers that one connection fills in a row before other connections have their turn.
const BURST: usize = 16;

/// The result of an attempt.
enum Step {
    /// No result yet; an event reports when to try again.
    Blocked,
    /// The operation ends with this result.
    Ended(i32),
}

/// Returns the iovec array of an operation.
///
/// # Safety
///
/// `vector` points to `count` valid elements, which live as long as the slice.
unsafe fn pieces<'a>(vector: *const libc::iovec, count: u32) -> &'a [libc::iovec] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees `count` valid elements.
    unsafe { std::slice::from_raw_parts(vector, count as usize) }
}

/// Returns memory as a slice for writing.
///
/// # Safety
///
/// The memory is writable and not used elsewhere while the slice lives.
unsafe fn room<'a>(address: *mut u8, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: the caller guarantees that the memory is writable and not used elsewhere.
    unsafe { std::slice::from_raw_parts_mut(address, bytes) }
}

/// Returns memory as a slice for reading.
///
/// # Safety
///
/// The memory is readable and does not change while the slice lives.
unsafe fn data<'a>(address: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees that the memory is readable and does not change.
    unsafe { std::slice::from_raw_parts(address, bytes) }
}

impl<P: Port> MtcpDriver<P> {
    /// Tries the receiving operation of a connection.
    pub(super) fn try_inbound(&mut self, number: u32) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        let (Some(task), Phase::Connected(socket)) = (entry.inbound, entry.phase) else { return };
        let step = match task.operation {
            Operation::Read { address, bytes, .. } => {
                // SAFETY: the memory of an operation is valid, and only the driver uses it, until
                // the operation's last outcome.
                let room = unsafe { room(address, bytes as usize) };
                step_of(self.port.receive(socket, room))
            }
            Operation::Peek { address, bytes } => {
                // SAFETY: the memory is valid, and only the driver uses it, until the operation's
                // last outcome.
                let room = unsafe { room(address, bytes as usize) };
                let peeked = self.port.peek(socket, 0, room);
                if peeked.is_err_and(|error| error != Error::WouldBlock) {
                    // An operation that reports an error takes it, as in the kernel.
                    self.port.take_error(socket);
                }
                step_of(peeked)
            }
            Operation::ReadVectored { vector, count, .. } => {
                // SAFETY: the vector is valid, and only the driver uses it, until the operation's
                // last outcome.
                let vector = unsafe { pieces(vector, count) };
                self.read_vectored(socket, vector)
            }
            Operation::ReadMessage { message } => {
                // SAFETY: the header and the memory it points to are valid, and only the driver
                // uses them, until the operation's last outcome.
                unsafe { self.read_message(socket, message) }
            }
            Operation::Receive { large, repeat } => {
                return self.receive(number, socket, task.tag, large, repeat);
            }
            _ => Step::Ended(-libc::EINVAL),
        };
        if let Step::Ended(result) = step {
            self.end_inbound(number, task.tag, result);
        }
    }

    fn end_inbound(&mut self, number: u32, tag: u64, result: i32) {
        if let Some(entry) = self.entries.get_mut(number) {
            entry.inbound = None;
        }
        self.end(tag, result);
    }

    fn read_vectored(&mut self, socket: SocketId, vector: &[libc::iovec]) -> Step {
        let mut total = 0;
        for piece in vector.iter().filter(|piece| piece.iov_len > 0) {
            // An end or error after data is for the next read.
            if total > 0 && self.port.receivable(socket) == 0 {
                break;
            }
            // SAFETY: the memory of an operation is valid, and only the driver uses it, until the
            // operation's last outcome.
            let room = unsafe { room(piece.iov_base.cast(), piece.iov_len) };
            match self.port.receive(socket, room) {
                Ok(bytes) => {
                    total += bytes;
                    if bytes < piece.iov_len {
                        break;
                    }
                }
                Err(Error::WouldBlock) if total == 0 => return Step::Blocked,
                Err(error) if total == 0 => return Step::Ended(-errno(error)),
                Err(_) => break,
            }
        }
        Step::Ended(total as i32)
    }

    /// Receives into the vectors of a message header. A stream has neither names nor control data,
    /// which the header then shows.
    ///
    /// # Safety
    ///
    /// The header and the memory it points to are valid, and only the driver uses them.
    unsafe fn read_message(&mut self, socket: SocketId, message: *mut libc::msghdr) -> Step {
        // SAFETY: the caller guarantees a valid header with a valid vector.
        let vector = unsafe { pieces((*message).msg_iov, (*message).msg_iovlen as u32) };
        let step = self.read_vectored(socket, vector);
        if let Step::Ended(0..) = step {
            // SAFETY: the caller guarantees a valid header, and no other reference to it exists.
            let header = unsafe { &mut *message };
            (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
        }
        step
    }

    fn receive(&mut self, number: u32, socket: SocketId, tag: u64, large: bool, repeat: bool) {
        for _ in 0..BURST {
            let Some(mut room) = self.pools.take(large) else {
                // The application returns leases between two collections.
                if let Some(entry) = self.entries.get_mut(number)
                    && !std::mem::replace(&mut entry.hungry, true)
                {
                    self.hungry.push(number);
                }
                return;
            };
            let bytes = match self.port.receive(socket, &mut room) {
                Ok(0) => return self.end_inbound(number, tag, 0),
                Ok(bytes) => bytes,
                Err(Error::WouldBlock) => return,
                Err(error) => return self.end_inbound(number, tag, -errno(error)),
            };
            let drained = bytes < room.len();
            let output = Output::Lease(room.lease(bytes));
            let result = bytes as i32;
            self.outcomes.push_back(Outcome { tag, result, more: repeat, output });
            if !repeat {
                if let Some(entry) = self.entries.get_mut(number) {
                    entry.inbound = None;
                }
                return;
            }
            let over = Readiness::PEER_CLOSED.with(Readiness::CLOSED).with(Readiness::ERROR);
            let is_shut = self.entries.get_mut(number).is_some_and(|entry| entry.receive_shut);
            if drained && !is_shut && !self.port.readiness(socket).intersects(over) {
                return;
            }
        }
        self.queue(number);
    }

    /// Tries the sending operation of a connection.
    pub(super) fn try_outbound(&mut self, number: u32) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        let (Some(task), Phase::Connected(socket)) = (entry.outbound, entry.phase) else {
            return;
        };
        let mut done = 0;
        let sent = match task.operation {
            Operation::Write { address, bytes, .. } => {
                // SAFETY: the memory of an operation is valid and unchanged until its last outcome.
                let data = unsafe { data(address, bytes as usize) };
                self.send(socket, data, SendFlags::default(), &mut done)
            }
            Operation::WriteMore { address, bytes } => {
                // SAFETY: the memory of an operation is valid and unchanged until its last outcome.
                let data = unsafe { data(address, bytes as usize) };
                let send_flags = SendFlags { more: true, ..SendFlags::default() };
                self.send(socket, data, send_flags, &mut done)
            }
            Operation::WriteVectored { vector, count, .. } => {
                // SAFETY: the vector of an operation is valid and unchanged until its last outcome.
                let vector = unsafe { pieces(vector, count) };
                self.send_vectored(socket, vector, &mut done)
            }
            Operation::SendTo { message } => {
                // SAFETY: the header and its vector are valid and unchanged until the operation's
                // last outcome.
                let vector = unsafe { pieces((*message).msg_iov, (*message).msg_iovlen as u32) };
                self.send_vectored(socket, vector, &mut done)
            }
            _ => return,
        };
        self.moved = true;
        let Some(entry) = self.entries.get_mut(number) else { return };
        let result = match sent {
            Err(Error::WouldBlock) if done == 0 => return,
            // The channel submits the rest.
            Ok(()) | Err(Error::WouldBlock) => done as i32,
            Err(error) => -errno(error),
        };
        entry.outbound = None;
        self.end(task.tag, result);
    }

    /// Sends from position `done` on and advances it, until the stack has all data.
    fn send(
        &mut self,
        socket: SocketId,
        data: &[u8],
        send_flags: SendFlags,
        done: &mut usize,
    ) -> Result<(), Error> {
        loop {
            *done += self.port.send_as(socket, &data[*done..], send_flags)?;
            if *done >= data.len() {
                return Ok(());
            }
        }
    }

    fn send_vectored(
        &mut self,
        socket: SocketId,
        vector: &[libc::iovec],
        done: &mut usize,
    ) -> Result<(), Error> {
        let mut before = 0;
        for piece in vector {
            let skip = done.saturating_sub(before).min(piece.iov_len);
            if skip < piece.iov_len {
                // SAFETY: the memory of an operation is valid and unchanged until its last outcome.
                let data = unsafe { data(piece.iov_base.cast(), piece.iov_len) };
                let mut within = skip;
                let sent = self.send(socket, data, SendFlags::default(), &mut within);
                *done = before + within;
                sent?;
            }
            before += piece.iov_len;
        }
        if before == 0 { self.port.send(socket, &[]).map(drop) } else { Ok(()) }
    }

    /// Ends one or both directions; returns the result of shutdown(2).
    pub(super) fn shut_down_stream(
        &mut self,
        number: u32,
        socket: SocketId,
        how: libc::c_int,
    ) -> i32 {
        let how = match how {
            libc::SHUT_RD => Shutdown::Receive,
            libc::SHUT_WR => Shutdown::Send,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return -libc::EINVAL,
        };
        if let Err(error) = self.port.shutdown(socket, how) {
            return -errno(error);
        }
        if let Some(entry) = self.entries.get_mut(number) {
            entry.receive_shut |= how != Shutdown::Send;
            entry.send_shut |= how != Shutdown::Receive;
        }
        0
    }
}

fn step_of(received: Result<usize, Error>) -> Step {
    match received {
        Ok(bytes) => Step::Ended(bytes as i32),
        Err(Error::WouldBlock) => Step::Blocked,
        Err(error) => Step::Ended(-errno(error)),
    }
}
