//! Tests pipes and the other descriptors without a position.

use super::*;
use crate::signals::Signals;
use crate::source::{Source, Timer, wake_pair};
use std::fs::File;
use std::io::{Read, Write};

#[test]
fn a_pipe_carries_bytes_and_ends() {
    let mut rig = Rig::new();
    let (reader, writer) = pipe();
    let reader = rig.attach(reader);
    let mut writer = File::from(writer);
    let mut room = [0; 10];
    rig.submit(1, reader, read(&mut room));
    rig.nothing();
    writer.write_all(b"bytes").unwrap();
    assert_eq!(rig.last(1), 5);
    assert_eq!(&room[..5], b"bytes");
    rig.submit(2, reader, receive(true));
    writer.write_all(b"more").unwrap();
    assert_eq!(&*rig.lease(2), b"more");
    drop(writer);
    assert_eq!(rig.last(2), 0);
}

#[test]
fn a_long_write_waits_for_its_reader() {
    let mut rig = Rig::new();
    let (reader, writer) = pipe();
    let writer = rig.attach(writer);
    let sent = pattern(1 << 20);
    let taken = rig.fill(1, writer, &sent);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        File::from(reader).read_to_end(&mut all).unwrap();
        all
    });
    rig.finish_write(1, writer, &sent[taken..]);
    drop(rig);
    assert!(reader.join().unwrap() == sent);
}

#[test]
fn a_broken_pipe_is_an_error_also_after_some_bytes() {
    let mut rig = Rig::new();
    let (reader, writer) = pipe();
    let writer = rig.attach(writer);
    let sent = pattern(1 << 20);
    rig.fill(1, writer, &sent);
    drop(reader);
    assert_eq!(rig.last(1), -libc::EPIPE);
    rig.submit(2, writer, write(&sent));
    assert_eq!(rig.last(2), -libc::EPIPE);
}

#[test]
fn old_kernels_and_odd_files_are_written_the_plain_way() {
    let mut rig = Rig::new();
    let (reader, writer) = pipe();
    let writer = rig.attach(writer);
    rig.driver.objects.get_mut(writer).unwrap().quiet = false;
    rig.submit(1, writer, write(b"plain"));
    assert_eq!(rig.last(1), 5);
    let null = rig.attach(File::options().write(true).open("/dev/null").unwrap());
    rig.submit(2, null, write(b"gone"));
    assert_eq!(rig.last(2), 4);
    drop(reader);
}

#[test]
fn flags_change_only_while_a_pipe_is_attached() {
    let mut rig = Rig::new();
    let (reader, _writer) = pipe();
    let copy = reader.try_clone().unwrap();
    let object = rig.attach(reader);
    assert!(is_nonblocking(&copy));
    rig.driver.detach(object, &[]);
    assert!(!is_nonblocking(&copy));
}

#[test]
fn positions_belong_to_files_and_sockets_to_sockets() {
    let mut rig = Rig::new();
    let (reader, writer) = pipe();
    let (reader, writer) = (rig.attach(reader), rig.attach(writer));
    let mut room = [0; 4];
    rig.submit(1, reader, read_at(&mut room, 0));
    assert_eq!(rig.last(1), -libc::ESPIPE);
    rig.submit(2, writer, Operation::Shutdown { how: libc::SHUT_WR });
    assert_eq!(rig.last(2), -libc::ENOTSOCK);
    rig.submit(3, writer, Operation::Sync { data_only: false });
    assert_eq!(rig.last(3), -libc::EINVAL);
    rig.submit(4, reader, Operation::ReceiveFrom { repeat: false, ancillary: false });
    assert_eq!(rig.last(4), -libc::ENOTSOCK);
    rig.submit(5, writer, read(&mut room));
    assert_eq!(rig.last(5), -libc::EBADF);
}

#[test]
fn a_timer_ticks() {
    let mut rig = Rig::new();
    let timer = rig.attach(Timer::every(Duration::from_millis(1)).unwrap());
    let mut count = [0; 8];
    for tag in 0..5 {
        rig.submit(tag, timer, read(&mut count));
        assert_eq!(rig.last(tag), 8);
        assert!(u64::from_ne_bytes(count) >= 1);
    }
}

#[test]
fn wakes_come_from_other_threads_and_none_is_lost() {
    let mut rig = Rig::new();
    let (waker, source) = wake_pair().unwrap();
    let source = rig.attach(source);
    let waking = std::thread::spawn(move || {
        for _ in 0..1000 {
            waker.wake();
        }
    });
    let (mut sum, mut count, mut tag) = (0, [0; 8], 0);
    while sum < 1000 {
        rig.submit(tag, source, read(&mut count));
        assert_eq!(rig.last(tag), 8);
        sum += u64::from_ne_bytes(count);
        tag += 1;
    }
    assert_eq!(sum, 1000);
    waking.join().unwrap();
}

#[test]
fn signals_arrive() {
    let mut rig = Rig::new();
    let mut source = Source::from(Signals::new(&[libc::SIGUSR2]).unwrap());
    let _blocked = source.blocked.take();
    let signals = rig.attach(source);
    let mut info = [0; 128];
    for tag in 0..3 {
        rig.submit(tag, signals, read(&mut info));
        rig.nothing();
        // SAFETY: the signal is blocked in this thread, which is alive.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        assert_eq!(rig.last(tag), 128);
        assert_eq!(info[..4], (libc::SIGUSR2 as u32).to_ne_bytes());
    }
}
