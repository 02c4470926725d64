//! Tests disk files, and the sources that are watched: timers, signals, wake-ups.

use crate::common;
use crate::common::{Pattern, Rig, outcome, read_of, unix_pair, written};
use megapipe::{
    Buffer, DriverChoice, Error, Event, Kind, Repeat, SignalInfo, Signals, Timer, wake_pair,
};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

fn open(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

pub(crate) fn files_have_a_position(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let handle = rig.join(open(&path));
    assert_eq!(rig.kind(handle).unwrap(), Kind::File);
    rig.write(handle, b"one ").unwrap();
    rig.write(handle, b"two ").unwrap();
    rig.write_vectored(handle, vec!["three ".into(), "four".into()]).unwrap();
    for bytes in [4, 4, 10] {
        assert_eq!(outcome(&rig.last(handle)), Ok(bytes));
    }
    rig.sync(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Sync(Ok(()))));
    rig.sync_data(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Sync(Ok(()))));
    assert_eq!(fs::read(&path).unwrap(), b"one two three four");
    // The position belongs to the file: the writes have moved it.
    let mut file = File::from(rig.unregister(handle).unwrap().descriptor.unwrap());
    assert_eq!(file.stream_position().unwrap(), 18);
    file.seek(SeekFrom::Start(4)).unwrap();
    let handle = rig.join(file);
    rig.read(handle, Vec::with_capacity(4)).unwrap();
    rig.read_vectored(handle, vec![Vec::with_capacity(6), Vec::with_capacity(90)]).unwrap();
    rig.read(handle, Vec::with_capacity(4)).unwrap();
    assert_eq!(read_of(rig.last(handle)), b"two ");
    match rig.last(handle) {
        Event::ReadVectored(Ok(10), buffers) => {
            assert_eq!(buffers, [b"three ".to_vec(), b"four".to_vec()]);
        }
        other => panic!("unexpected {other:?}"),
    }
    assert!(read_of(rig.last(handle)).is_empty(), "the end of the file");
}

pub(crate) fn reads_and_writes_at_offsets(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let handle = rig.join(open(&path));
    rig.write_at(handle, b"world", 6).unwrap();
    match rig.last(handle) {
        Event::WriteAt(Ok(5), buffer, 6) => assert_eq!(&*buffer, b"world"),
        other => panic!("unexpected {other:?}"),
    }
    rig.write_at(handle, b"hello ", 0).unwrap();
    assert!(matches!(rig.last(handle), Event::WriteAt(Ok(6), _, 0)));
    assert_eq!(fs::read(&path).unwrap(), b"hello world");
    let mut buffer = Vec::with_capacity(10);
    buffer.push(b'<');
    rig.read_at(handle, buffer, 4).unwrap();
    match rig.last(handle) {
        Event::ReadAt(Ok(7), buffer, 4) => assert_eq!(buffer, b"<o world"),
        other => panic!("unexpected {other:?}"),
    }
    rig.read_at(handle, Vec::with_capacity(10), 11).unwrap();
    assert!(matches!(rig.last(handle), Event::ReadAt(Ok(0), _, 11)));
    rig.read_at(handle, Vec::with_capacity(10), i64::MAX as u64).unwrap();
    let far = rig.last(handle);
    assert!([Ok(0), Err(libc::EINVAL)].contains(&outcome(&far)), "{far:?}");
    let rejected = rig.read_at(handle, Vec::with_capacity(33), 1 << 63).unwrap_err();
    assert!(matches!(rejected.error, Error::Invalid(_)) && rejected.buffer.capacity() == 33);
    // Neither moves the file's position.
    rig.read(handle, Vec::with_capacity(5)).unwrap();
    assert_eq!(read_of(rig.last(handle)), b"hello");
}

pub(crate) fn many_offsets_at_once(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let handle = rig.join(open(&path));
    let (block, count) = (3000, 200);
    let mut pending: Vec<u64> = (0..count).map(|number| number * block as u64).collect();
    for offset in pending.iter().rev() {
        rig.write_at(handle, pattern.bytes(*offset as usize, block), *offset).unwrap();
    }
    while !pending.is_empty() {
        match rig.last(handle) {
            Event::WriteAt(Ok(bytes), _, offset) => {
                assert_eq!(bytes, block);
                let known = pending.iter().position(|known| *known == offset);
                pending.swap_remove(known.expect("an offset that was asked for, once"));
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    pattern.check(0, &fs::read(&path).unwrap());
    for number in 0..count {
        rig.read_at(handle, Vec::with_capacity(block), number * block as u64).unwrap();
    }
    let mut total = 0;
    for _ in 0..count {
        match rig.last(handle) {
            Event::ReadAt(Ok(bytes), buffer, offset) => {
                assert_eq!(bytes, block);
                pattern.check(offset as usize, &buffer);
                total += bytes;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(total, block * count as usize);
}

pub(crate) fn vectored_files(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(2);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let handle = rig.join(open(&path));
    let buffers: Vec<Buffer> =
        (0..1024).map(|number| pattern.bytes(number * 100, 100).into()).collect();
    rig.write_vectored(handle, buffers).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(102_400));
    pattern.check(0, &fs::read(&path).unwrap());
    let too_many = (0..1025).map(|_| Buffer::from(b"x")).collect();
    let rejected = rig.write_vectored(handle, too_many).unwrap_err();
    assert!(matches!(rejected.error, Error::Invalid(_)) && rejected.buffer.len() == 1025);
    let too_many = (0..1025).map(|_| Vec::with_capacity(1)).collect();
    let rejected = rig.read_vectored(handle, too_many).unwrap_err();
    assert!(matches!(rejected.error, Error::Invalid(_)) && rejected.buffer.len() == 1025);
}

pub(crate) fn a_large_file(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(3);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let handle = rig.join(open(&path));
    let bytes = 24 << 20;
    rig.write(handle, pattern.bytes(0, bytes)).unwrap();
    assert_eq!(written(rig.last(handle)).len(), bytes);
    let mut at = 0;
    while at < bytes {
        rig.read_at(handle, Vec::with_capacity(5 << 20), at as u64).unwrap();
        match rig.last(handle) {
            Event::ReadAt(Ok(count), buffer, offset) => {
                assert_eq!((offset as usize, count), (at, buffer.len()));
                assert!(count > 0, "the file ends at {at}");
                pattern.check(at, &buffer);
                at += count;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), bytes as u64);
}

pub(crate) fn files_open_for_appending(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, "old ").unwrap();
    let handle = rig.join(OpenOptions::new().append(true).open(&path).unwrap());
    rig.write(handle, b"new ").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 4);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"others ").unwrap();
    rig.write(handle, b"newest").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 6);
    assert_eq!(fs::read(&path).unwrap(), b"old new others newest");
}

pub(crate) fn failures_of_files(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "content").unwrap();
    let handle = rig.join(File::open(&path).unwrap());
    rig.write(handle, b"read only").unwrap();
    match rig.last(handle) {
        Event::Write(Err(error), buffer) => {
            assert_eq!((error.raw_os_error(), &*buffer), (Some(libc::EBADF), &b"read only"[..]));
        }
        other => panic!("unexpected {other:?}"),
    }
    rig.write_at(handle, b"read only", 0).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EBADF));
    let write_only = rig.join(OpenOptions::new().write(true).open(&path).unwrap());
    rig.read(write_only, Vec::with_capacity(5)).unwrap();
    assert_eq!(outcome(&rig.last(write_only)), Err(libc::EBADF));
    let error = rig.channel.register(File::open(directory.path()).unwrap(), 0).unwrap_err();
    match error {
        Error::System { source, .. } => assert_eq!(source.raw_os_error(), Some(libc::EISDIR)),
        other => panic!("unexpected {other:?}"),
    }
    let full = rig.join(OpenOptions::new().write(true).open("/dev/full").unwrap());
    rig.write(full, b"no room").unwrap();
    assert_eq!(outcome(&rig.last(full)), Err(libc::ENOSPC));
    // Devices that are always ready, as standard input and output often are.
    let null = rig.join(OpenOptions::new().read(true).write(true).open("/dev/null").unwrap());
    rig.write(null, b"nowhere").unwrap();
    assert_eq!(written(rig.last(null)).len(), 7);
    rig.read(null, Vec::with_capacity(5)).unwrap();
    assert!(read_of(rig.last(null)).is_empty());
    rig.receive(null, Repeat::UntilCancelled).unwrap();
    assert!(common::received(rig.last(null)).is_empty());
}

pub(crate) fn timers_expire_once(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for delay in [Duration::ZERO, Duration::from_millis(5)] {
        let begin = std::time::Instant::now();
        let handle = rig.join(Timer::after(delay).unwrap());
        assert_eq!(rig.kind(handle).unwrap(), Kind::Timer);
        rig.watch(handle, Repeat::UntilCancelled).unwrap();
        assert!(matches!(rig.another(handle), Event::Timer(Ok(1))));
        assert!(begin.elapsed() >= delay);
        assert_eq!(rig.outstanding(), 1);
        rig.cancel(handle).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    }
}

pub(crate) fn timers_repeat(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let handle = rig.join(Timer::every(Duration::from_millis(1)).unwrap());
    for _ in 0..3 {
        rig.watch(handle, Repeat::Once).unwrap();
        assert!(matches!(rig.last(handle), Event::Timer(Ok(1..))));
        assert_eq!(rig.outstanding(), 0);
    }
    rig.watch(handle, Repeat::UntilCancelled).unwrap();
    for _ in 0..10 {
        assert!(matches!(rig.another(handle), Event::Timer(Ok(1..))));
    }
}

pub(crate) fn timers_count_what_was_missed(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let fast = rig.join(Timer::every(Duration::from_millis(1)).unwrap());
    let slow = rig.join(Timer::after(Duration::from_millis(20)).unwrap());
    rig.watch(slow, Repeat::Once).unwrap();
    assert!(matches!(rig.last(slow), Event::Timer(Ok(1))));
    // Both timers use the same clock, so twenty periods have passed by now.
    rig.watch(fast, Repeat::Once).unwrap();
    let missed = outcome(&rig.last(fast)).unwrap();
    assert!(missed >= 20, "{missed} expiries");
}

/// Sends a signal to the calling thread, in which it is blocked.
fn raise(signal: i32) {
    // SAFETY: the call takes no pointers; the signal is blocked in this thread.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

fn signal_of(event: Event) -> SignalInfo {
    match event {
        Event::Signal(Ok(info)) => info,
        other => panic!("expected a signal: {other:?}"),
    }
}

pub(crate) fn signals_arrive(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let handle = rig.join(Signals::new(&[libc::SIGUSR1]).unwrap());
    assert_eq!(rig.kind(handle).unwrap(), Kind::Signal);
    rig.watch(handle, Repeat::Once).unwrap();
    rig.flush().unwrap();
    raise(libc::SIGUSR1);
    let info = signal_of(rig.last(handle));
    // SAFETY: the call takes no pointers.
    let user = unsafe { libc::getuid() };
    let expected = SignalInfo { signal: libc::SIGUSR1, process: std::process::id(), user };
    assert_eq!(info, expected);
    // A signal that is pending before the request.
    raise(libc::SIGUSR1);
    rig.watch(handle, Repeat::UntilCancelled).unwrap();
    assert_eq!(signal_of(rig.another(handle)), expected);
    raise(libc::SIGUSR1);
    assert_eq!(signal_of(rig.another(handle)), expected);
    rig.cancel(handle).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
}

pub(crate) fn each_signal_by_its_number(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let signals = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGHUP];
    let handle = rig.join(Signals::new(&signals).unwrap());
    rig.watch(handle, Repeat::UntilCancelled).unwrap();
    signals.into_iter().for_each(raise);
    let mut found = signals.map(|_| signal_of(rig.another(handle)).signal);
    found.sort_unstable();
    let mut expected = signals;
    expected.sort_unstable();
    assert_eq!(found, expected);
    let error = Signals::new(&[4711]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
}

pub(crate) fn wakes_from_another_thread(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (waker, source) = wake_pair().unwrap();
    let handle = rig.join(source);
    assert_eq!(rig.kind(handle).unwrap(), Kind::Wake);
    rig.watch(handle, Repeat::UntilCancelled).unwrap();
    let wakes = 1000;
    let thread = std::thread::spawn({
        let waker = waker.clone();
        move || (0..wakes).for_each(|_| waker.wake())
    });
    let mut total = 0;
    while total < wakes {
        total += outcome(&rig.another(handle)).unwrap();
    }
    thread.join().unwrap();
    assert_eq!(total, wakes);
    drop(waker);
}

pub(crate) fn wakes_are_counted_together(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (waker, source) = wake_pair().unwrap();
    let handle = rig.join(source);
    for _ in 0..7 {
        waker.wake();
    }
    rig.watch(handle, Repeat::Once).unwrap();
    assert!(matches!(rig.last(handle), Event::Wake(Ok(7))));
    waker.wake();
    rig.watch(handle, Repeat::Once).unwrap();
    assert!(matches!(rig.last(handle), Event::Wake(Ok(1))));
}

pub(crate) fn a_waker_ends_an_endless_wait(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (waker, source) = wake_pair().unwrap();
    let handle = rig.join(source);
    rig.watch(handle, Repeat::Once).unwrap();
    let thread = std::thread::spawn(move || waker.wake());
    let done = rig.channel.dispatch(None).unwrap().expect("a completion");
    assert_eq!(done.handle, handle);
    thread.join().unwrap();
}

pub(crate) fn watched_sources_come_back(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for round in 1..20u64 {
        let (waker, source) = wake_pair().unwrap();
        let handle = rig.join(source);
        rig.watch(handle, Repeat::UntilCancelled).unwrap();
        rig.flush().unwrap();
        let descriptor = rig.unregister(handle).unwrap().descriptor.unwrap();
        // The cancelled watch takes no wake-up: all of them are still in the descriptor.
        (0..round).for_each(|_| waker.wake());
        let mut counter = [0; 8];
        File::from(descriptor).read_exact(&mut counter).unwrap();
        assert_eq!(u64::from_ne_bytes(counter), round);
    }
    assert!(rig.drain().is_empty());
}

pub(crate) fn timers_are_set_anew(driver: DriverChoice) {
    const DELAY: Duration = Duration::from_millis(5);
    let mut rig = Rig::new(driver);
    let timer = rig.join(Timer::stopped().unwrap());
    rig.watch(timer, Repeat::UntilCancelled).unwrap();
    assert!(rig.dispatch(Duration::from_millis(20)).unwrap().is_none(), "it is stopped");
    for _ in 0..20 {
        let begin = Instant::now();
        rig.set_timer(timer, Duration::from_secs(3600), Duration::ZERO).unwrap();
        rig.set_timer(timer, DELAY, Duration::ZERO).unwrap();
        assert!(matches!(rig.another(timer), Event::Timer(Ok(1))));
        assert!(begin.elapsed() >= DELAY);
    }
    rig.set_timer(timer, Duration::ZERO, Duration::from_millis(1)).unwrap();
    for _ in 0..10 {
        assert!(matches!(rig.another(timer), Event::Timer(Ok(1..))));
    }
    rig.set_timer(timer, None, Duration::ZERO).unwrap();
    while rig.dispatch(Duration::ZERO).unwrap().is_some() {}
    assert!(rig.dispatch(Duration::from_millis(20)).unwrap().is_none(), "it is stopped again");
    let stream = rig.join(unix_pair().0);
    let refused = rig.set_timer(stream, DELAY, Duration::ZERO);
    assert!(matches!(refused, Err(Error::WrongKind { .. })));
    drop(rig.unregister(timer).unwrap());
    let refused = rig.set_timer(timer, DELAY, Duration::ZERO);
    assert!(matches!(refused, Err(Error::UnknownHandle)));
}
