//! Collects outcomes from the stack and from the kernel driver, in which it also sleeps.

use super::MtcpDriver;
use crate::engine::Port;
use megapipe::Kind;
use megapipe::driver_api::{
    Driver, Endpoint, INSTALLED_TAG, INTERNAL_TAG, Object, Operation, Outcome, Wake,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

/// Collections that a busy stack may fill by itself before the kernel driver is asked too.
const LOOK_EVERY: u32 = 4;
/// Interval of checks while a close lingers, because an engine with its own thread does not report
/// when all data was acknowledged.
const LINGER_LOOK: Duration = Duration::from_millis(5);

/// A descriptor that wakes the stack.
pub(super) struct Doorbell {
    object: Object,
    tag: u64,
    /// Whether the kernel driver waits for it.
    armed: bool,
}

/// Registers the descriptors that wake a stack with the kernel driver.
pub(super) fn doorbells(
    kernel: &mut dyn Driver,
    descriptors: &[RawFd],
) -> io::Result<Vec<Doorbell>> {
    let tags = INSTALLED_TAG..INTERNAL_TAG;
    let ring = |(descriptor, tag): (&RawFd, u64)| {
        // SAFETY: the stack keeps the descriptor open as long as the driver has the stack.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*descriptor) }.try_clone_to_owned()?;
        // For a datagram socket the kernel driver changes no flag, which the stack's own descriptor
        // would share.
        let object = kernel.attach(Endpoint::Descriptor(descriptor), Kind::Datagram)?;
        Ok(Doorbell { object, tag, armed: false })
    };
    descriptors.iter().zip(tags).map(ring).collect()
}

impl<P: Port> MtcpDriver<P> {
    /// Releases the descriptors that were registered with the kernel driver.
    pub(super) fn drop_doorbells(&mut self) {
        for doorbell in std::mem::take(&mut self.doorbells) {
            drop(self.kernel.detach(doorbell.object, &[]));
        }
    }

    fn arm_doorbells(&mut self) {
        for doorbell in self.doorbells.iter_mut().filter(|doorbell| !doorbell.armed) {
            let operation = Operation::Poll { events: libc::POLLIN as u32, repeat: false };
            // If there is no room, the driver has outcomes, and the channel will not sleep.
            doorbell.armed = self.kernel.submit(doorbell.tag, doorbell.object, operation).is_ok();
        }
    }

    /// Collects outcomes of the kernel driver, waiting at most `timeout`; true if the stack was
    /// woken.
    fn look(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<(bool, Wake)> {
        self.handed = false;
        self.unlooked = 0;
        let before = sink.len();
        let wake = self.kernel.collect(sink, timeout)?;
        let mut rung = false;
        let mut at = before;
        while at < sink.len() {
            let tag = sink[at].tag;
            if tag >= INSTALLED_TAG {
                sink.remove(at);
                rung = true;
                if let Some(doorbell) = self.doorbells.iter_mut().find(|bell| bell.tag == tag) {
                    doorbell.armed = false;
                }
                continue;
            }
            if !self.lent.is_empty() && self.complete_lent(&sink[at]) {
                sink.remove(at);
                continue;
            }
            if !self.shared.is_empty() {
                self.complete_shared(&mut sink[at]);
            }
            at += 1;
        }
        Ok((rung, wake))
    }

    /// Implements [`Driver::collect`].
    pub(super) fn collect_both(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake> {
        let before = sink.len();
        let mut busy = self.turn()?;
        sink.append(&mut self.outcomes);
        if sink.len() > before {
            self.unlooked += 1;
            if self.unlooked >= LOOK_EVERY {
                self.look(sink, Some(Duration::ZERO))?;
            } else if std::mem::take(&mut self.handed) {
                self.kernel.flush()?;
            }
            return Ok(Wake::Outcomes);
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout;
        loop {
            let limit = if busy { Some(Duration::ZERO) } else { self.sleep_limit(left) };
            let (_, wake) = self.look(sink, limit)?;
            busy = self.turn()?;
            sink.append(&mut self.outcomes);
            if sink.len() > before {
                return Ok(Wake::Outcomes);
            }
            if wake == Wake::Signal || left == Some(Duration::ZERO) {
                return Ok(if wake == Wake::Signal { wake } else { Wake::TimeUp });
            }
            if let Some(until) = until {
                left = Some(until.saturating_duration_since(Instant::now()));
            }
            if left == Some(Duration::ZERO) && timeout != left {
                return Ok(Wake::TimeUp);
            }
        }
    }

    /// How long the kernel driver may sleep, at most `left`.
    fn sleep_limit(&mut self, left: Option<Duration>) -> Option<Duration> {
        if left == Some(Duration::ZERO) {
            return Some(Duration::ZERO);
        }
        let mut limit = self.port.prepare_to_sleep(left);
        if limit != Some(Duration::ZERO) {
            self.arm_doorbells();
        }
        if let Some(next) = self.lingering.iter().map(|lingering| lingering.until).min() {
            let until = next.saturating_duration_since(Instant::now()).min(LINGER_LOOK);
            limit = Some(limit.map_or(until, |limit| limit.min(until)));
        }
        limit
    }
}
