//! One cache line in each direction.
//!
//! The paper's lower bound is the interrupt between processors (section 2.1.6), which no user
//! program can send. Between two processes that spin, nothing is faster than a cache line that
//! changes its owner. A message, its number and the number of messages that its sender has read
//! share the line.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ipcload::{End, Error, Load, Result, TIME_LIMIT};

use super::shared_memory::SharedMemory;
use super::{LoopEnd, taken};

/// The bytes of a message, at most.
const MESSAGE_BYTES_MAX: usize = size_of::<u64>();
/// The place of each end's line: far apart, so that the processor fetches none for the other.
const OFFSETS: [usize; 2] = [0, 2048];
const PAGE_BYTES: usize = 4096;
/// How often an end looks before it yields its CPU, which the other may need.
const LOOKS: usize = 1_000;

/// What one end writes.
#[repr(C, align(64))]
struct Line {
    /// How many messages it has sent.
    sent: AtomicU64,
    /// The last of them.
    message: AtomicU64,
    /// How many messages it has read.
    read: AtomicU64,
}

pub(super) struct Cacheline {
    memory: SharedMemory,
    side: usize,
    sent: u64,
    read: u64,
    message_bytes: usize,
}

impl Cacheline {
    fn new(memory: SharedMemory, side: usize, load: &Load) -> Result<Cacheline> {
        let message_bytes = load.bytes();
        if message_bytes > MESSAGE_BYTES_MAX {
            let text = format!("a cache line carries {MESSAGE_BYTES_MAX} bytes at most");
            return Err(Error::transport(text));
        }
        Ok(Cacheline { memory, side, sent: 0, read: 0, message_bytes })
    }

    fn line(&self, side: usize) -> &Line {
        let place = self.memory.at(OFFSETS[side], size_of::<Line>());
        // SAFETY: the place lies within the mapping, which `self` owns; atomics are valid for any
        // bytes, and both processes access them as atomics only.
        unsafe { place.cast().as_ref() }
    }

    /// Tells the other end what this one has read, unless a message has told it.
    fn acknowledge(&self) {
        let word = &self.line(self.side).read;
        if word.load(Ordering::Relaxed) != self.read {
            word.store(self.read, Ordering::Release);
        }
    }
}

/// Spins until the condition holds; returns whether it does before the time limit.
#[inline]
fn spin(ready: impl Fn() -> bool) -> bool {
    let look = || (0..LOOKS).any(|_| ready());
    if look() {
        return true;
    }
    let begin = Instant::now();
    while begin.elapsed() < TIME_LIMIT {
        std::thread::yield_now();
        if look() {
            return true;
        }
    }
    false
}

impl LoopEnd for Cacheline {
    fn create(load: &Load) -> Result<(Cacheline, Vec<OwnedFd>)> {
        let (memory, file) = SharedMemory::create(PAGE_BYTES)?;
        Ok((Cacheline::new(memory, 0, load)?, vec![file]))
    }

    fn open(load: &Load, inherited: Vec<OwnedFd>) -> Result<Cacheline> {
        let [file] = taken(inherited)?;
        Cacheline::new(SharedMemory::map(&file, PAGE_BYTES)?, 1, load)
    }
}

impl End for Cacheline {
    #[inline]
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> Result<bool> {
        let (own, other) = (self.line(self.side), self.line(1 - self.side));
        if !spin(|| other.read.load(Ordering::Acquire) == self.sent) {
            return Ok(false);
        }
        let mut message = [0; MESSAGE_BYTES_MAX];
        fill(&mut message[..bytes]);
        own.message.store(u64::from_ne_bytes(message), Ordering::Relaxed);
        own.read.store(self.read, Ordering::Relaxed);
        own.sent.store(self.sent + 1, Ordering::Release);
        self.sent += 1;
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    #[inline]
    fn receive(&mut self, look: impl FnOnce(&[u8])) -> Result<bool> {
        self.acknowledge();
        let other = self.line(1 - self.side);
        if !spin(|| other.sent.load(Ordering::Acquire) != self.read) {
            return Ok(false);
        }
        let message = other.message.load(Ordering::Relaxed).to_ne_bytes();
        self.read += 1;
        look(&message[..self.message_bytes]);
        Ok(true)
    }
}
