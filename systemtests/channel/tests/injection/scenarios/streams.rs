//! Scenarios of streams: accept, receive, read, write, close.

use crate::common::{expect_end, unix_pair};
use crate::stage::Stage;
use megapipe::{Accept, Buffer, Channel, Event, Handle};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

pub(crate) fn echo_lightweight(stage: &mut Stage) {
    echo(stage, Accept::lightweight());
}

pub(crate) fn echo_descriptors(stage: &mut Stage) {
    echo(stage, Accept::descriptors());
}

/// Serves two clients; the first is closed, the second unregistered at the end of its stream.
fn echo(stage: &mut Stage, accept: Accept) {
    let (listening, address, _listener) = stage.listen();
    let (mut first, one) = stage.serve(listening, address, accept);
    let (mut second, two) = stage.serve(listening, address, accept);
    for message in [&b"ping"[..], b"a longer message", &[7; 1500]] {
        exchange(stage, &mut first, one, message);
        exchange(stage, &mut second, two, message);
    }
    first.shutdown(Shutdown::Write).expect("shutdown");
    stage.receive_end(one);
    stage.close(one);
    expect_end(&mut first);
    second.shutdown(Shutdown::Write).expect("shutdown");
    stage.receive_end(two);
    drop(stage.unregister(two));
    stage.cancel(listening);
    stage.close(listening);
    expect_end(&mut second);
}

/// Checks that the client's bytes come back.
fn exchange(stage: &mut Stage, client: &mut TcpStream, handle: Handle, message: &[u8]) {
    client.write_all(message).expect("write");
    let received = stage.receive(handle, message.len());
    assert_eq!(received, message);
    stage.write(handle, &received);
    let mut found = vec![0; message.len()];
    client.read_exact(&mut found).expect("the echo");
    assert_eq!(found, message);
}

/// Reads and writes with the application's buffers, also vectored, and disconnects.
pub(crate) fn buffers(stage: &mut Stage) {
    let (mut ours, theirs) = unix_pair();
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    ours.write_all(b"first").expect("write");
    let read = |channel: &mut Channel<u64>| Ok(channel.read(handle, Vec::with_capacity(64))?);
    match stage.ask("read", handle, read) {
        Event::Read(Ok(5), bytes) => assert_eq!(bytes, b"first"),
        other => panic!("expected five bytes: {other:?}"),
    }
    ours.write_all(b"second").expect("write");
    let read = |channel: &mut Channel<u64>| {
        let buffers = vec![Vec::with_capacity(2), Vec::with_capacity(64)];
        Ok(channel.read_vectored(handle, buffers)?)
    };
    match stage.ask("read_vectored", handle, read) {
        Event::ReadVectored(Ok(6), parts) => assert_eq!(parts.concat(), b"second"),
        other => panic!("expected six bytes: {other:?}"),
    }
    let write = |channel: &mut Channel<u64>| {
        let buffers: Vec<Buffer> = vec![b"th".into(), b"ird".into()];
        Ok(channel.write_vectored(handle, buffers)?)
    };
    match stage.ask("write_vectored", handle, write) {
        Event::WriteVectored(Ok(5), _) => {}
        other => panic!("expected a write of five bytes: {other:?}"),
    }
    let disconnect = |channel: &mut Channel<u64>| channel.disconnect(handle, Shutdown::Write);
    let event = stage.ask("disconnect", handle, disconnect);
    assert!(matches!(event, Event::Disconnect(Ok(()))), "{event:?}");
    let mut found = Vec::new();
    ours.read_to_end(&mut found).expect("read");
    assert_eq!(found, b"third");
    drop(ours);
    stage.receive_end(handle);
    stage.close(handle);
}

/// Peeks, and writes with MSG_MORE, over TCP and UNIX sockets.
pub(crate) fn looks(stage: &mut Stage) {
    let (listening, address, _listener) = stage.listen();
    let (mut client, lightweight) = stage.serve(listening, address, Accept::lightweight());
    look(stage, &mut client, lightweight);
    let (mut ours, theirs) = unix_pair();
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    look(stage, &mut ours, handle);
    stage.cancel(listening);
    for handle in [listening, lightweight, handle] {
        stage.close(handle);
    }
}

fn look(stage: &mut Stage, peer: &mut (impl Read + Write), handle: Handle) {
    peer.write_all(b"what waits").expect("write");
    for room in [4, 16] {
        let peek = |channel: &mut Channel<u64>| Ok(channel.peek(handle, Vec::with_capacity(room))?);
        match stage.ask("peek", handle, peek) {
            Event::Peek(Ok(count), bytes) if count == room.min(10) => {
                assert_eq!(bytes, b"what waits"[..count]);
            }
            other => panic!("expected what waits: {other:?}"),
        }
    }
    assert_eq!(stage.receive(handle, 10), b"what waits");
    let write_more = |channel: &mut Channel<u64>| Ok(channel.write_more(handle, b"head ")?);
    let event = stage.ask("write_more", handle, write_more);
    assert!(matches!(event, Event::Write(Ok(5), _)), "{event:?}");
    stage.write(handle, b"body");
    let mut found = [0; 9];
    peer.read_exact(&mut found).expect("read");
    assert_eq!(&found, b"head body");
}

/// Writes until the socket is full; the write continues when the peer reads.
pub(crate) fn backpressure(stage: &mut Stage) {
    let (mut ours, theirs) = unix_pair();
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    let sent: Vec<u8> = (0..400_000_u32).map(|number| (number % 251) as u8).collect();
    stage.call("write", |channel| Ok(channel.write(handle, sent.clone())?));
    stage.call("flush", Channel::flush);
    let mut found = vec![0; sent.len()];
    let (mut done, mut filed) = (0, sent.len());
    ours.set_nonblocking(true).expect("non-blocking");
    while done < sent.len() {
        match ours.read(&mut found[done..]) {
            Ok(0) => panic!("the end after {done} bytes"),
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                filed = proceed(stage, handle, &sent, done, filed);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => panic!("read: {error}"),
        }
    }
    assert!(found == sent, "the bytes differ");
    while filed > 0 {
        filed = finished(stage, handle, filed);
    }
    stage.close(handle);
    assert_eq!(ours.read(&mut [0; 1]).expect("the end"), 0);
}

/// Lets the channel write; submits the rest if the write has ended early. Returns the size of the
/// write in flight, 0 for none.
fn proceed(stage: &mut Stage, handle: Handle, sent: &[u8], done: usize, filed: usize) -> usize {
    if filed > 0 {
        let zero = std::time::Duration::ZERO;
        let Some(done) = stage.dispatch(zero) else { return filed };
        return check_write(stage, done.event, filed);
    }
    let rest = sent[done..].to_vec();
    let bytes = rest.len();
    stage.call("write", |channel| Ok(channel.write(handle, rest.clone())?));
    bytes
}

fn finished(stage: &mut Stage, handle: Handle, filed: usize) -> usize {
    let done = stage.next_for(handle);
    check_write(stage, done.event, filed)
}

/// Checks a write that has ended: completely, or in part because of the injected failure.
fn check_write(stage: &mut Stage, event: Event, filed: usize) -> usize {
    match event {
        Event::Write(Ok(count), _) if count == filed => {}
        Event::Write(Ok(count), _) if crate::layer::shared().fired() > 0 => assert!(count < filed),
        Event::Write(Err(error), _) => {
            stage.excuse("write", error.raw_os_error().expect("an errno"));
        }
        other => panic!("expected a write of {filed} bytes: {other:?}"),
    }
    0
}
