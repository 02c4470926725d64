//! Takes the results out of events.

use megapipe::{Buffer, Datagram, Event, Lease};
use std::io;

/// Returns the number or errno of an event.
pub fn outcome(event: &Event) -> Result<u64, i32> {
    let unit = |result: &io::Result<()>| result.as_ref().map(|()| 0).map_err(errno);
    let size = |result: &io::Result<usize>| result.as_ref().map(|n| *n as u64).map_err(errno);
    let word = |result: &io::Result<u64>| result.as_ref().copied().map_err(errno);
    match event {
        Event::Accept(result) => result.as_ref().map(|_| 0).map_err(errno),
        Event::Connect(result)
        | Event::Disconnect(result)
        | Event::Sync(result)
        | Event::Close(result) => unit(result),
        Event::Read(result, _)
        | Event::Peek(result, _)
        | Event::ReadAt(result, ..)
        | Event::WriteAt(result, ..)
        | Event::ReadVectored(result, _)
        | Event::Write(result, _)
        | Event::WriteVectored(result, _)
        | Event::SendFile(result)
        | Event::SendMessage(result, _)
        | Event::ReceiveMessage(result, _)
        | Event::SendTo(result, _) => size(result),
        Event::Receive(result) => result.as_ref().map(|lease| lease.len() as u64).map_err(errno),
        Event::ReceiveFrom(result) => result.as_ref().map(|data| data.len() as u64).map_err(errno),
        Event::Signal(result) => result.as_ref().map(|info| info.signal as u64).map_err(errno),
        Event::Timer(result) | Event::Wake(result) => word(result),
        other => panic!("an event that the tests do not know: {other:?}"),
    }
}

pub fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| panic!("an error without errno: {error}"))
}

/// Returns the bytes of a successful read.
#[track_caller]
pub fn read_of(event: Event) -> Vec<u8> {
    match event {
        Event::Read(Ok(_), bytes) => bytes,
        other => panic!("expected a successful read: {other:?}"),
    }
}

#[track_caller]
pub fn received(event: Event) -> Lease {
    match event {
        Event::Receive(Ok(lease)) => lease,
        other => panic!("expected a successful receive: {other:?}"),
    }
}

#[track_caller]
pub fn datagram(event: Event) -> Datagram {
    match event {
        Event::ReceiveFrom(Ok(datagram)) => datagram,
        other => panic!("expected a datagram: {other:?}"),
    }
}

/// Returns the buffer of a successful write, all of which must have been written.
#[track_caller]
pub fn written(event: Event) -> Buffer {
    match event {
        Event::Write(Ok(bytes), buffer) if bytes == buffer.len() => buffer,
        other => panic!("expected a complete write: {other:?}"),
    }
}

#[track_caller]
pub fn accepted(event: Event) -> megapipe::Accepted {
    match event {
        Event::Accept(Ok(accepted)) => accepted,
        other => panic!("expected a connection: {other:?}"),
    }
}
