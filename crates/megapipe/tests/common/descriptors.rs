//! Helpers for tests of messages with descriptors: files with a mark, pairs of sockets, and both
//! ends of a message.

use super::process::descriptors;
use super::{Rig, TIME_LIMIT, memory_file};
use megapipe::{Completion, DescriptorsLost, Event, Handle, Message};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Returns a file that contains the mark.
pub fn marked(mark: u8) -> OwnedFd {
    let file = File::from(memory_file());
    file.write_all_at(&[mark], 0).expect("write");
    file.into()
}

/// Waits until no marked file of this process is open: the kernel closes some late.
#[track_caller]
pub fn expect_none_open() {
    let until = Instant::now() + TIME_LIMIT;
    loop {
        let open = descriptors().iter().filter(|line| line.contains("memfd:")).count();
        if open == 0 {
            return;
        }
        assert!(Instant::now() < until, "{open} files are still open: {:#?}", descriptors());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the marks of the files.
#[track_caller]
pub fn marks(descriptors: &[OwnedFd]) -> Vec<u8> {
    let mark = |descriptor: &OwnedFd| {
        let mut mark = [0];
        let file = File::from(descriptor.try_clone().expect("a duplicate"));
        file.read_exact_at(&mut mark, 0).expect("the mark");
        mark[0]
    };
    descriptors.iter().map(mark).collect()
}

/// Returns a connected pair of UNIX sockets of a type.
pub fn pair_of(socket_type: libc::c_int) -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let kind = socket_type | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
    // SAFETY: the kernel has just opened both descriptors, which have no other owner.
    let [ours, theirs] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    (ours, theirs)
}

/// Sets an option of a socket that is a number.
pub fn set(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    let (address, bytes) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: the value outlives the call, and the length is its size.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, address, bytes) };
    assert_eq!(result, 0, "setsockopt: {}", std::io::Error::last_os_error());
}

/// Returns a message of these bytes with files of these marks.
pub fn with_marks(bytes: &'static str, marks: &[u8]) -> Message {
    let message = Message::new(bytes);
    marks.iter().fold(message, |message, mark| message.with_descriptor(marked(*mark)))
}

/// Sends from one member of a channel to another; returns both completions.
#[track_caller]
pub fn exchange(rig: &mut Rig, from: Handle, to: Handle, pair: [Message; 2]) -> [Completion; 2] {
    let [sent, room] = pair;
    rig.receive_message(to, room).expect("receive");
    rig.send_message(from, sent).expect("send");
    let (first, second) = (rig.next(), rig.next());
    if first.handle == from { [first, second] } else { [second, first] }
}

/// Returns the message that was sent, which must have that many bytes.
#[track_caller]
pub fn sent(event: Event, bytes: usize) -> Message {
    match event {
        Event::SendMessage(Ok(count), message) if count == bytes => message,
        other => panic!("expected a message of {bytes} bytes to be sent: {other:?}"),
    }
}

/// Returns the message that was received.
#[track_caller]
pub fn got(event: Event) -> Message {
    match event {
        Event::ReceiveMessage(Ok(_), message) => message,
        other => panic!("expected a message: {other:?}"),
    }
}

/// Returns the message of a receive that lost descriptors, and how many there was room for.
#[track_caller]
pub fn lossy(event: Event) -> (Message, usize) {
    let Event::ReceiveMessage(Err(error), message) = event else { panic!("{event:?}") };
    let lost = error.get_ref().and_then(|error| error.downcast_ref::<DescriptorsLost>());
    let lost = lost.unwrap_or_else(|| panic!("another error: {error}"));
    (message, lost.room)
}
