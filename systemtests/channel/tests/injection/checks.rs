//! Checks what must hold after a scenario, whatever call has failed.

use crate::common::process::descriptors;
use crate::layer::armed;
use crate::memory;
use crate::stage::{BUFFERS, Stage, TIME_LIMIT};
use megapipe::{Channel, Event, Lease, Repeat};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How often, and after which pause, a check is repeated for objects that the kernel releases late.
const ROUNDS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// More bytes than the stack frames of any call on a channel take.
const FRAMES_BYTES: usize = 32 << 10;

/// Submits the entries that an aborted call may have left in the queue, while the memory of its
/// former stack frames has a known content. A request that points there shows up as a change.
#[inline(never)]
pub(crate) fn dead_frames(channel: &mut Channel<u64>) {
    // The only large object of this frame, so it covers the memory of the former frames.
    let mut frames = MaybeUninit::<[u8; FRAMES_BYTES]>::uninit();
    let first: *mut u8 = black_box(&mut frames).as_mut_ptr().cast();
    // SAFETY: the array has that many bytes.
    unsafe { first.write_bytes(0xa7, FRAMES_BYTES) };
    let _ = channel.flush();
    // SAFETY: the array has that many bytes, which were written above.
    let is_broken = |offset: &usize| unsafe { first.add(*offset).read_volatile() != 0xa7 };
    let broken = (0..FRAMES_BYTES).filter(is_broken).count();
    assert_eq!(broken, 0, "the kernel wrote into stack frames of a call that had returned");
}

/// Ends a scenario: everything completes, no data is missing, and no resource leaks.
#[track_caller]
pub(crate) fn finish(mut stage: Stage, before: &[String]) {
    if !stage.may_be_busy {
        drain(&mut stage);
        all_buffers_are_there(&mut stage);
    }
    let Stage { channel, peers, .. } = stage;
    armed(|| drop(channel));
    ends_are_closed(peers);
    nothing_is_open(before);
    no_thread_is_left();
    memory::check();
}

/// Waits until each request has had its last completion.
#[track_caller]
fn drain(stage: &mut Stage) {
    for _ in 0..ROUNDS {
        if stage.channel.outstanding() == 0 {
            return;
        }
        // An error was checked at its first occurrence.
        let _ = armed(|| stage.channel.dispatch(PAUSE));
    }
    panic!("{} requests do not end", stage.channel.outstanding());
}

/// Leases all buffers of the channel at once, which takes a receive for each.
#[track_caller]
fn all_buffers_are_there(stage: &mut Stage) {
    let channel = &mut stage.channel;
    let (ours, theirs) = UnixStream::pair().expect("socketpair");
    let stream = channel.register(theirs, 0).expect("register");
    let mut leases: Vec<Lease> = Vec::new();
    for number in 0..BUFFERS {
        channel.receive(stream, Repeat::Once).expect("receive");
        std::io::Write::write_all(&mut &ours, b"x").expect("write");
        match channel.dispatch(TIME_LIMIT).expect("dispatch").map(|done| done.event) {
            Some(Event::Receive(Ok(lease))) => leases.push(lease),
            other => panic!("{number} of {BUFFERS} small buffers are left: {other:?}"),
        }
    }
    channel.unregister(stream).expect("unregister");
    drop(leases);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let address = socket.local_addr().expect("address");
    let client = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let datagrams = channel.register(socket, 0).expect("register");
    channel.receive_from(datagrams, Repeat::UntilCancelled).expect("receive");
    let mut kept = Vec::new();
    for number in 0..BUFFERS {
        client.send_to(b"x", address).expect("send");
        match channel.dispatch(TIME_LIMIT).expect("dispatch").map(|done| done.event) {
            Some(Event::ReceiveFrom(Ok(datagram))) => kept.push(datagram),
            other => panic!("{number} of {BUFFERS} large buffers are left: {other:?}"),
        }
    }
    channel.unregister(datagrams).expect("unregister");
}

/// Checks that the channel's ends are closed with it. The peers first send data, which no request
/// may take.
#[track_caller]
fn ends_are_closed(peers: Vec<OwnedFd>) {
    for peer in peers {
        let bytes = [0x3c_u8; 64];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the bytes are readable.
        let _ = unsafe { libc::send(peer.as_raw_fd(), bytes.as_ptr().cast(), 64, flags) };
        let events = libc::POLLRDHUP;
        let mut asked = libc::pollfd { fd: peer.as_raw_fd(), events, revents: 0 };
        // SAFETY: `asked` is one valid entry and outlives the call.
        let found = unsafe { libc::poll(&mut asked, 1, TIME_LIMIT.as_millis() as libc::c_int) };
        assert_eq!(found, 1, "an end is open although its channel is gone");
    }
}

/// Checks that as many descriptors are open as before; the kernel closes some late.
#[track_caller]
fn nothing_is_open(before: &[String]) {
    for _ in 0..ROUNDS {
        if descriptors().len() == before.len() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
    let now = descriptors();
    let new: Vec<&String> = now.iter().filter(|open| !before.contains(open)).collect();
    panic!("descriptors leak: {new:?}");
}

/// Checks that the channel's threads have ended. Those of io_uring belong to the kernel, which ends
/// them later.
#[track_caller]
fn no_thread_is_left() {
    for round in 0.. {
        let tasks = std::fs::read_dir("/proc/self/task").expect("/proc/self/task");
        let names: Vec<String> = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| !name.starts_with("iou-"))
            .collect();
        if names.len() == 1 {
            return;
        }
        assert!(round < ROUNDS, "threads leak: {names:?}");
        std::thread::sleep(PAUSE);
    }
}
