//! Tests pipes against plain blocking ones, and programs at their other ends.

use crate::common::{on_thread, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{PipeReader, PipeWriter, pipe, spawn_local, timeout};
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

on_both_drivers!(
    a_large_message_passes_in_order,
    a_writer_waits_for_a_pipe_that_is_full,
    the_drop_of_the_writer_ends_the_pipe_after_its_output,
    a_pipe_without_a_reader_fails,
    a_program_is_fed_and_read,
    descriptors_that_are_no_pipes_are_refused,
);

fn a_large_message_passes_in_order(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut reader, mut writer) = pipe().unwrap();
        let sender = spawn_local(async move {
            for piece in testkit::content(3_000_000).chunks(70_001) {
                writer.write(piece.to_vec()).await?;
            }
            writer.shutdown().await
        });
        let mut received = Vec::new();
        while let Some(message) = reader.read().await.unwrap() {
            received.extend_from_slice(&message);
        }
        sender.await.unwrap().unwrap();
        assert!(received == testkit::content(3_000_000));
    });
}

fn a_writer_waits_for_a_pipe_that_is_full(driver: DriverChoice) {
    const PIECE: usize = 50_000;
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut writer = PipeWriter::from_descriptor(writer).unwrap();
        let mut written = 0;
        // The kernel's buffer takes 64 KiB, the high-water mark is 64 KiB.
        while let Ok(done) =
            timeout(Duration::from_millis(50), writer.write(vec![written as u8; PIECE])).await
        {
            done.unwrap();
            written += 1;
            assert!(written < 6, "the writer never waits");
        }
        drop(writer);
        let received = on_thread(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        })
        .await;
        assert_eq!(received.len(), written * PIECE);
        let mut in_order = received.chunks(PIECE).enumerate();
        assert!(in_order.all(|(n, piece)| piece.iter().all(|byte| *byte == n as u8)));
    });
}

fn the_drop_of_the_writer_ends_the_pipe_after_its_output(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut writer = PipeWriter::from_descriptor(writer).unwrap();
        writer.write(testkit::content(200_000)).await.unwrap();
        drop(writer);
        let received = on_thread(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        assert!(received.await == testkit::content(200_000));
    });
}

fn a_pipe_without_a_reader_fails(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (reader, mut writer) = pipe().unwrap();
        drop(reader);
        // The channel closes the reader with its next flush.
        let error = loop {
            match writer.write("x").await.and(writer.flush().await) {
                Ok(()) => megapipe_rt::yield_now().await,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

fn a_program_is_fed_and_read(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut child = Command::new("tr")
            .args(["a-z", "A-Z"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("tr of coreutils");
        let mut input = PipeWriter::from_descriptor(child.stdin.take().unwrap()).unwrap();
        let mut output = PipeReader::from_descriptor(child.stdout.take().unwrap()).unwrap();
        let text = "every byte in order\n".repeat(20_000);
        let sent = text.clone().into_bytes();
        let feeding = spawn_local(async move { input.write(sent).await });
        let mut received = Vec::new();
        while let Some(bytes) = output.read().await.unwrap() {
            received.extend_from_slice(&bytes);
        }
        feeding.await.unwrap().unwrap();
        assert!(received == text.to_uppercase().into_bytes());
        assert!(on_thread(move || child.wait().unwrap()).await.success());
    });
}

fn descriptors_that_are_no_pipes_are_refused(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let file = tempfile::tempfile().unwrap();
        let error = PipeWriter::from_descriptor(file.try_clone().unwrap()).unwrap_err();
        assert!(error.to_string().contains("use File"), "{error}");
        assert!(PipeReader::from_descriptor(file).is_err());
        let directory = std::fs::File::open("/").unwrap();
        assert!(PipeReader::from_descriptor(directory).is_err());
        // A socket in place of a pipe, as inetd passes it.
        let (socket, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut reader = PipeReader::from_descriptor(socket).unwrap();
        thread::spawn(move || peer.write_all(b"hello").unwrap());
        assert_eq!(&*reader.read().await.unwrap().unwrap(), b"hello");
        assert!(reader.read().await.unwrap().is_none());
    });
}
