//! Implements a device behind an impaired network: sent and received frames are lost, duplicated,
//! delayed, reordered and corrupted. Each direction has its own settings, and a seed determines all
//! random events.
//!
//! The device is never full: frames that the network cannot carry are lost, as on a real one.

mod emulator;

use self::emulator::Direction;
pub use self::emulator::{Impairment, ImpairmentCounters};
use super::{Capabilities, Device, DeviceCounters, Received, Transmit};
use crate::system::check;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

const FRAME_BYTES_MAX: usize = 14 + 65_535;

/// Returns nanoseconds since an arbitrary origin; must never go back.
pub type Clock = Box<dyn FnMut() -> u64 + Send>;

/// The system's monotonic clock.
pub fn monotonic() -> Clock {
    let origin = std::time::Instant::now();
    Box::new(move || u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// A device behind an impaired network.
pub struct ImpairedDevice<D> {
    inner: D,
    clock: Clock,
    incoming: Direction<Received>,
    outgoing: Direction<Transmit>,
    capabilities: Capabilities,
    /// The frame that is being written.
    scratch: Box<[u8]>,
    room_bytes: Option<usize>,
    /// Frames and rooms that are too long for the device.
    refused: u64,
    /// Whether the inner device has no room for a frame that has arrived.
    blocked: bool,
    timer: OwnedFd,
    /// Readable when the inner device or the timer is.
    both: OwnedFd,
}

impl<D: Device> ImpairedDevice<D> {
    /// Puts an impaired network before a device. With a clock other than [`monotonic`], the
    /// descriptor wakes after as much real time as the clock has to advance.
    ///
    /// Where sent frames are corrupted, checksums and segmentation are not offloaded, because the
    /// device would repair the checksum. A corrupted frame that is received is never reported as
    /// verified.
    ///
    /// # Errors
    /// The errors of timerfd_create(2) and epoll_create(2): too many open files.
    pub fn new(
        inner: D,
        incoming: Impairment,
        outgoing: Impairment,
        seed: u64,
        clock: Clock,
    ) -> io::Result<ImpairedDevice<D>> {
        let mut capabilities = inner.capabilities();
        if outgoing.corruption > 0.0 {
            capabilities.transmit_checksum = false;
            capabilities.segmentation_bytes = 0;
        }
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: timerfd_create takes only numbers.
        let timer = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the descriptor is new and has no other owner.
        let timer = unsafe { OwnedFd::from_raw_fd(timer) };
        // SAFETY: epoll_create1 takes only a number.
        let both = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the descriptor is new and has no other owner.
        let both = unsafe { OwnedFd::from_raw_fd(both) };
        listen(&both, libc::EPOLL_CTL_ADD, timer.as_fd(), false)?;
        listen(&both, libc::EPOLL_CTL_ADD, inner.descriptor(), false)?;
        Ok(ImpairedDevice {
            inner,
            clock,
            incoming: Direction::new(incoming, seed),
            outgoing: Direction::new(outgoing, !seed),
            capabilities,
            scratch: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            room_bytes: None,
            refused: 0,
            blocked: false,
            timer,
            both,
        })
    }

    /// The counters of the received and of the sent frames.
    pub fn impairments(&self) -> (ImpairmentCounters, ImpairmentCounters) {
        (self.incoming.counters, self.outgoing.counters)
    }

    /// Passes frames that have arrived to the inner device; returns their number.
    fn send_due(&mut self, now_ns: u64) -> usize {
        let inner = &mut self.inner;
        let mut sent = 0;
        self.blocked = false;
        let mut blocked = false;
        while self.outgoing.release(now_ns, &mut |frame, about| {
            let Some(room) = inner.room(frame.len()) else {
                blocked = true;
                return false;
            };
            room.copy_from_slice(frame);
            inner.commit(about);
            true
        }) {
            sent += 1;
        }
        self.blocked = blocked;
        sent
    }

    /// Sets the timer to the arrival of the next frame, or disarms it.
    fn set_timer(&mut self, now_ns: u64) -> io::Result<()> {
        // A frame for which the inner device has no room has arrived already, and waits for the
        // device.
        let outgoing = self.outgoing.deadline_ns().filter(|_| !self.blocked);
        let due = [self.incoming.deadline_ns(), outgoing].into_iter().flatten().min();
        // Zero would disarm the timer.
        let wait_ns = due.map_or(0, |due_ns| due_ns.saturating_sub(now_ns).max(1));
        let wait = libc::timespec {
            tv_sec: (wait_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (wait_ns % 1_000_000_000) as libc::c_long,
        };
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: never, it_value: wait };
        // SAFETY: an initialised itimerspec, which the kernel reads.
        check(unsafe {
            libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const setting, ptr::null_mut())
        })
        .map(|_| ())
    }
}

/// Adds a descriptor to an epoll instance, for readability and optionally for writability.
fn listen(
    epoll: &OwnedFd,
    operation: libc::c_int,
    descriptor: BorrowedFd<'_>,
    writable: bool,
) -> io::Result<()> {
    let events = libc::EPOLLIN | if writable { libc::EPOLLOUT } else { 0 };
    let mut event = libc::epoll_event { events: events as u32, u64: 0 };
    // SAFETY: an initialised epoll_event, which the kernel reads.
    check(unsafe {
        libc::epoll_ctl(epoll.as_raw_fd(), operation, descriptor.as_raw_fd(), &raw mut event)
    })
    .map(|_| ())
}

impl<D: Device> Device for ImpairedDevice<D> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.inner.hardware_address()
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        let now_ns = (self.clock)();
        if self.send_due(now_ns) > 0 {
            self.inner.flush()?;
        }
        let incoming = &mut self.incoming;
        let came = self.inner.receive(limit, &mut |frame, received| {
            incoming.admit(now_ns, frame, received, |about| about.checksum_verified = false);
        });
        let mut count = 0;
        while count < limit
            && self.incoming.release(now_ns, &mut |frame, received| {
                take(frame, received);
                true
            })
        {
            count += 1;
        }
        // Frames in flight still arrive when the device is gone.
        if count == 0 { came.map(|_| 0) } else { Ok(count) }
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.room_bytes = (bytes <= FRAME_BYTES_MAX).then_some(bytes);
        self.refused += u64::from(self.room_bytes.is_none());
        self.scratch.get_mut(..bytes)
    }

    fn commit(&mut self, frame: Transmit) {
        let room = self.room_bytes.take().filter(|&room| frame.bytes <= room);
        let Some(bytes) = room.and_then(|_| self.scratch.get(..frame.bytes)) else {
            self.refused += 1;
            return;
        };
        let now_ns = (self.clock)();
        self.outgoing.admit(now_ns, bytes, frame, |_| ());
    }

    fn flush(&mut self) -> io::Result<bool> {
        let now_ns = (self.clock)();
        self.send_due(now_ns);
        self.inner.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    fn prepare_to_sleep(&mut self) -> bool {
        let now_ns = (self.clock)();
        if self.incoming.deadline_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            return false;
        }
        let inner = self.inner.descriptor();
        let listening = listen(&self.both, libc::EPOLL_CTL_MOD, inner, self.blocked);
        if listening.and_then(|()| self.set_timer(now_ns)).is_err() {
            return false;
        }
        self.inner.prepare_to_sleep()
    }

    fn counters(&self) -> DeviceCounters {
        let counters = self.inner.counters();
        DeviceCounters { transmit_drops: counters.transmit_drops + self.refused, ..counters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::memory::{MemoryDevice, MemoryOptions};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    fn send(device: &mut dyn Device, value: u8) {
        device.room(40).unwrap().fill(value);
        let partial_checksum = Some((20, 16));
        device.commit(Transmit { bytes: 40, partial_checksum, segmentation: None });
        device.flush().unwrap();
    }

    fn receive(device: &mut dyn Device) -> Vec<(u8, bool)> {
        let mut came = Vec::new();
        device
            .receive(99, &mut |frame, received| came.push((frame[0], received.checksum_verified)))
            .unwrap();
        came
    }

    fn poll(device: &dyn Device, timeout_ms: libc::c_int) -> bool {
        let fd = device.descriptor().as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one initialised pollfd.
        unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
    }

    #[test]
    fn frames_are_delayed_both_ways_by_the_injected_clock() {
        let (near, mut far) = MemoryDevice::pair(MemoryOptions::default()).unwrap();
        let time = Arc::new(AtomicU64::new(0));
        let clock = time.clone();
        let clock: Clock = Box::new(move || clock.load(Ordering::Relaxed));
        let emulator = |delay| Impairment { delay, ..Impairment::default() };
        let (slow, slower) = (Duration::from_micros(5), Duration::from_micros(9));
        let mut near =
            ImpairedDevice::new(near, emulator(slow), emulator(slower), 1, clock).unwrap();
        send(&mut near, 1);
        send(&mut far, 2);
        assert_eq!((receive(&mut near), receive(&mut far)), (vec![], vec![]));
        time.store(5_000, Ordering::Relaxed);
        assert!(!near.prepare_to_sleep(), "a frame is due");
        assert_eq!((receive(&mut near), receive(&mut far)), (vec![(2, true)], vec![]));
        time.store(9_000, Ordering::Relaxed);
        near.flush().unwrap();
        assert_eq!(receive(&mut far), [(1, true)]);
    }

    #[test]
    fn a_sleeper_wakes_for_frames_that_are_under_way() {
        let (near, mut far) = MemoryDevice::pair(MemoryOptions::default()).unwrap();
        let emulator = Impairment { delay: Duration::from_millis(20), ..Impairment::default() };
        let mut near = ImpairedDevice::new(near, emulator, emulator, 1, monotonic()).unwrap();
        send(&mut near, 1);
        send(&mut far, 2);
        let (mut here, mut there) = (receive(&mut near), receive(&mut far));
        while here.is_empty() || there.is_empty() {
            if near.prepare_to_sleep() {
                assert!(poll(&near, 20_000), "nobody wakes the sleeper");
            }
            here.extend(receive(&mut near));
            there.extend(receive(&mut far));
        }
        assert_eq!((here, there), (vec![(2, true)], vec![(1, true)]));
        assert!(near.prepare_to_sleep());
        assert!(!poll(&near, 0), "it wakes for nothing");
    }

    #[test]
    fn corruption_is_not_hidden_by_offloads() {
        let (near, mut far) = MemoryDevice::pair(MemoryOptions::default()).unwrap();
        let emulator = Impairment { corruption: 1.0, ..Impairment::default() };
        let mut near = ImpairedDevice::new(near, emulator, emulator, 1, monotonic()).unwrap();
        assert!(!near.capabilities().transmit_checksum);
        send(&mut far, 2);
        let came = receive(&mut near);
        assert!(came.len() == 1 && !came[0].1, "a corrupted frame is not verified");
        assert_eq!(near.impairments().0.corrupted, 1);
    }

    #[test]
    fn frames_that_a_full_device_refuses_go_out_when_it_has_room() {
        let options = MemoryOptions { ring_bytes: 1, mtu: 100, ..MemoryOptions::default() };
        let (near, mut far) = MemoryDevice::pair(options).unwrap();
        let emulator = Impairment::default();
        let mut near = ImpairedDevice::new(near, emulator, emulator, 1, monotonic()).unwrap();
        for value in 0..50 {
            send(&mut near, value);
        }
        let mut came = Vec::new();
        while came.len() < 50 {
            assert!(near.prepare_to_sleep());
            let some = receive(&mut far);
            assert!(!some.is_empty(), "{} frames came", came.len());
            came.extend(some);
            assert!(came.len() == 50 || poll(&near, 20_000), "no wake-up when there is room");
            near.receive(9, &mut |_, _| ()).unwrap();
        }
        assert!(came.iter().map(|&(value, _)| value).eq(0..50));
    }
}
