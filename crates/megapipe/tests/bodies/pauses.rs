//! Tests closes while a peer pauses. They last seconds, so only system tests include them.

use crate::common::Rig;
use megapipe::{Config, DriverChoice, Event, Handle};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

/// More bytes than the kernel takes for a peer that does not read.
const STUCK_BYTES: usize = 16 << 20;
/// What the peer has not read when the pauses begin.
const BYTES: usize = 1 << 20;
const PAUSE: Duration = Duration::from_millis(1100);
/// The silence after which a channel closes: longer than a pause, shorter than all together.
const SILENCE: Duration = Duration::from_secs(2);

/// What the peer reads of a file between two pauses: more than makes the channel go on.
const STEP_BYTES: usize = 4 << 20;

pub(crate) fn a_peer_that_pauses_while_it_reads_gets_the_whole_file(driver: DriverChoice) {
    for pair in [Rig::tcp_pair, Rig::lightweight_pair] {
        while !gets_the_whole_file(driver, pair) {}
    }
}

/// Closes a handle with a queued file. Returns false if the peer paused for longer than it wanted.
fn gets_the_whole_file(driver: DriverChoice, pair: fn(&mut Rig) -> (TcpStream, Handle)) -> bool {
    // Shorter than all pauses together: it begins anew with each part that is sent.
    let mut rig = Rig::with(driver, Config { close_timeout: SILENCE, ..Config::default() });
    let mut disk = tempfile::tempfile().unwrap();
    disk.write_all(&vec![1; 2 * STUCK_BYTES]).unwrap();
    let source = rig.join(disk);
    let (mut ours, handle) = pair(&mut rig);
    rig.send_file(handle, source, 0, 2 * STUCK_BYTES).unwrap();
    rig.close(handle).unwrap();
    let peer = thread::spawn(move || {
        let mut last = Instant::now();
        for _ in 0..3 {
            thread::sleep(PAUSE);
            let read = ours.read_exact(&mut vec![0; STEP_BYTES]);
            if last.elapsed() >= SILENCE {
                return None;
            }
            read.expect("a part of the file");
            last = Instant::now();
        }
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).expect("no reset before the end");
        Some(rest.len())
    });
    let closed = rig.last(handle);
    let rest = peer.join().unwrap();
    assert!(rest.is_none() || matches!(closed, Event::Close(Ok(()))), "{closed:?}");
    assert!(rest.is_none_or(|rest| rest == 2 * STUCK_BYTES - 3 * STEP_BYTES), "{rest:?}");
    rest.is_some()
}

pub(crate) fn a_peer_that_pauses_while_it_sends_gets_all(driver: DriverChoice) {
    // A machine that stops the peer for too long makes it silent; then nothing is learned.
    while !is_served_in_spite_of_pauses(driver) {}
}

/// Returns false if the peer was silent for longer than it wanted.
fn is_served_in_spite_of_pauses(driver: DriverChoice) -> bool {
    // Without a limit for the close: only discarding ends it.
    let mut rig = Rig::with(driver, Config { close_timeout: Duration::MAX, ..Config::default() });
    let (mut ours, handle) = rig.tcp_pair();
    rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
    rig.close(handle).unwrap();
    let peer = thread::spawn(move || {
        // The channel discards some input before all is written, so it continues afterwards.
        ours.write_all(&vec![7; STUCK_BYTES]).unwrap();
        let mut last = Instant::now();
        ours.read_exact(&mut vec![0; STUCK_BYTES - BYTES]).unwrap();
        for _ in 0..3 {
            thread::sleep(PAUSE);
            let written = ours.write_all(b"more");
            if last.elapsed() >= SILENCE {
                return None;
            }
            written.expect("the channel still discards");
            last = Instant::now();
        }
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).expect("no reset before the end");
        Some(rest.len())
    });
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    let rest = peer.join().unwrap();
    assert!(rest.is_none_or(|rest| rest == BYTES), "{rest:?}");
    rest.is_some()
}
