//! Scenarios of ends: handles and channels with requests in flight; and the creation of a channel.

use crate::checks;
use crate::common::process::descriptors;
use crate::common::{memory_file, silent, unix_pair};
use crate::layer::{armed, shared};
use crate::stage::{Stage, config, errno_behind, errno_of};
use megapipe::{Accept, Channel, Config, DriverChoice, Repeat, Timer};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Creates a channel. If that fails, the error names the cause, nothing leaks, and the next one
/// works.
pub(crate) fn set_up(driver: DriverChoice) {
    let before = descriptors();
    let channel = match armed(|| Channel::<u64>::with_config(config(driver))) {
        Ok(channel) => channel,
        Err(error) => {
            let fault = shared().fault().map(|fault| fault.errno);
            assert_eq!(errno_behind(&error), fault, "{error}");
            Channel::with_config(config(driver)).expect("a channel when nothing fails any more")
        }
    };
    let mut stage = Stage::around(driver, channel);
    let (mut ours, theirs) = unix_pair();
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    ours.write_all(b"works").expect("write");
    assert_eq!(stage.receive(handle, 5), b"works");
    stage.close(handle);
    drop(ours);
    checks::finish(stage, &before);
}

/// Unregisters sockets that are being read: data that is sent afterwards belongs to the descriptor.
pub(crate) fn unregister(stage: &mut Stage) {
    let (mut ours, theirs) = unix_pair();
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    stage.call("receive", |channel| channel.receive(handle, Repeat::UntilCancelled));
    stage.call("flush", Channel::flush);
    given_back(stage, handle, &mut ours);

    let (mut ours, theirs) = unix_pair();
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    stage.call("read", |channel| Ok(channel.read(handle, Vec::with_capacity(100))?));
    stage.call("flush", Channel::flush);
    given_back(stage, handle, &mut ours);

    // A socket whose descriptor the application closes at once.
    let (mut ours, theirs) = unix_pair();
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    stage.call("receive", |channel| channel.receive(handle, Repeat::UntilCancelled));
    stage.call("flush", Channel::flush);
    drop(stage.unregister(handle));
    look_around(stage);
    crate::common::expect_end(&mut ours);

    let (listening, address, _listener) = stage.listen();
    let (mut client, lightweight) = stage.serve(listening, address, Accept::lightweight());
    stage.call("receive", |channel| channel.receive(lightweight, Repeat::UntilCancelled));
    stage.call("flush", Channel::flush);
    let remains = stage.unregister(lightweight);
    drop(remains);
    look_around(stage);
    crate::common::expect_gone(&mut client);
    drop(stage.unregister(listening));
}

/// Lets the channel do pending work; only the injected failure may be reported.
fn look_around(stage: &mut Stage) {
    // A transient failure also ends a dispatch, and occurs a few times in a row.
    for _ in 0..6 {
        let Some(done) = stage.dispatch(Duration::ZERO) else { continue };
        match errno_of(&done.event) {
            Some(errno) => stage.excuse("dispatch", errno),
            None => panic!("a completion that was not expected: {done:?}"),
        }
    }
}

/// Unregisters; data that the peer sends then is read from the descriptor, not by the channel.
fn given_back(stage: &mut Stage, handle: megapipe::Handle, peer: &mut (impl Read + Write)) {
    let remains = stage.unregister(handle);
    let descriptor = remains.descriptor.expect("the descriptor");
    peer.write_all(b"for the descriptor").expect("write");
    look_around(stage);
    let mut found = [0; 18];
    let mut stream = std::os::unix::net::UnixStream::from(descriptor);
    stream.read_exact(&mut found).expect("what was sent after the handle had gone");
    assert_eq!(&found, b"for the descriptor");
}

/// Cancels requests of all kinds, which all complete.
pub(crate) fn cancel(stage: &mut Stage) {
    let (_ours, theirs) = silent();
    let stream = stage.join(|| theirs.try_clone().expect("a duplicate"));
    let (listening, _address, _listener) = stage.listen();
    let timer = stage.join(|| Timer::after(Duration::from_secs(3600)).expect("a timer"));
    stage.call("receive", |channel| channel.receive(stream, Repeat::UntilCancelled));
    stage.call("poll", |channel| channel.poll(stream, libc::POLLIN as u32, Repeat::UntilCancelled));
    stage.call("write", |channel| Ok(channel.write(stream, vec![1; 1 << 20])?));
    let file = stage.join(memory_file);
    stage.call("peek", |channel| Ok(channel.peek(stream, Vec::with_capacity(9))?));
    stage.call("send_file", |channel| channel.send_file(stream, file, 0, 9));
    stage.call("accept", |channel| channel.accept(listening, Accept::lightweight()));
    stage.call("watch", |channel| channel.watch(timer, Repeat::Once));
    stage.call("flush", Channel::flush);
    let (mut last, expected) = (0, 7);
    for handle in [stream, listening, timer] {
        stage.call("cancel", |channel| channel.cancel(handle));
    }
    while last < expected {
        let done = stage.next();
        last += u32::from(!done.more);
        if let Some(errno) = errno_of(&done.event)
            && errno != libc::ECANCELED
        {
            stage.excuse("a cancelled request", errno);
        }
    }
    assert_eq!(stage.channel.outstanding(), 0);
    for handle in [stream, listening, timer, file] {
        stage.close(handle);
    }
}

/// Drops the channel with requests of all kinds in flight.
pub(crate) fn drop_busy(stage: &mut Stage) {
    stage.may_be_busy = true;
    let (listening, address, _listener) = stage.listen();
    let (client, lightweight) = stage.serve(listening, address, Accept::lightweight());
    stage.call("receive", |channel| channel.receive(lightweight, Repeat::UntilCancelled));
    stage.peers.push(client.into());
    // One connection is accepted and not registered, one waits to be accepted.
    let waiting: OwnedFd = crate::common::client(address).into();
    stage.peers.push(waiting);
    let file = stage.join(|| {
        let file = std::fs::File::from(memory_file());
        file.set_len(1 << 20).expect("a length");
        file
    });
    for number in 0..5 {
        let (ours, theirs) = unix_pair();
        let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
        match number {
            0 => stage.call("receive", |channel| channel.receive(handle, Repeat::Once)),
            1 => stage.call("read", |channel| Ok(channel.read(handle, Vec::with_capacity(999))?)),
            2 => stage.call("peek", |channel| Ok(channel.peek(handle, Vec::with_capacity(999))?)),
            3 => stage.call("send_file", |channel| channel.send_file(handle, file, 0, 1 << 20)),
            _ => stage.call("write", |channel| Ok(channel.write(handle, vec![1; 1 << 20])?)),
        }
        stage.peers.push(ours.into());
    }
    let timer = stage.join(|| Timer::after(Duration::from_secs(3600)).expect("a timer"));
    stage.call("watch", |channel| channel.watch(timer, Repeat::UntilCancelled));
    stage.call("write_at", |channel| Ok(channel.write_at(file, vec![1; 9000], 0)?));
    stage.call("sync", |channel| channel.sync(file));
    stage.call("flush", Channel::flush);
}

/// Returns settings with a submission queue so short that the requests below fill it.
pub(crate) fn crowded(driver: DriverChoice) -> Config {
    Config { completions: 64, batch: 1024, ..config(driver) }
}

/// Submits more than the queue holds, cancels and unregisters it all.
pub(crate) fn crowd(stage: &mut Stage) {
    let mut members = Vec::new();
    for _ in 0..24 {
        let (ours, theirs) = silent();
        let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
        drop(theirs);
        for _ in 0..2 {
            stage.call("poll", |channel| channel.poll(handle, 0, Repeat::Once));
        }
        stage.call("read", |channel| Ok(channel.read(handle, Vec::with_capacity(9))?));
        members.push((ours, handle));
    }
    stage.call("flush", Channel::flush);
    let (some, others) = members.split_at_mut(12);
    for (_, handle) in &mut *some {
        stage.call("cancel", |channel| channel.cancel(*handle));
    }
    for _ in 0..36 {
        let done = stage.next();
        match errno_of(&done.event) {
            Some(libc::ECANCELED) => {}
            Some(errno) => stage.excuse("a cancelled request", errno),
            None => panic!("a cancelled request has a result: {:?}", done.event),
        }
    }
    for (ours, handle) in others {
        let remains = stage.unregister(*handle);
        ours.write_all(b"late").expect("write");
        let mut found = [0; 4];
        let mut theirs =
            std::os::unix::net::UnixStream::from(remains.descriptor.expect("the descriptor"));
        theirs.read_exact(&mut found).expect("what was sent after the handle had gone");
    }
    for (_, handle) in some {
        stage.close(*handle);
    }
}

/// Ends a connection while the kernel cannot create a thread for it.
pub(crate) fn disconnect_without_threads(stage: &mut Stage) {
    let (mut ours, theirs): (_, TcpStream) = crate::common::tcp_pair();
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    super::forbid_threads();
    let file = |channel: &mut Channel<u64>| channel.disconnect(handle, Shutdown::Write);
    stage.call("disconnect", file);
    if super::ends_or_names_the_lack_of_threads(stage, handle) {
        crate::common::expect_end(&mut ours);
    }
    stage.close(handle);
}
