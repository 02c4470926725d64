//! Test bodies of lazy writes: what may delay their completion, and what ends the delay.

use crate::common::{Rig, TIME_LIMIT, unix_pair, written};
use megapipe::{Config, DriverChoice, Event, Handle, Repeat};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn lazy(driver: DriverChoice) -> Rig {
    Rig::with(driver, Config { lazy_writes: true, ..Config::default() })
}

/// Returns a socket of the test and a handle, which are connected.
fn pair(rig: &mut Rig) -> (UnixStream, Handle) {
    let (ours, theirs) = unix_pair();
    (ours, rig.join(theirs))
}

/// Returns pseudo-random numbers below a bound (xorshift64).
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % bound
    }
}

/// Returns the next event of a handle, for which nothing but the channel's own progress is needed.
#[track_caller]
fn soon(rig: &mut Rig, handle: Handle) -> Event {
    let done = rig.channel.dispatch(TIME_LIMIT).unwrap().expect("a completion that is not delayed");
    assert_eq!(done.handle, handle, "{:?}", done.event);
    done.event
}

/// A server that only answers sleeps once for each request, not once more for each answer.
pub(crate) fn a_lazy_write_completes_with_the_next_completion(driver: DriverChoice) {
    const ROUNDS: u64 = 100;
    let mut rig = lazy(driver);
    let (mut client, server) = rig.tcp_pair();
    rig.receive(server, Repeat::UntilCancelled).unwrap();
    let clients = std::thread::spawn(move || {
        let mut answer = [0; 5];
        for round in 0..ROUNDS {
            client.write_all(&[round as u8; 5]).unwrap();
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [round as u8; 5]);
        }
    });
    let before = rig.counters();
    let (mut answered, mut completed) = (0, 0);
    while completed < ROUNDS {
        match soon(&mut rig, server) {
            Event::Receive(Ok(lease)) if lease.is_empty() => {}
            Event::Receive(Ok(lease)) => {
                rig.write(server, lease).unwrap();
                answered += 1;
            }
            Event::Write(Ok(5), _) => completed += 1,
            other => panic!("unexpected: {other:?}"),
        }
    }
    clients.join().unwrap();
    assert_eq!(answered, ROUNDS);
    let counters = rig.counters();
    let calls = counters.system_calls - before.system_calls;
    if rig.driver().kind == megapipe::DriverKind::Uring {
        assert!(calls < ROUNDS + ROUNDS / 4, "{calls} system calls for {ROUNDS} requests");
    }
}

pub(crate) fn a_flush_makes_lazy_writes_complete(driver: DriverChoice) {
    let mut rig = lazy(driver);
    let (_peer, handle) = pair(&mut rig);
    let (_other_peer, other) = pair(&mut rig);
    for round in 0..3 {
        rig.write(handle, "one").unwrap();
        rig.write(other, "other").unwrap();
        // It waits for the first, and is part of what is flushed.
        rig.write(handle, "two").unwrap();
        rig.flush().unwrap();
        for _ in 0..3 {
            let done = rig.channel.dispatch(TIME_LIMIT).unwrap();
            let done = done.unwrap_or_else(|| panic!("round {round}: a write is delayed"));
            written(done.event);
        }
    }
}

pub(crate) fn a_lazy_write_completes_at_the_time_limit(driver: DriverChoice) {
    let mut rig = lazy(driver);
    let (_peer, handle) = pair(&mut rig);
    for limit in [Duration::ZERO, Duration::from_millis(2)] {
        rig.write(handle, "text").unwrap();
        let done = rig.channel.dispatch(limit).unwrap().expect("the write");
        written(done.event);
    }
}

pub(crate) fn what_waits_for_a_lazy_write_delays_no_longer(driver: DriverChoice) {
    let mut rig = lazy(driver);
    let (mut peer, handle) = pair(&mut rig);
    rig.write(handle, "one, ").unwrap();
    rig.write(handle, "two, ").unwrap();
    rig.disconnect(handle, Shutdown::Write).unwrap();
    written(soon(&mut rig, handle));
    written(soon(&mut rig, handle));
    assert!(matches!(soon(&mut rig, handle), Event::Disconnect(Ok(()))));
    let mut text = String::new();
    peer.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one, two, ");

    let (mut peer, handle) = pair(&mut rig);
    rig.write(handle, "the last words").unwrap();
    rig.close(handle).unwrap();
    assert!(matches!(soon(&mut rig, handle), Event::Close(Ok(()))));
    let mut text = String::new();
    peer.read_to_string(&mut text).unwrap();
    assert_eq!(text, "the last words");
}

pub(crate) fn a_cancelled_lazy_write_completes(driver: DriverChoice) {
    // With a batch of one request the kernel has the write before it is cancelled.
    for batch in [1, 32] {
        let config = Config { lazy_writes: true, batch, ..Config::default() };
        let mut rig = Rig::with(driver, config);
        let (_peer, handle) = pair(&mut rig);
        rig.write(handle, "text").unwrap();
        rig.cancel(handle).unwrap();
        assert!(matches!(soon(&mut rig, handle), Event::Write(..)));
        assert_eq!(rig.outstanding(), 0);
    }
}

pub(crate) fn a_lazy_write_that_fails_completes_at_once(driver: DriverChoice) {
    let mut rig = lazy(driver);
    let (peer, handle) = pair(&mut rig);
    drop(peer);
    rig.write(handle, "nobody reads this").unwrap();
    match soon(&mut rig, handle) {
        Event::Write(Err(error), _) => assert_eq!(error.raw_os_error(), Some(libc::EPIPE)),
        other => panic!("a write without a peer: {other:?}"),
    }
}

/// Peers that read slowly make writes partial, or refuse them: all bytes arrive, in order.
pub(crate) fn lazy_writes_to_slow_readers_arrive_whole(driver: DriverChoice) {
    const BYTES: usize = 3 << 20;
    for seed in 0..4u64 {
        let mut rig = lazy(driver);
        let (mut peer, handle): (Box<dyn Read + Send>, Handle) = if seed % 2 == 0 {
            let (peer, handle) = rig.tcp_pair();
            (Box::new(peer), handle)
        } else {
            let (peer, handle) = pair(&mut rig);
            (Box::new(peer), handle)
        };
        let reader = std::thread::spawn(move || {
            let mut random = random(seed);
            let mut read = Vec::new();
            let mut room = vec![0; 8 << 10];
            loop {
                let limit = 1 + random(room.len());
                match peer.read(&mut room[..limit]).unwrap() {
                    0 => return read,
                    count => read.extend_from_slice(&room[..count]),
                }
            }
        });
        let mut random = random(!seed);
        let mut sent: Vec<u8> = Vec::new();
        let mut writes = 0;
        while sent.len() < BYTES {
            let bytes = 1 + random(20 << 10);
            let part: Vec<u8> = (0..bytes).map(|at| ((sent.len() + at) / 7) as u8).collect();
            sent.extend_from_slice(&part);
            rig.write(handle, part).unwrap();
            writes += 1;
            // One write at a time in half of the rounds, many in the others.
            while writes > if seed < 2 { 0 } else { 20 } {
                rig.flush().unwrap();
                written(soon(&mut rig, handle));
                writes -= 1;
            }
        }
        rig.close(handle).unwrap();
        assert!(matches!(soon(&mut rig, handle), Event::Close(Ok(()))), "seed {seed}");
        assert!(reader.join().unwrap() == sent, "seed {seed}: the bytes differ");
    }
}

pub(crate) fn a_dropped_channel_has_sent_its_lazy_writes(driver: DriverChoice) {
    let mut rig = lazy(driver);
    let (mut peer, handle) = pair(&mut rig);
    rig.write(handle, "before the end").unwrap();
    rig.close(handle).unwrap();
    drop(rig);
    let mut text = String::new();
    peer.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before the end");
}
