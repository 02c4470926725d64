//! Tests the contract of the trait `Device`.

use crate::pairs::Pair;
use mtcp::device::{Device, Link, Transmit};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

/// The time after which a device counts as having lost a wake-up.
const HANG: Duration = Duration::from_secs(60);
const ETHERNET_HEADER_BYTES: usize = 14;
/// The EtherType for local experiments (IEEE 802), so that other frames are not mistaken for ours.
const KIND: [u8; 2] = [0x88, 0xb5];

/// Builds a frame with a number and of this length.
fn frame(device: &dyn Device, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    if device.capabilities().link == Link::Ethernet {
        frame.extend([0xff; 6]);
        frame.extend(device.hardware_address().unwrap());
        frame.extend(KIND);
    }
    frame.extend(number.to_be_bytes());
    while frame.len() < bytes {
        frame.push((number as usize + frame.len()) as u8);
    }
    frame
}

fn number_of(device: &dyn Device, frame: &[u8]) -> Option<u32> {
    let payload = match device.capabilities().link {
        Link::Ip => frame,
        Link::Ethernet if frame.get(12..14) == Some(&KIND) => &frame[ETHERNET_HEADER_BYTES..],
        Link::Ethernet => return None,
    };
    Some(u32::from_be_bytes(payload.get(..4)?.try_into().unwrap()))
}

fn longest(device: &dyn Device) -> usize {
    let header = usize::from(device.capabilities().link == Link::Ethernet) * ETHERNET_HEADER_BYTES;
    header + usize::from(device.capabilities().mtu)
}

/// Queues a frame; false if the device is full.
fn queue(device: &mut dyn Device, frame: &[u8]) -> bool {
    let Some(room) = device.room(frame.len()) else { return false };
    room.copy_from_slice(frame);
    device.commit(Transmit { bytes: frame.len(), ..Transmit::default() });
    true
}

/// Waits for a descriptor as users of a device do; false if that took too long.
fn sleep(device: &mut dyn Device, events: i16) -> bool {
    if !device.prepare_to_sleep() {
        return true;
    }
    let mut poll = libc::pollfd { fd: device.descriptor().as_raw_fd(), events, revents: 0 };
    // SAFETY: the pointer is to one initialised pollfd.
    unsafe { libc::poll(&raw mut poll, 1, HANG.as_millis() as libc::c_int) == 1 }
}

/// Receives this number of our frames.
fn receive(device: &mut dyn Device, count: usize) -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let begin = Instant::now();
    while frames.len() < count {
        let came = receive_some(device, 64, &mut frames);
        assert!(begin.elapsed() < HANG, "{} of {count} frames came", frames.len());
        if came == 0 {
            assert!(sleep(device, libc::POLLIN), "{} of {count} frames came", frames.len());
        }
    }
    frames
}

fn receive_some(device: &mut dyn Device, limit: usize, frames: &mut Vec<Vec<u8>>) -> usize {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let came = device.receive(limit, &mut |frame, _| all.push(frame.to_vec())).unwrap();
    assert!(came <= limit);
    frames.extend(all.into_iter().filter(|frame| number_of(device, frame).is_some()));
    came
}

pub(crate) fn frames_arrive_whole_and_in_order(mut pair: Pair) {
    let longest = longest(&*pair.left);
    let shortest = ETHERNET_HEADER_BYTES + 4;
    let mut number = 0;
    for round in 0..200 {
        let (from, to) = if round % 2 == 0 {
            (&mut *pair.left, &mut *pair.right)
        } else {
            (&mut *pair.right, &mut *pair.left)
        };
        let mut sent = Vec::new();
        for _ in 0..1 + round % 7 {
            let bytes = shortest + (number as usize * 487) % (longest - shortest + 1);
            sent.push(frame(from, number, bytes));
            assert!(queue(from, sent.last().unwrap()), "full in round {round}");
            number += 1;
        }
        assert!(!from.flush().unwrap());
        let frames = receive(to, sent.len());
        assert!(frames == sent, "round {round}: the frames differ");
    }
    let (left, right) = (pair.left.counters(), pair.right.counters());
    assert_eq!(left.frames_sent + right.frames_sent, u64::from(number));
    assert!(left.frames_received + right.frames_received >= u64::from(number));
    let drops = [left, right].map(|counters| counters.receive_drops + counters.transmit_drops);
    assert_eq!(drops, [0, 0]);
}

pub(crate) fn only_what_is_committed_is_sent(mut pair: Pair) {
    let (left, right) = (&mut *pair.left, &mut *pair.right);
    let forgotten = frame(left, 1, 100);
    let sent = frame(left, 2, 60);
    let first = left.room(100).unwrap();
    first.copy_from_slice(&forgotten);
    let first = first.as_ptr();
    let again = left.room(100).unwrap();
    assert_eq!(again.as_ptr(), first, "the same room");
    assert_eq!(again, forgotten, "with what was written");
    left.flush().unwrap();
    assert!(queue(left, &sent));
    left.commit(Transmit { bytes: 60, ..Transmit::default() });
    left.room(60).unwrap();
    left.commit(Transmit { bytes: 61, ..Transmit::default() });
    assert_eq!(left.counters().transmit_drops, 2, "without room, and beyond it");
    assert!(left.room(100_000).is_none(), "a frame that no device takes");
    let last = frame(left, 3, 18);
    assert!(queue(left, &last));
    left.flush().unwrap();
    assert_eq!(receive(right, 2), [sent, last]);
}

/// Sends far more than any device holds to one that does not receive.
pub(crate) fn a_full_device_recovers(mut pair: Pair) {
    const FRAMES: u32 = 30_000;
    let lossy = pair.lossy;
    let (left, right) = (&mut *pair.left, &mut *pair.right);
    let longest = longest(left);
    let mut frames = Vec::new();
    let mut refused = false;
    for number in 0..FRAMES {
        let frame = frame(left, number, longest);
        if number % 16 == 0 {
            refused |= left.flush().unwrap();
        }
        while !queue(left, &frame) {
            refused = true;
            left.flush().unwrap();
            if receive_some(right, 7, &mut frames) == 0 {
                assert!(sleep(left, libc::POLLOUT), "no room for frame {number}");
            }
        }
    }
    assert!(refused || lossy, "a ring without an end");
    let begin = Instant::now();
    loop {
        let held = left.flush().unwrap();
        let came = receive_some(right, 64, &mut frames);
        if !held && came == 0 && (lossy || frames.len() == FRAMES as usize) {
            break;
        }
        assert!(begin.elapsed() < HANG, "{} frames came", frames.len());
    }
    let numbers: Vec<u32> = frames.iter().filter_map(|frame| number_of(right, frame)).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "out of order");
    let lost = u64::from(FRAMES) - frames.len() as u64;
    assert!(lossy || lost == 0, "{lost} frames are lost");
    // A sleeper is woken by the next frame after that.
    let last = frame(left, FRAMES, 64);
    assert!(queue(left, &last));
    left.flush().unwrap();
    assert_eq!(receive(right, 1), [last]);
}

/// Sends one frame back and forth; each side sleeps until it arrives.
pub(crate) fn nobody_sleeps_beside_a_frame(pair: Pair) {
    const ROUNDS: u32 = 2_000;
    let Pair { mut left, mut right, vanish: _vanish, .. } = pair;
    let play = move |device: &mut dyn Device, serve: bool| {
        for number in 0..ROUNDS {
            let frame = frame(device, number, 64);
            if serve {
                assert!(queue(device, &frame));
                device.flush().unwrap();
            }
            let answer = receive(device, 1);
            assert_eq!(number_of(device, &answer[0]), Some(number));
            if !serve {
                assert!(queue(device, &frame));
                device.flush().unwrap();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(&mut *left, true));
        scope.spawn(|| play(&mut *right, false));
    });
}

pub(crate) fn a_device_that_is_gone_says_so(pair: Pair) {
    let Pair { mut left, right, vanish, .. } = pair;
    drop(right);
    vanish();
    let begin = Instant::now();
    let error = loop {
        assert!(begin.elapsed() < HANG, "the device does not say that it is gone");
        assert!(sleep(&mut *left, libc::POLLIN), "the descriptor does not wake");
        if let Err(error) = left.receive(64, &mut |_, _| ()) {
            break error;
        }
    };
    let gone = [Some(libc::ENXIO), Some(libc::ENETDOWN)];
    assert!(gone.contains(&error.raw_os_error()), "{error}");
    assert!(left.receive(1, &mut |_, _| ()).is_err(), "said once only");
    let frame = frame(&*left, 1, 64);
    queue(&mut *left, &frame);
    assert!(left.flush().is_err());
}

/// One thread sends as fast as it can and sleeps when there is no room. Another one receives and
/// sleeps when there are no frames.
pub(crate) fn two_threads(pair: Pair) {
    const FRAMES: u32 = 100_000;
    let Pair { mut left, mut right, .. } = pair;
    let send = |device: &mut dyn Device| {
        for number in 0..FRAMES {
            let frame = frame(device, number, 18 + number as usize * 31 % 1400);
            while !queue(device, &frame) {
                device.flush().unwrap();
                assert!(sleep(device, libc::POLLOUT), "nobody tells of room");
            }
            if number % 11 == 0 {
                device.flush().unwrap();
            }
        }
        device.flush().unwrap();
    };
    let take = |device: &mut dyn Device| {
        let mut expected = 0;
        while expected < FRAMES {
            let mut numbers = Vec::new();
            let take = &mut |frame: &[u8], _| numbers.push(frame.to_vec());
            device.receive(1 + expected as usize % 40, take).unwrap();
            for frame in &numbers {
                assert_eq!(number_of(device, frame), Some(expected));
                expected += 1;
            }
            if expected < FRAMES && numbers.is_empty() {
                assert!(sleep(device, libc::POLLIN), "nobody tells of frames");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| send(&mut *left));
        scope.spawn(|| take(&mut *right));
    });
}
