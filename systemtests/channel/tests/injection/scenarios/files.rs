//! Scenarios of pipes and disk files.

use crate::common::unix_pair;
use crate::stage::{Stage, errno_of};
use megapipe::{Buffer, Channel, Event};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

/// Receives from a pipe, reads from it, and writes to another.
pub(crate) fn pipe(stage: &mut Stage) {
    let (reader, mut our_writer) = std::io::pipe().expect("pipe");
    let (mut our_reader, writer) = std::io::pipe().expect("pipe");
    let inbound = stage.join(|| OwnedFd::from(reader.try_clone().expect("a duplicate")));
    let outbound = stage.join(|| OwnedFd::from(writer.try_clone().expect("a duplicate")));
    drop((reader, writer));
    for message in [&b"one"[..], b"another"] {
        our_writer.write_all(message).expect("write");
        assert_eq!(stage.receive(inbound, message.len()), message);
        stage.write(outbound, message);
        let mut found = vec![0; message.len()];
        our_reader.read_exact(&mut found).expect("read");
        assert_eq!(found, message);
    }
    let write = |channel: &mut Channel<u64>| {
        let buffers: Vec<Buffer> = vec![b"in two".into(), b" parts".into()];
        Ok(channel.write_vectored(outbound, buffers)?)
    };
    let event = stage.ask("write_vectored", outbound, write);
    assert!(matches!(event, Event::WriteVectored(Ok(12), _)), "{event:?}");
    let mut found = [0; 12];
    our_reader.read_exact(&mut found).expect("read");
    assert_eq!(&found, b"in two parts");
    stage.cancel(inbound);
    our_writer.write_all(b"last").expect("write");
    let read = |channel: &mut Channel<u64>| Ok(channel.read(inbound, Vec::with_capacity(16))?);
    match stage.ask("read", inbound, read) {
        Event::Read(Ok(4), bytes) => assert_eq!(bytes, b"last"),
        other => panic!("expected four bytes: {other:?}"),
    }
    drop(our_writer);
    stage.receive_end(inbound);
    stage.close(inbound);
    stage.close(outbound);
    assert_eq!(our_reader.read(&mut [0; 1]).expect("the end"), 0);
}

/// Writes, syncs and reads a disk file.
pub(crate) fn file(stage: &mut Stage) {
    let disk = tempfile::tempfile().expect("a file");
    let handle = stage.join(|| disk.try_clone().expect("a duplicate"));
    use_file(stage, handle, &disk);
    let remains = stage.unregister(handle);
    let mut found = String::new();
    use std::io::Seek;
    let mut back = File::from(remains.descriptor.expect("the descriptor"));
    back.rewind().expect("rewind");
    back.read_to_string(&mut found).expect("read");
    assert_eq!(found, "HEADbody and a tail");
}

fn use_file(stage: &mut Stage, handle: megapipe::Handle, disk: &File) {
    let write = |channel: &mut Channel<u64>| Ok(channel.write_at(handle, b"headbody", 0)?);
    let event = stage.ask("write_at", handle, write);
    assert!(matches!(event, Event::WriteAt(Ok(8), _, 0)), "{event:?}");
    let write = |channel: &mut Channel<u64>| Ok(channel.write_at(handle, b"HEAD", 0)?);
    let event = stage.ask("write_at", handle, write);
    assert!(matches!(event, Event::WriteAt(Ok(4), _, 0)), "{event:?}");
    let event = stage.ask("sync", handle, |channel| channel.sync(handle));
    assert!(matches!(event, Event::Sync(Ok(()))), "{event:?}");
    read_at(stage, handle, 4, b"body");
    // The file's position continues from where it was.
    let mut position = disk.try_clone().expect("a duplicate");
    std::io::Seek::seek(&mut position, std::io::SeekFrom::Start(8)).expect("seek");
    stage.write(handle, b" and a tail");
    let event = stage.ask("sync_data", handle, |channel| channel.sync_data(handle));
    assert!(matches!(event, Event::Sync(Ok(()))), "{event:?}");
    std::io::Seek::seek(&mut position, std::io::SeekFrom::Start(0)).expect("seek");
    let read = |channel: &mut Channel<u64>| {
        let buffers = vec![Vec::with_capacity(4), Vec::with_capacity(4)];
        Ok(channel.read_vectored(handle, buffers)?)
    };
    match stage.ask("read_vectored", handle, read) {
        Event::ReadVectored(Ok(8), parts) => assert_eq!(parts.concat(), b"HEADbody"),
        other => panic!("expected eight bytes: {other:?}"),
    }
    read_at(stage, handle, 100, b"");
}

fn read_at(stage: &mut Stage, handle: megapipe::Handle, offset: u64, expected: &[u8]) {
    let read =
        |channel: &mut Channel<u64>| Ok(channel.read_at(handle, Vec::with_capacity(4), offset)?);
    match stage.ask("read_at", handle, read) {
        Event::ReadAt(Ok(count), bytes, at) => {
            assert_eq!((count, &bytes[..], at), (expected.len(), expected, offset));
        }
        other => panic!("expected {expected:?} at {offset}: {other:?}"),
    }
}

/// More bytes than the channel reads of a file at a time, and fewer than a socket has room for.
const SENT: usize = 140_000;

/// Sends a part of a file, over a new connection if it fails half-way, and a part beyond the end:
/// over blocking sockets, and over others, to which the driver may send directly from the file.
pub(crate) fn send_file(stage: &mut Stage) {
    let mut disk = tempfile::tempfile().expect("a file");
    let contents: Vec<u8> = (0..SENT + 20).map(|at| (at % 251) as u8).collect();
    disk.write_all(&contents).expect("write");
    let source = stage.join(|| disk.try_clone().expect("a duplicate"));
    for (offset, bytes) in [(10, SENT), (SENT, 30)] {
        let there = &contents[offset..contents.len().min(offset + bytes)];
        for is_blocking in [true, false] {
            while !is_sent(stage, source, offset, bytes, there, is_blocking) {}
        }
    }
    stage.close(source);
}

/// Returns whether the part was sent, or its lack reported, and not the injected failure.
fn is_sent(
    stage: &mut Stage,
    source: megapipe::Handle,
    offset: usize,
    bytes: usize,
    there: &[u8],
    is_blocking: bool,
) -> bool {
    let (mut ours, theirs) = unix_pair();
    theirs.set_nonblocking(!is_blocking).expect("a flag");
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    stage.call("send_file", |channel| channel.send_file(handle, source, offset as u64, bytes));
    let done = stage.next_for(handle);
    let is_told = match done.event {
        Event::SendFile(Ok(count)) => {
            assert_eq!((count, there.len()), (bytes, bytes));
            true
        }
        event => match errno_of(&event) {
            Some(libc::ENODATA) if there.len() < bytes => true,
            Some(errno) => {
                stage.excuse("send_file", errno);
                false
            }
            None => panic!("expected {bytes} bytes to be sent: {event:?}"),
        },
    };
    stage.close(handle);
    let mut found = Vec::new();
    ours.read_to_end(&mut found).expect("read");
    assert!(there.starts_with(&found), "not the beginning of the part");
    assert!(!is_told || found.len() == there.len(), "{} of {}", found.len(), there.len());
    is_told
}

type Request = fn(&mut Channel<u64>, megapipe::Handle) -> megapipe::Result<()>;

/// Uses a file while the channel can have no helper thread: each request completes, with its result
/// or the failure.
pub(crate) fn file_without_threads(stage: &mut Stage) {
    let disk = tempfile::tempfile().expect("a file");
    disk.set_len(8).expect("a length");
    let handle = stage.join(|| disk.try_clone().expect("a duplicate"));
    super::forbid_threads();
    let requests: [Request; 4] = [
        |channel, handle| Ok(channel.write_at(handle, b"whatever", 0)?),
        |channel, handle| Ok(channel.read_at(handle, Vec::with_capacity(8), 0)?),
        |channel, handle| channel.sync(handle),
        |channel, handle| channel.sync_data(handle),
    ];
    for request in requests {
        stage.call("a request of a file", |channel| request(channel, handle));
        super::ends_or_names_the_lack_of_threads(stage, handle);
    }
    stage.close(handle);
}
