//! Tests disk files and the helper threads.

use super::*;
use crate::source::{Endpoint, Kind};
use std::fs::File;
use std::io::{Read, Write};

fn open(path: &std::path::Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Returns a pipe that the driver takes for a disk file: the test decides how long the disk takes.
fn slow_disk(rig: &mut Rig) -> (Object, File) {
    let (reader, writer) = pipe();
    let disk = rig.driver.attach(Endpoint::Descriptor(reader), Kind::File).unwrap();
    (disk, File::from(writer))
}

#[test]
fn what_is_written_can_be_read_and_synced() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::new();
    let file = rig.attach(open(&directory.path().join("file")));
    let sent = pattern(300_000);
    rig.submit(1, file, write_at(&sent, 1000));
    assert_eq!(rig.last(1), sent.len() as i32);
    for data_only in [false, true] {
        rig.submit(2, file, Operation::Sync { data_only });
        assert_eq!(rig.last(2), 0);
    }
    let mut room = vec![1; sent.len() + 5000];
    rig.submit(3, file, read_at(&mut room, 0));
    assert_eq!(rig.last(3), sent.len() as i32 + 1000);
    assert!(room[..1000].iter().all(|byte| *byte == 0));
    assert!(room[1000..][..sent.len()] == sent);
    rig.submit(4, file, read_at(&mut room, 1 << 40));
    assert_eq!(rig.last(4), 0);
    rig.submit(5, file, read_at(&mut room, 1 << 63));
    assert_eq!(rig.last(5), -libc::EINVAL);
}

#[test]
fn without_an_offset_the_position_moves() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut rig = Rig::new();
    let file = rig.attach(open(&path));
    for tag in 0..5 {
        rig.submit(tag, file, write(b"line\n"));
        assert_eq!(rig.last(tag), 5);
    }
    rig.submit(6, file, write_parts(&parts([b"the ", b"end"])));
    assert_eq!(rig.last(6), 7);
    assert_eq!(std::fs::read(&path).unwrap(), b"line\nline\nline\nline\nline\nthe end");

    let file = rig.attach(open(&path));
    let (first, second) = ([0u8; 20], [0u8; 100]);
    let vector = parts([&first, &second]);
    rig.submit(7, file, read_parts(&vector));
    assert_eq!(rig.last(7), 32);
    assert_eq!(&second[..12], b"line\nthe end");
    rig.submit(8, file, read_parts(&vector));
    assert_eq!(rig.last(8), 0);
}

#[test]
fn a_cold_cache_is_read_by_helpers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let sent = pattern(4 << 20);
    std::fs::write(&path, &sent).unwrap();
    let mut rig = Rig::new();
    let file = open(&path);
    file.sync_all().unwrap();
    // Drops the second half from the page cache, if the file system can do that.
    let half = sent.len() / 2;
    // SAFETY: the call takes no pointers.
    unsafe {
        let advice = libc::POSIX_FADV_DONTNEED;
        libc::posix_fadvise(file.as_raw_fd(), half as i64, half as i64, advice);
    }
    let file = rig.attach(file);
    let mut room = vec![0; sent.len() + 1];
    rig.submit(1, file, read_at(&mut room, 0));
    assert_eq!(rig.last(1), sent.len() as i32);
    assert!(room[..sent.len()] == sent);
}

#[test]
fn many_operations_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::new();
    let file = rig.attach(open(&directory.path().join("file")));
    let sent = pattern(500 * 100);
    for (tag, chunk) in sent.chunks(100).enumerate() {
        rig.submit(tag as u64, file, write_at(chunk, tag as u64 * 100));
    }
    let mut seen = vec![false; 500];
    for _ in 0..500 {
        let outcome = rig.next();
        assert_eq!(outcome.result, 100);
        assert!(!std::mem::replace(&mut seen[outcome.tag as usize], true));
    }
    rig.nothing();
    let mut room = vec![0; sent.len()];
    rig.submit(1, file, read_at(&mut room, 0));
    assert_eq!(rig.last(1), sent.len() as i32);
    assert!(room == sent);
}

#[test]
fn errors_of_the_disk_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, b"text").unwrap();
    let mut rig = Rig::new();
    let file = rig.attach(File::open(&path).unwrap());
    rig.submit(1, file, write_at(b"x", 0));
    assert_eq!(rig.last(1), -libc::EBADF);
    rig.submit(2, file, receive(true));
    assert_eq!(rig.last(2), -libc::EINVAL);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let full = rig.driver.attach(Endpoint::Descriptor(full.into()), Kind::File).unwrap();
    rig.submit(3, full, write(b"x"));
    assert_eq!(rig.last(3), -libc::ENOSPC);
}

#[test]
fn only_what_has_not_begun_can_be_cancelled() {
    let mut rig = Rig::new();
    let (disk, mut head) = slow_disk(&mut rig);
    let mut rooms = [[0; 1]; 6];
    for (tag, room) in rooms.iter_mut().enumerate() {
        rig.submit(tag as u64, disk, read(room));
    }
    rig.nothing();
    // Helpers take up to four of the jobs at some time; the others are cancelled.
    rig.driver.cancel(5, disk);
    assert_eq!(rig.last(5), -libc::ECANCELED);
    rig.driver.cancel(4, disk);
    assert_eq!(rig.last(4), -libc::ECANCELED);
    wait_until_taken(&mut rig);
    (0..4).for_each(|tag| rig.driver.cancel(tag, disk));
    rig.nothing();
    head.write_all(b"abcd").unwrap();
    let mut tags: Vec<u64> = (0..4)
        .map(|_| {
            let outcome = rig.next();
            assert_eq!(outcome.result, 1);
            outcome.tag
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3]);
    let mut got: Vec<u8> = rooms[..4].iter().map(|room| room[0]).collect();
    got.sort_unstable();
    assert_eq!(got, b"abcd");
}

/// Waits until helpers have taken all waiting jobs.
fn wait_until_taken(rig: &mut Rig) {
    while rig.driver.helpers.as_ref().is_some_and(|helpers| helpers.waiting() > 0) {
        std::thread::yield_now();
    }
}

#[test]
fn what_was_read_before_a_cancellation_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let sent = pattern(3 << 20);
    std::fs::write(&path, &sent).unwrap();
    let mut rig = Rig::new();
    // All helpers are busy, so nothing beyond the first part is read.
    let (disk, mut head) = slow_disk(&mut rig);
    let mut rooms = [[0; 1]; 4];
    for (tag, room) in rooms.iter_mut().enumerate() {
        rig.submit(tag as u64, disk, read(room));
    }
    wait_until_taken(&mut rig);
    let file = rig.attach(open(&path));
    let mut room = vec![0; sent.len()];
    rig.submit(9, file, read(&mut room));
    rig.nothing();
    rig.driver.cancel(9, file);
    let first = rig.last(9) as usize;
    assert!(first > 0 && first < sent.len(), "{first} bytes");
    assert!(room[..first] == sent[..first]);
    head.write_all(b"abcd").unwrap();
    for _ in 0..4 {
        assert_eq!(rig.next().result, 1);
    }
    // The position of the file is after them.
    rig.submit(10, file, read(&mut room[first..]));
    assert_eq!(rig.last(10) as usize, sent.len() - first);
    assert!(room == sent);
}

#[test]
fn a_file_that_does_not_block_is_waited_for() {
    let mut rig = Rig::new();
    let (reader, writer) = pipe();
    for end in [&reader, &writer] {
        crate::driver::nonblocking::set(end.as_raw_fd()).unwrap();
    }
    let [reader, writer] = [reader, writer]
        .map(|end| rig.driver.attach(Endpoint::Descriptor(end), Kind::File).unwrap());
    let sent = pattern(1 << 20);
    let mut room = [0; 4096];
    rig.submit(1, reader, read(&mut room));
    rig.nothing();
    rig.submit(2, writer, write(&sent));
    assert_eq!(rig.last(1), 4096);
    assert_eq!(room, sent[..4096]);
    let mut room = vec![0; sent.len() - 4096];
    let (mut got, mut written) = (0, None);
    rig.submit(3, reader, read(&mut room));
    // The buffers belong to the driver until both outcomes: the last bytes can be read before the
    // helper's write returns.
    while got < room.len() || written.is_none() {
        let outcome = rig.next();
        if outcome.tag == 2 {
            written = Some(outcome.result);
            continue;
        }
        assert!(outcome.result > 0, "{outcome:?}");
        got += outcome.result as usize;
        if got < room.len() {
            rig.submit(3, reader, read(&mut room[got..]));
        }
    }
    assert_eq!(written, Some(sent.len() as i32));
    assert!(room == sent[4096..]);
}

#[test]
fn a_file_that_is_given_back_is_the_callers_at_once() {
    let mut rig = Rig::new();
    let (disk, mut head) = slow_disk(&mut rig);
    let mut room = [0; 3];
    rig.submit(1, disk, read(&mut room));
    wait_until_taken(&mut rig);
    // The caller may close the descriptor, and its number be reused, while the helper still reads.
    drop(rig.driver.detach(disk, &[1]).unwrap());
    rig.nothing();
    head.write_all(b"abc").unwrap();
    assert_eq!(rig.last(1), 3);
    assert_eq!(&room, b"abc");
    drop(rig);
    // The last reader has closed its end.
    assert!(head.write_all(b"x").is_err());
}

#[test]
fn the_helpers_queue_is_bounded() {
    let mut rig = Rig::new();
    let (disk, mut head) = slow_disk(&mut rig);
    // Several helpers read at a time, so each read has its own room.
    let mut rooms = vec![[0; 1]; 10_000];
    let mut filed = 0;
    while rig.driver.submit(filed as u64, disk, read(&mut rooms[filed])).is_ok() {
        filed += 1;
    }
    assert!(filed >= 1000);
    head.write_all(&vec![b'x'; filed]).unwrap();
    for _ in 0..filed {
        assert_eq!(rig.next().result, 1);
    }
    rig.submit(0, disk, read(&mut rooms[filed]));
    head.write_all(b"y").unwrap();
    assert_eq!(rig.last(0), 1);
}

#[test]
fn shutting_down_waits_for_the_disk_but_not_for_ever() {
    let mut rig = Rig::new();
    let (disk, mut head) = slow_disk(&mut rig);
    let (near, _far) = tcp_pair();
    let near = rig.attach(near);
    let mut rooms = [[0; 1]; 8];
    for (tag, room) in rooms.iter_mut().enumerate() {
        rig.submit(tag as u64, disk, read(room));
    }
    rig.submit(100, near, receive(true));
    while rig.driver.helpers.as_ref().unwrap().waiting() > 4 {
        std::thread::yield_now();
    }
    assert!(!rig.driver.shut_down(Duration::from_millis(20)));
    // The four jobs that had not begun, and the receive.
    for _ in 0..5 {
        assert_eq!(rig.next().result, -libc::ECANCELED);
    }
    head.write_all(b"abcd").unwrap();
    assert!(rig.driver.shut_down(AMPLE));
    for _ in 0..4 {
        assert_eq!(rig.next().result, 1);
    }
    rig.nothing();
    drop(rig);
}

#[test]
fn a_driver_without_work_shuts_down_at_once() {
    let mut rig = Rig::new();
    assert!(rig.driver.shut_down(Duration::ZERO));
    let directory = tempfile::tempdir().unwrap();
    let file = rig.attach(open(&directory.path().join("file")));
    rig.submit(1, file, write(b"x"));
    assert_eq!(rig.last(1), 1);
    assert!(rig.driver.shut_down(Duration::ZERO));
    let mut text = String::new();
    open(&directory.path().join("file")).read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
}
