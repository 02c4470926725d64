//! Transports of the FABLE paper's Table 1 that flows do not use, as short programs would have
//! them: one cache line, a heap in shared memory with notes in pipes, pages spliced into a pipe.
//!
//! The two ends trust each other, and nothing is batched.

mod cacheline;
mod shared_memory;
mod shmem_pipe;
mod vmsplice;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use fable::Form;
use ipcload::{End, Error, Invitation, Load, Result};

use super::baseline::{failed, no_longer_blocking, pipes, read_all, read_some, write_all};
use cacheline::Cacheline;
use shmem_pipe::ShmemPipe;
use vmsplice::Vmsplice;

/// A transport of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loop {
    /// The writer's pages spliced into a pipe; a second pipe tells how many messages were read.
    VmspliceCoop,
    /// A heap in shared memory; pipes carry the numbers of its slots, there and back.
    ShmemPipe(Form),
    /// One cache line in each direction, on which both ends spin: the floor of all latencies.
    Cacheline,
}

impl Loop {
    /// All of them, in the order of Table 1.
    pub(crate) const ALL: [Loop; 4] = [
        Loop::VmspliceCoop,
        Loop::ShmemPipe(Form::Unsafe),
        Loop::ShmemPipe(Form::Safe),
        Loop::Cacheline,
    ];

    /// Returns the name without the form.
    pub(crate) fn base_name(self) -> &'static str {
        match self {
            Loop::VmspliceCoop => "vmsplice-coop",
            Loop::ShmemPipe(_) => "shmem-pipe",
            Loop::Cacheline => "cacheline",
        }
    }

    /// Returns the one with this full name.
    pub(crate) fn named(name: &str) -> Option<Loop> {
        Loop::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Returns the full name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Loop::ShmemPipe(Form::Unsafe) => "shmem-pipe-unsafe",
            Loop::ShmemPipe(Form::Safe) => "shmem-pipe-safe",
            Loop::VmspliceCoop | Loop::Cacheline => self.base_name(),
        }
    }

    /// Runs one of the two processes of a measurement.
    pub(crate) fn run(self, load: &Load, inherited: Option<Vec<OwnedFd>>) -> Result<()> {
        match self {
            Loop::VmspliceCoop => run::<Vmsplice>(load, inherited),
            Loop::ShmemPipe(Form::Unsafe) => run::<ShmemPipe<false>>(load, inherited),
            Loop::ShmemPipe(Form::Safe) => run::<ShmemPipe<true>>(load, inherited),
            Loop::Cacheline => run::<Cacheline>(load, inherited),
        }
    }
}

/// An end of one of these transports.
trait LoopEnd: End + Sized {
    /// Makes a path, and what the other process needs for its end.
    fn create(load: &Load) -> Result<(Self, Vec<OwnedFd>)>;

    /// Opens the other end.
    fn open(load: &Load, inherited: Vec<OwnedFd>) -> Result<Self>;
}

fn run<E: LoopEnd>(load: &Load, inherited: Option<Vec<OwnedFd>>) -> Result<()> {
    let Some(inherited) = inherited else {
        ipcload::run_measuring_process(load, || {
            ipcload::interrupt_calls_when_stopping()?;
            let (end, descriptors) = E::create(load)?;
            Ok((end, Invitation::by_numbers(descriptors)))
        });
        return Ok(());
    };
    ipcload::run_partner_process(load, || {
        ipcload::interrupt_calls_when_stopping()?;
        E::open(load, inherited)
    })
}

/// The pipes of an end that carry numbers: of messages that were sent, and of places that are free
/// again.
struct Notes {
    input: OwnedFd,
    output: OwnedFd,
    /// Numbers that were read from the input and not used.
    read: VecDeque<u64>,
    /// Numbers as they are written.
    bytes: Vec<u8>,
}

/// The most numbers that are read at once.
const NUMBERS_MAX: usize = 64;

impl Notes {
    /// Makes the notes of this end, and the pipes for those of the other one.
    fn create() -> Result<(Notes, [OwnedFd; 2])> {
        let ([input, output], others) = pipes().map_err(|error| failed("make pipes", error))?;
        Ok((Notes::new([input, output]), others))
    }

    fn new([input, output]: [OwnedFd; 2]) -> Notes {
        Notes { input, output, read: VecDeque::new(), bytes: Vec::new() }
    }

    fn send(&mut self, numbers: &[u64]) -> Result<()> {
        self.bytes.clear();
        self.bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        write_all(&self.output, &self.bytes, no_longer_blocking)
    }

    /// Waits for a number.
    fn receive(&mut self) -> Result<u64> {
        const BYTES: usize = size_of::<u64>();
        loop {
            if let Some(number) = self.read.pop_front() {
                return Ok(number);
            }
            let mut room = [0; NUMBERS_MAX * BYTES];
            let count = read_some(&self.input, &mut room, no_longer_blocking)?;
            let whole = count.next_multiple_of(BYTES);
            read_all(&self.input, &mut room[count..whole], no_longer_blocking)?;
            let (numbers, _) = room[..whole].as_chunks();
            self.read.extend(numbers.iter().map(|bytes| u64::from_ne_bytes(*bytes)));
        }
    }
}

/// Returns the descriptors that the other process passed.
fn taken<const COUNT: usize>(inherited: Vec<OwnedFd>) -> Result<[OwnedFd; COUNT]> {
    let wrong = |_| Error::transport("a path comes with other descriptors; report this as a bug");
    inherited.try_into().map_err(wrong)
}

#[cfg(test)]
mod tests;
