//! Tests limits on the time of requests.

use crate::common::{Rig, outcome, read_of, received, silent, udp, unix_pair, written};
use megapipe::{Config, Direction, DriverChoice, Event, Repeat, Timer};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// More bytes than the kernel takes for a peer that does not read.
const STUCK_BYTES: usize = 4 << 20;
const LIMIT: Duration = Duration::from_millis(30);

pub(crate) fn an_inbound_request_is_over_time(driver: DriverChoice) {
    for how in 0..4 {
        let mut rig = Rig::new(driver);
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        rig.set_time_limit(handle, Direction::Inbound, LIMIT).unwrap();
        let start = Instant::now();
        match how {
            0 => rig.receive(handle, Repeat::Once).unwrap(),
            1 => rig.receive(handle, Repeat::UntilCancelled).unwrap(),
            2 => rig.read(handle, Vec::with_capacity(10)).unwrap(),
            _ => rig.read_vectored(handle, vec![Vec::with_capacity(10)]).unwrap(),
        }
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ETIMEDOUT));
        assert!(start.elapsed() >= LIMIT);
        assert_eq!(rig.outstanding(), 0);
        // The handle still works, and no byte was taken from the stream.
        ours.write_all(b"late").unwrap();
        rig.read(handle, Vec::with_capacity(10)).unwrap();
        assert_eq!(read_of(rig.last(handle)), b"late");
    }
}

pub(crate) fn a_datagram_is_over_time(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, _) = udp("127.0.0.1");
    let (theirs, address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    rig.set_time_limit(handle, Direction::Inbound, LIMIT).unwrap();
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        rig.receive_from(handle, repeat).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ETIMEDOUT));
    }
    ours.send_to(b"late", address).unwrap();
    rig.receive_from(handle, Repeat::Once).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(4));
}

pub(crate) fn each_completion_begins_the_time_anew(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    let limit = Duration::from_millis(400);
    rig.set_time_limit(handle, Direction::Inbound, limit).unwrap();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let start = Instant::now();
    while start.elapsed() < 2 * limit {
        ours.write_all(b"x").unwrap();
        assert_eq!(received(rig.another(handle)).len(), 1);
    }
    let last = Instant::now();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ETIMEDOUT));
    assert!(last.elapsed() >= limit / 2);
}

/// The first part of a write does not begin its time a second time.
pub(crate) fn a_stuck_write_has_its_time_once(driver: DriverChoice) {
    let limit = Duration::from_millis(200);
    let mut rig = Rig::new(driver);
    let (_ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.set_time_limit(handle, Direction::Outbound, limit).unwrap();
    rig.write(handle, vec![0; STUCK_BYTES]).unwrap();
    for _ in 0..10 {
        assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
    }
    // The time has passed, and the kernel may still have to end the write.
    let mut came = rig.dispatch(limit + limit / 2).unwrap();
    for _ in 0..10 {
        came = came.or_else(|| rig.dispatch(Duration::from_millis(1)).unwrap());
    }
    let event = came.expect("the write ends within 1.5 times its limit").event;
    assert_eq!(outcome(&event), Err(libc::ETIMEDOUT));
}

pub(crate) fn a_stuck_write_is_over_time(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = {
        let (ours, theirs) = unix_pair();
        (ours, rig.join(theirs))
    };
    rig.set_time_limit(handle, Direction::Outbound, LIMIT).unwrap();
    rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
    match rig.last(handle) {
        Event::Write(Err(error), buffer) => {
            assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
            assert_eq!(buffer.len(), STUCK_BYTES);
        }
        other => panic!("the peer reads nothing: {:?}", outcome(&other)),
    }
    // A peer that reads slowly gets all bytes: the time starts again with every part.
    rig.set_time_limit(handle, Direction::Outbound, Duration::from_millis(500)).unwrap();
    rig.write(handle, vec![2; STUCK_BYTES]).unwrap();
    let reader = std::thread::spawn(move || {
        let mut step = vec![0; 4096];
        let mut twos = 0;
        while twos < STUCK_BYTES {
            let bytes = ours.read(&mut step).unwrap();
            twos += step[..bytes].iter().filter(|byte| **byte == 2).count();
        }
    });
    assert_eq!(written(rig.last(handle)).len(), STUCK_BYTES);
    reader.join().unwrap();
}

pub(crate) fn nothing_is_written_behind_a_stuck_write(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.set_time_limit(handle, Direction::Outbound, LIMIT).unwrap();
    // TCP takes more and more while it is given time.
    for bytes in [4 * STUCK_BYTES, 4, 4] {
        rig.write(handle, vec![1; bytes]).unwrap();
    }
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ETIMEDOUT));
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    let mut found = Vec::new();
    let end = ours.read_to_end(&mut found).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    assert!(found.len() < 4 * STUCK_BYTES);
}

/// A request that waits behind another has not begun.
pub(crate) fn a_request_that_waits_has_its_time_to_come(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.set_time_limit(handle, Direction::Inbound, LIMIT).unwrap();
    let start = Instant::now();
    for _ in 0..3 {
        rig.read(handle, Vec::with_capacity(1)).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ETIMEDOUT));
    }
    assert!(start.elapsed() >= 3 * LIMIT, "{:?}", start.elapsed());
}

pub(crate) fn a_limit_is_taken_back_or_set_late(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.set_time_limit(handle, Direction::Inbound, LIMIT).unwrap();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    rig.set_time_limit(handle, Direction::Inbound, None).unwrap();
    // A timer reports that the time has passed.
    let timer = rig.join(Timer::after(3 * LIMIT).unwrap());
    rig.watch(timer, Repeat::Once).unwrap();
    assert!(matches!(rig.last(timer), Event::Timer(Ok(1))));
    ours.write_all(b"x").unwrap();
    assert_eq!(received(rig.another(handle)).len(), 1);
    // The limit of the other direction does not count.
    rig.set_time_limit(handle, Direction::Outbound, LIMIT).unwrap();
    let timer = rig.join(Timer::after(3 * LIMIT).unwrap());
    rig.watch(timer, Repeat::Once).unwrap();
    assert!(matches!(rig.last(timer), Event::Timer(Ok(1))));
    rig.set_time_limit(handle, Direction::Inbound, LIMIT).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ETIMEDOUT));
}

/// A receive that waits for a buffer or for output also exceeds its time.
pub(crate) fn a_paused_receive_is_over_time(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { output_pause: 1000, ..Config::default() });
    let (_ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.write(handle, vec![0; STUCK_BYTES]).unwrap();
    rig.write(handle, vec![0; 1000]).unwrap();
    rig.set_time_limit(handle, Direction::Inbound, LIMIT).unwrap();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
    // Its time had not begun; a limit that is set now counts from now on.
    rig.set_time_limit(handle, Direction::Inbound, LIMIT).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ETIMEDOUT));
    assert_eq!(rig.outstanding(), 2);
}

pub(crate) fn a_limit_goes_with_its_handle(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for how in 0..3 {
        let (ours, theirs) = silent();
        let handle = rig.join(theirs);
        rig.set_time_limit(handle, Direction::Inbound, LIMIT).unwrap();
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        rig.flush().unwrap();
        match how {
            0 => drop(rig.unregister(handle).unwrap()),
            1 => {
                rig.close(handle).unwrap();
                assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
            }
            _ => {
                rig.cancel(handle).unwrap();
                assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
            }
        }
        let timer = rig.join(Timer::after(2 * LIMIT).unwrap());
        rig.watch(timer, Repeat::Once).unwrap();
        assert!(matches!(rig.last(timer), Event::Timer(Ok(1))));
        drop(ours);
    }
}
