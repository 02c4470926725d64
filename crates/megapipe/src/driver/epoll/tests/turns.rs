//! Tests for how long work may keep the driver from polling the kernel.

use super::*;
use std::cell::Cell;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Instant;

thread_local! {
    /// How far a test's clock advances at each reading.
    static STEP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn clock() -> Instant {
    let now = NOW.get().unwrap_or_else(Instant::now) + STEP.get();
    NOW.set(Some(now));
    now
}

/// Creates a rig whose clock advances only by `step` at each reading.
fn timed(step: Duration) -> Rig {
    let mut rig = Rig::new();
    STEP.set(step);
    rig.driver.schedule.use_clock(clock);
    rig
}

/// Counts the rounds of an operation that completes on submission until a waiting one completes.
fn rounds_until_seen(rig: &mut Rig, mut round: impl FnMut(&mut Rig)) -> usize {
    let (quiet, mut quiet_far) = UnixStream::pair().unwrap();
    let quiet = rig.attach(quiet);
    rig.submit(2, quiet, receive(false));
    rig.nothing();
    quiet_far.write_all(b"now").unwrap();
    for rounds in 1..1000 {
        round(rig);
        rig.driver.collect(&mut rig.came, None).unwrap();
        if rig.came.drain(..).any(|outcome| outcome.tag == 2) {
            return rounds;
        }
    }
    panic!("what waits is never seen")
}

#[test]
fn work_that_takes_long_does_not_delay_those_that_wait() {
    let (busy, mut busy_far) = UnixStream::pair().unwrap();
    for (step, most) in [(6000, 8), (2000, 12), (400, 44), (0, 257)] {
        let mut rig = timed(Duration::from_micros(step));
        let busy = rig.attach(busy.try_clone().unwrap());
        let rounds = rounds_until_seen(&mut rig, |rig| {
            busy_far.write_all(b"x").unwrap();
            rig.submit(1, busy, receive(false));
        });
        assert!(rounds <= most, "{rounds} rounds with {step} us for each four");
    }
    // A clock that is read after each large transfer shows that a single one took long.
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("file");
    std::fs::write(&path, pattern(64 << 10)).unwrap();
    let mut rig = timed(Duration::from_micros(6000));
    let busy = rig.attach(std::fs::File::open(&path).unwrap());
    let mut room = vec![0; 64 << 10];
    let rounds = rounds_until_seen(&mut rig, |rig| rig.submit(1, busy, read_at(&mut room, 0)));
    assert!(rounds <= 2, "{rounds} rounds");
}

#[test]
fn a_collection_ends_when_the_kernel_is_to_be_asked() {
    // 32 buffers of 4 KiB are as much as one collection delivers.
    for (step, most) in [(6000, 8), (0, 32)] {
        let mut rig = timed(Duration::from_micros(step));
        let mut fars = Vec::new();
        for tag in 0..100 {
            let (near, far) = UnixStream::pair().unwrap();
            let near = rig.attach(near);
            rig.submit(tag, near, receive(true));
            fars.push(far);
        }
        rig.nothing();
        let bytes = pattern(100_000);
        for far in &mut fars {
            far.write_all(&bytes).unwrap();
        }
        let mut largest = 0;
        let mut tags = Vec::new();
        for _ in 0..20 {
            rig.driver.collect(&mut rig.came, Some(AMPLE)).unwrap();
            largest = largest.max(rig.came.len());
            tags.extend(rig.came.drain(..).map(|outcome| outcome.tag));
        }
        assert_eq!(largest, most, "outcomes at once");
        // Each operation has had a turn before any has a second one.
        let mut first: Vec<u64> = tags.into_iter().take(100).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 100);
    }
}

#[test]
fn a_batch_is_delivered_when_its_buffers_would_leave_the_cache() {
    const BYTES: usize = 60_000;
    const STREAMS: u64 = 8;
    let mut rig = Rig::new();
    let mut peers = Vec::new();
    for tag in 0..STREAMS {
        let (near, far) = UnixStream::pair().unwrap();
        let object = rig.attach(far);
        rig.submit(tag, object, Operation::Receive { large: true, repeat: false });
        peers.push(near);
    }
    for peer in &mut peers {
        peer.write_all(&[7; BYTES]).unwrap();
    }
    let (mut tags, mut batches) = (Vec::new(), Vec::new());
    while tags.len() < STREAMS as usize {
        rig.driver.collect(&mut rig.came, Some(AMPLE)).unwrap();
        batches.push(rig.came.len());
        for outcome in rig.came.drain(..) {
            assert_eq!(outcome.result, BYTES as i32);
            tags.push(outcome.tag);
        }
    }
    // 180,000 bytes are the first to exceed the limit.
    assert_eq!(batches, [3, 3, 2]);
    assert_eq!(tags, (0..STREAMS).collect::<Vec<u64>>());
}
