//! Tests many receives with few buffers: how often a receive that found none is restarted.

use crate::common::{Rig, received, unix_pair};
use megapipe::{Config, DriverChoice, Handle, Lease, Repeat};
use std::io::Write;
use std::os::unix::net::UnixStream;

/// Number of connections of each test.
const MANY: usize = 300;

fn few_buffers(driver: DriverChoice, count: u16) -> Rig {
    let small_buffers = megapipe::BufferClass { count, bytes: 256 };
    Rig::with(driver, Config { small_buffers, ..Config::default() })
}

/// Returns connections with a receive, some of them single ones, and their peers.
fn receiving(rig: &mut Rig) -> Vec<(UnixStream, Handle)> {
    let connection = |number| {
        let (ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        let repeat = if number % 3 == 0 { Repeat::Once } else { Repeat::UntilCancelled };
        rig.receive(handle, repeat).unwrap();
        (ours, handle)
    };
    (0..MANY).map(connection).collect()
}

/// Returns the next message, which names its connection; checks that it arrived there.
fn message(rig: &mut Rig, connections: &[(UnixStream, Handle)]) -> (usize, Lease) {
    let done = rig.next();
    let handle = done.handle;
    let lease = received(done.event);
    let number = usize::from(u16::from_ne_bytes([lease[0], lease[1]]));
    assert_eq!((lease.len(), connections[number].1), (2, handle));
    (number, lease)
}

fn say(connection: &mut UnixStream, number: usize) {
    connection.write_all(&(number as u16).to_ne_bytes()).unwrap();
}

/// Sends a message on each connection, and checks that it arrives once, while `hold` leases are
/// held.
fn exchange(rig: &mut Rig, connections: &mut [(UnixStream, Handle)], hold: usize) {
    for (number, (ours, _)) in connections.iter_mut().enumerate() {
        say(ours, number);
    }
    let mut missing = vec![true; MANY];
    let mut held = Vec::new();
    for _ in 0..MANY {
        let (number, lease) = message(rig, connections);
        assert!(std::mem::take(&mut missing[number]), "{number} came twice");
        held.insert(0, lease);
        held.truncate(hold);
    }
}

/// Checks that the operations since `before` are a few for each connection, and not one for each
/// pair.
#[track_caller]
fn expect_few_operations(rig: &Rig, before: u64) {
    let made = rig.counters().operations - before;
    // Each flush starts receives that wait for a buffer, too.
    assert!(made <= 3 * MANY as u64, "{made} operations for {MANY} messages");
}

/// The application holds all buffers and returns them one by one.
pub(crate) fn a_returned_buffer_restarts_one_receive(driver: DriverChoice) {
    let mut rig = few_buffers(driver, 4);
    let mut connections = receiving(&mut rig);
    exchange(&mut rig, &mut connections, 3);
    expect_few_operations(&rig, 0);
}

/// The application holds no buffer, but there are fewer buffers than messages.
pub(crate) fn a_burst_restarts_as_many_receives_as_there_are_buffers(driver: DriverChoice) {
    let mut rig = few_buffers(driver, 16);
    let mut connections = receiving(&mut rig);
    exchange(&mut rig, &mut connections, 0);
    expect_few_operations(&rig, 0);
}

/// A receive that starves although no data has come must not keep a buffer from receives with data.
pub(crate) fn a_receive_without_data_keeps_no_buffer_from_others(driver: DriverChoice) {
    let mut rig = few_buffers(driver, 4);
    let (mut greedy, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let mut held = Vec::new();
    for _ in 0..4 {
        greedy.write_all(b"keep me").unwrap();
        held.push(received(rig.another(handle)));
    }
    let mut connections = receiving(&mut rig);
    assert!(rig.dispatch(std::time::Duration::ZERO).unwrap().is_none());
    held.pop();
    let before = rig.counters().operations;
    // The receives that starved last wait behind receives without data.
    for number in (0..MANY).rev() {
        say(&mut connections[number].0, number);
        assert_eq!(message(&mut rig, &connections).0, number);
    }
    expect_few_operations(&rig, before);
}
