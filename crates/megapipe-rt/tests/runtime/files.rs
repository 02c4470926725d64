//! Tests disk files against those of the standard library.

use crate::common::{limited, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{File, TaskGroup, sleep, yield_now};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

on_both_drivers!(
    a_file_is_written_and_read_in_sequence,
    many_requests_at_offsets_are_matched_with_their_futures,
    dropped_writes_are_written_and_their_errors_kept,
    a_dropped_read_leaves_the_position,
    concurrent_syncs_each_end,
    appended_bytes_come_last,
    errors_have_the_kernels_number,
);

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    (directory, path)
}

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options
}

fn a_file_is_written_and_read_in_sequence(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (_directory, path) = directory();
    let content = testkit::content(1_000_000);
    within(&runtime, async {
        let mut file = File::create(&path).await.unwrap();
        for piece in content.chunks(70_001) {
            file.write(piece.to_vec()).await.unwrap();
        }
        file.write("").await.unwrap();
        assert_eq!(file.position(), 1_000_000);
        file.sync().await.unwrap();
        assert!(fs::read(&path).unwrap() == content);
        assert_eq!(file.metadata().await.unwrap().len(), 1_000_000);
        drop(file);

        let mut file = File::open(&path).await.unwrap();
        assert_eq!(file.read(10).await.unwrap(), content[..10]);
        assert!(file.read(0).await.unwrap().is_empty());
        let rest = file.read_to_end().await.unwrap();
        assert!(rest == content[10..]);
        assert!(file.read(10).await.unwrap().is_empty());
        assert!(file.read_to_end().await.unwrap().is_empty());
        file.set_position(999_990);
        assert_eq!(file.read(100).await.unwrap(), content[999_990..]);
        let found = file.read_at(Vec::new(), 0).await;
        assert!(found.unwrap_err().to_string().contains("no spare capacity"));
        // Behind what the buffer has already.
        let mut buffer = Vec::with_capacity(5);
        buffer.push(b'x');
        let found = file.read_at(buffer, 7).await.unwrap();
        assert_eq!(found, [b"x", &content[7..7 + found.len() - 1]].concat());
    });
}

fn many_requests_at_offsets_are_matched_with_their_futures(driver: DriverChoice) {
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 200;
    let runtime = runtime(driver, 1);
    let (_directory, path) = directory();
    within(&runtime, async {
        let file = Rc::new(File::open_with(&both(), &path).await.unwrap());
        let mut group = TaskGroup::new();
        for block in 0..BLOCKS {
            let file = Rc::clone(&file);
            group.spawn(async move {
                file.write_at(vec![block as u8; BLOCK], (block * BLOCK) as u64).await
            });
        }
        group.join_all().await.unwrap().into_iter().for_each(|written| written.unwrap());
        let mut group = TaskGroup::new();
        for block in (0..BLOCKS).rev() {
            // Several of each offset, which differ in their buffers alone.
            for count in [1, 100, BLOCK] {
                let file = Rc::clone(&file);
                group.spawn(async move {
                    let buffer = Vec::with_capacity(count);
                    let capacity = buffer.capacity();
                    let found = file.read_at(buffer, (block * BLOCK) as u64).await.unwrap();
                    assert_eq!(found.len(), capacity.min((BLOCKS - block) * BLOCK));
                    assert!(found[..count].iter().all(|byte| *byte == block as u8));
                });
            }
        }
        assert_eq!(group.join_all().await.unwrap().len(), 3 * BLOCKS);
    });
}

fn dropped_writes_are_written_and_their_errors_kept(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (_directory, path) = directory();
    within(&runtime, async {
        let mut file = File::create(&path).await.unwrap();
        for number in 0..100u8 {
            // The first poll submits the write.
            assert!(limited(1, file.write(vec![number; 1000])).await.is_none());
        }
        assert_eq!(file.position(), 100_000);
        file.write("end").await.unwrap();
        // The close waits for all of them.
        drop(file);
        let blocks = (0..100u8).flat_map(|number| [number; 1000]);
        let expected: Vec<u8> = blocks.chain(*b"end").collect();
        while fs::read(&path).unwrap() != expected {
            sleep(Duration::from_millis(1)).await;
        }
        // A file that cannot be written.
        let mut file = File::open(&path).await.unwrap();
        assert!(file.write("now").await.is_err());
        assert!(limited(1, file.write("later")).await.is_none());
        let error = loop {
            match file.sync().await {
                Ok(()) => yield_now().await,
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        file.sync().await.unwrap();
    });
}

fn a_dropped_read_leaves_the_position(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (_directory, path) = directory();
    let content = testkit::content(300_000);
    fs::write(&path, &content).unwrap();
    within(&runtime, async {
        let mut file = File::open(&path).await.unwrap();
        let mut received = Vec::new();
        loop {
            if limited(1, file.read_to_end()).await.is_none() {
                assert_eq!(file.position(), received.len() as u64);
            } else {
                file.set_position(received.len() as u64);
            }
            let piece = file.read(7_001).await.unwrap();
            if piece.is_empty() {
                break;
            }
            received.extend_from_slice(&piece);
        }
        assert!(received == content);
    });
}

fn concurrent_syncs_each_end(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (_directory, path) = directory();
    within(&runtime, async {
        let file = Rc::new(File::create(&path).await.unwrap());
        let mut group = TaskGroup::new();
        for number in 0..20u8 {
            let file = Rc::clone(&file);
            group.spawn(async move {
                file.write_at(vec![number], u64::from(number)).await?;
                match number % 2 {
                    0 => file.sync().await,
                    _ => file.sync_data().await,
                }
            });
        }
        let _ = limited(1, file.sync()).await;
        group.join_all().await.unwrap().into_iter().for_each(|synced| synced.unwrap());
        file.sync().await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), (0..20).collect::<Vec<u8>>());
    });
}

fn appended_bytes_come_last(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (_directory, path) = directory();
    fs::write(&path, "first ").unwrap();
    within(&runtime, async {
        let mut file = File::open_with(OpenOptions::new().append(true), &path).await.unwrap();
        file.write("second ").await.unwrap();
        file.write_at("third", 0).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first second third");
    });
}

fn errors_have_the_kernels_number(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let (directory, path) = directory();
    within(&runtime, async {
        assert_eq!(File::open(&path).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let error = File::open(directory.path()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = fs::File::from(std::os::fd::OwnedFd::from(reader));
        assert!(File::from_std(pipe).unwrap_err().to_string().contains("PipeReader"));
        let file = File::create(&path).await.unwrap();
        let error = file.read_at(Vec::with_capacity(5), 0).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        let error = file.write_at("x", u64::MAX).await.unwrap_err();
        assert!(error.to_string().contains("offset"), "{error}");
        let full = File::open_with(OpenOptions::new().write(true), "/dev/full").await;
        assert!(full.unwrap_err().to_string().contains("not a disk file"));
    });
}
