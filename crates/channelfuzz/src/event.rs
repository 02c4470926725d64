//! Converts an event to its parts: the command, the result, and the content.

use crate::operate::MARK_BYTES;
use crate::semantics::What;
use megapipe::{Accepted, Datagram, Event, Lease};
use std::io;

/// The content of a completion besides its number.
#[derive(Debug)]
pub(crate) enum Contents {
    None,
    Bytes(Vec<u8>),
    Lease(Lease),
    Datagram(Datagram),
    Connection(Accepted),
}

/// The parts of an event, in a form that is the same for all events.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) what: What,
    pub(crate) result: Result<u64, i32>,
    /// The mark of the request, if the event contains one.
    pub(crate) mark: Option<u64>,
    pub(crate) contents: Contents,
}

/// Converts an event to its parts.
pub(crate) fn take_apart(event: Event) -> Arrival {
    match event {
        Event::Read(result, bytes) => read(What::Read, result, bytes),
        Event::Peek(result, bytes) => read(What::Peek, result, bytes),
        Event::ReadAt(result, bytes, _) => read(What::ReadAt, result, bytes),
        Event::ReadVectored(result, buffers) => read(What::ReadVectored, result, buffers.concat()),
        Event::ReceiveMessage(result, message) => {
            read(What::ReceiveMessage, result, message.bytes().to_vec())
        }
        Event::Receive(Ok(lease)) => {
            let count = lease.len();
            brought(What::Receive, count, Contents::Lease(lease))
        }
        Event::Receive(Err(error)) => plain(What::Receive, Err(error)),
        Event::ReceiveFrom(Ok(datagram)) => {
            let count = datagram.len();
            brought(What::ReceiveFrom, count, Contents::Datagram(datagram))
        }
        Event::ReceiveFrom(Err(error)) => plain(What::ReceiveFrom, Err(error)),
        Event::Accept(Ok(accepted)) => brought(What::Accept, 1, Contents::Connection(accepted)),
        Event::Accept(Err(error)) => plain(What::Accept, Err(error)),
        Event::Write(result, buffer) => wrote(What::Write, result, &buffer),
        Event::WriteAt(result, buffer, _) => wrote(What::WriteAt, result, &buffer),
        Event::SendTo(result, buffer) => wrote(What::SendTo, result, &buffer),
        Event::SendMessage(result, message) => wrote(What::SendMessage, result, message.bytes()),
        Event::WriteVectored(result, buffers) => {
            let first = buffers.first().map_or(&[][..], |first| first);
            wrote(What::WriteVectored, result, first)
        }
        Event::SendFile(result) => plain(What::SendFile, result.map(|count| count as u64)),
        Event::Connect(result) => plain(What::Connect, result.map(|()| 0)),
        Event::Disconnect(result) => plain(What::Disconnect, result.map(|()| 0)),
        Event::Sync(result) => plain(What::Sync, result.map(|()| 0)),
        Event::Close(result) => plain(What::Close, result.map(|()| 0)),
        Event::PeerAddress(result) => plain(What::PeerAddress, result.map(|_| 0)),
        Event::Poll(result) => plain(What::Poll, result.map(u64::from)),
        Event::Timer(result) | Event::Wake(result) => plain(What::Watch, result),
        // The fuzzer submits neither signals nor transfers.
        _ => plain(What::Watch, Err(io::Error::from_raw_os_error(libc::ENOSYS))),
    }
}

fn plain(what: What, result: io::Result<u64>) -> Arrival {
    let result = result.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOSYS));
    Arrival { what, result, mark: None, contents: Contents::None }
}

fn brought(what: What, count: usize, contents: Contents) -> Arrival {
    Arrival { what, result: Ok(count as u64), mark: None, contents }
}

fn wrote(what: What, result: io::Result<usize>, buffer: &[u8]) -> Arrival {
    let mark = Some(buffer.as_ptr() as u64);
    Arrival { mark, ..plain(what, result.map(|count| count as u64)) }
}

/// The first bytes of a buffer that was read into identify the request; the bytes after them were
/// read.
fn read(what: What, result: io::Result<usize>, mut bytes: Vec<u8>) -> Arrival {
    let data = bytes.split_off(bytes.len().min(MARK_BYTES));
    let mark = bytes.as_slice().try_into().map_or(u64::MAX, u64::from_le_bytes);
    let arrival = plain(what, result.map(|count| count as u64));
    let expected = arrival.result.unwrap_or(0);
    // A buffer that was not extended by the number of bytes read belongs to no request. A message
    // that is too long leaves its beginning.
    let is_cut = arrival.result == Err(libc::EMSGSIZE);
    let mark = if is_cut || expected == data.len() as u64 { mark } else { u64::MAX };
    Arrival { mark: Some(mark), contents: Contents::Bytes(data), ..arrival }
}
