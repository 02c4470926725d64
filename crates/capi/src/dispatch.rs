//! Converts completions to events for C.

use crate::channel_table::on_channel;
use crate::failure::{Failure, errno_in, status, value};
use crate::state::State;
use crate::text::duration_of;
use crate::types::{MP_MORE, MP_TRUNCATED, mp_channel, mp_command, mp_event};
use channel::{Accepted, Buffer, Completion, Datagram, Event, RawCommand, Transferred};
use libc::{c_int, socklen_t};
use std::io;
use std::os::fd::IntoRawFd;
use std::ptr;

/// Maximum number of completions that one call converts; the others stay in the channel.
const BATCH_MAX: usize = 4096;

/// Waits for the next completion (report, Table 3.1). If none is there, first hands the collected
/// requests to the kernel.
///
/// timeout_ms: 0 to return at once, below 0 to wait without a limit. Completions are fetched from
/// the kernel in batches, whether they are taken one by one or by mp_dispatch_batch().
///
/// Returns 1; or 0 if the time is up, a signal handler ran, or the process was stopped and
/// continued (SIGSTOP, SIGCONT), even without a limit; or -1 and errno.
///
/// # Safety
///
/// event must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_dispatch(
    channel: *mut mp_channel,
    event: *mut mp_event,
    timeout_ms: c_int,
) -> c_int {
    let dispatched = on_channel(channel, |state| {
        if event.is_null() {
            return Err(Failure::NULL);
        }
        state.addresses.forget();
        let Some(done) = state.channel.dispatch(duration_of(timeout_ms))? else { return Ok(0) };
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { event.write(event_of(state, done)) };
        Ok(1)
    });
    value(dispatched, -1)
}

/// Waits as mp_dispatch() does, then takes all available completions, at most limit of them
/// (report, section 3.5).
///
/// Events in the array are not withdrawn when their handle is unregistered: calls with the handle
/// then fail with EBADF, and buffers and connections in the events still belong to the caller.
///
/// Returns the number of events, 0 as for mp_dispatch(), or -1 and errno.
///
/// Errors:
///   EINVAL  limit is below 1
///
/// # Safety
///
/// events must point to limit structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_dispatch_batch(
    channel: *mut mp_channel,
    events: *mut mp_event,
    limit: c_int,
    timeout_ms: c_int,
) -> c_int {
    let dispatched = on_channel(channel, |state| {
        if events.is_null() {
            return Err(Failure::NULL);
        }
        let limit = usize::try_from(limit).unwrap_or(0).min(BATCH_MAX);
        if limit == 0 {
            return Err(Failure::invalid("limit must be at least 1"));
        }
        state.addresses.forget();
        let mut batch = std::mem::take(&mut state.batch);
        let count = state.channel.dispatch_batch(&mut batch, limit, duration_of(timeout_ms));
        for (at, done) in batch.drain(..).enumerate() {
            // SAFETY: the caller guarantees room for `limit` events, and there are no more than
            // that.
            unsafe { events.add(at).write(event_of(state, done)) };
        }
        state.batch = batch;
        Ok(count? as c_int)
    });
    value(dispatched, -1)
}

/// Hands the collected requests to the kernel now. mp_dispatch() does so by itself; use it before
/// other work that takes long.
#[unsafe(no_mangle)]
pub extern "C" fn mp_flush(channel: *mut mp_channel) -> c_int {
    status(on_channel(channel, |state| Ok(state.channel.flush()?)))
}

/// Gives a buffer of mp_recv() back to the channel; its bytes are then no longer valid.
///
/// Errors:
///   EINVAL  the caller does not hold the buffer (any more)
#[unsafe(no_mangle)]
pub extern "C" fn mp_release(channel: *mut mp_channel, buffer: i64) -> c_int {
    status(on_channel(channel, |state| state.take_lease(buffer).map(drop)))
}

/// Creates an event with the fields that all events have.
fn blank_event(state: &State, done: &Completion) -> mp_event {
    mp_event {
        cmd: 0,
        flags: if done.more { MP_MORE } else { 0 },
        handle: state.numbering.encode(done.handle),
        cookie: state.cookie_of(done.handle),
        error: 0,
        fd: -1,
        size: 0,
        data: ptr::null_mut(),
        buffer: -1,
        pending: 0,
        revents: 0,
        offset: 0,
        count: 0,
        address: ptr::null(),
        address_size: 0,
        reserved: 0,
    }
}

fn event_of(state: &mut State, done: Completion) -> mp_event {
    let mut event = blank_event(state, &done);
    match done.event {
        Event::Receive(received) => {
            event.cmd = mp_command::MP_RECV as u32;
            // An empty message of a packet socket has a buffer, too.
            if let Some(mut lease) = event.keep(received)
                && !lease.is_end()
            {
                event.size = lease.len();
                event.data = lease.as_mut_ptr().cast();
                event.buffer = state.leases.keep(lease);
            }
        }
        Event::ReceiveFrom(datagram) => event.datagram(state, datagram),
        Event::Sync(result) => event.simple(mp_command::MP_FSYNC, result),
        Event::Transfer(transferred) => event.transferred(transferred),
        Event::Write(written, buffer) => {
            event.cmd = mp_command::MP_WRITE as u32;
            event.size = event.keep(written).unwrap_or(0);
            if !matches!(buffer, Buffer::Lease(_)) {
                event.data = buffer.as_ptr().cast_mut().cast();
            }
        }
        Event::Accept(accepted) => {
            event.cmd = mp_command::MP_ACCEPT as u32;
            if let Some(accepted) = event.keep(accepted) {
                event.accepted(state, accepted);
            }
        }
        Event::Poll(revents) => {
            event.cmd = mp_command::MP_POLL as u32;
            event.revents = event.keep(revents).unwrap_or(0);
        }
        Event::PeerAddress(address) => {
            event.cmd = mp_command::MP_PEER_ADDRESS as u32;
            if let Some(address) = event.keep(address) {
                (event.data, event.size) = state.addresses.keep(&address);
            }
        }
        Event::Timer(expiries) => {
            event.cmd = mp_command::MP_TIMER as u32;
            event.count = event.keep(expiries).unwrap_or(0);
        }
        Event::SendFile(sent) => {
            event.cmd = mp_command::MP_SEND_FILE as u32;
            event.size = event.keep(sent).unwrap_or(0);
        }
        Event::Connect(result) => event.simple(mp_command::MP_CONNECT, result),
        Event::Disconnect(result) => event.simple(mp_command::MP_DISCONNECT, result),
        Event::Close(result) => {
            event.simple(mp_command::MP_CLOSE, result);
            let closing = &mut state.closing;
            if let Some(at) = closing.iter().position(|(handle, _)| *handle == done.handle) {
                closing.remove(at);
            }
        }
        // The C library never submits other requests.
        _ => event.error = libc::EPROTO,
    }
    if event.error != 0 {
        event.size = done.written;
    }
    event
}

impl mp_event {
    /// Returns the result, or stores its errno in the event.
    fn keep<T>(&mut self, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.error = errno_in(&error);
                None
            }
        }
    }

    fn simple(&mut self, command: mp_command, result: io::Result<()>) {
        self.cmd = command as u32;
        self.keep(result);
    }

    fn datagram(&mut self, state: &mut State, datagram: io::Result<Datagram>) {
        self.cmd = mp_command::MP_RECVFROM as u32;
        let Some(datagram) = self.keep(datagram) else { return };
        if datagram.is_truncated() {
            self.flags |= MP_TRUNCATED;
        }
        if let Ok(sender) = datagram.address() {
            let (address, size) = state.addresses.keep(&sender);
            (self.address, self.address_size) = (address.cast(), size as socklen_t);
        }
        let mut lease = datagram.into_lease();
        self.size = lease.len();
        self.data = lease.as_mut_ptr().cast();
        self.buffer = state.leases.keep(lease);
    }

    fn transferred(&mut self, done: Transferred) {
        let command = match (done.command, done.offset) {
            (RawCommand::Read, None) => mp_command::MP_READ,
            (RawCommand::Read, Some(_)) => mp_command::MP_PREAD,
            (RawCommand::Peek, _) => mp_command::MP_PEEK,
            (RawCommand::Write, None) | (RawCommand::WriteMore, _) => mp_command::MP_WRITE,
            (RawCommand::Write, Some(_)) => mp_command::MP_PWRITE,
            (RawCommand::ReadVectored, _) => mp_command::MP_READV,
            (RawCommand::WriteVectored, _) => mp_command::MP_WRITEV,
            (RawCommand::SendTo, _) => mp_command::MP_SENDTO,
            (RawCommand::SendMessage, _) => mp_command::MP_SENDMSG,
            (RawCommand::ReceiveMessage, _) => mp_command::MP_RECVMSG,
        };
        self.cmd = command as u32;
        self.size = self.keep(done.bytes).unwrap_or(0);
        self.data = done.address.cast();
        self.offset = done.offset.unwrap_or(0);
        self.address = done.receiver.cast();
    }

    fn accepted(&mut self, state: &mut State, accepted: Accepted) {
        self.pending = accepted.pending;
        if let Some(peer) = &accepted.peer {
            (self.data, self.size) = state.addresses.keep(peer);
        }
        // On epoll a lightweight socket has a descriptor, which does not belong to the caller.
        if let Some(number) = accepted.socket.lightweight_number() {
            self.fd = number as i32;
            return state.keep_lwsocket(self.fd, accepted.socket);
        }
        match accepted.socket.into_descriptor() {
            Ok(descriptor) => {
                self.fd = descriptor.into_raw_fd();
                state.note_accepted(self.fd);
            }
            // A socket that is not a descriptor is a lightweight one.
            Err(_) => self.error = libc::EPROTO,
        }
    }
}
