//! The ping-pong server of the MegaPipe report (Listing 3.1), on the channel.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use megapipe::{
    Accept, Buffer, Channel, Completion, Config, CpuSet, DriverChoice, Event, Handle, Repeat,
};

use crate::error::{Context, Result};
use crate::server::listener::Listening;
use crate::server::{Server, ThreadContext};
use crate::sys::affinity;

/// A channel for each thread with a share of the one listening socket, lightweight sockets, and
/// buffers that go back as they came.
pub(crate) struct MegapipeServer {
    name: &'static str,
    description: &'static str,
    driver: DriverChoice,
    steal_interval: Option<Duration>,
}

pub(crate) static URING: MegapipeServer = MegapipeServer {
    name: "megapipe",
    description: "the channel over io_uring: partitioned listener, lightweight sockets, batches",
    driver: DriverChoice::Uring,
    steal_interval: None,
};

pub(crate) static EPOLL: MegapipeServer = MegapipeServer {
    name: "megapipe-epoll",
    description: "the same program over the channel's epoll driver, which needs no io_uring",
    driver: DriverChoice::Epoll,
    steal_interval: None,
};

pub(crate) static STEALING: MegapipeServer = MegapipeServer {
    name: "megapipe-stealing",
    description: "megapipe, with idle channels that take connections from busy ones",
    driver: DriverChoice::Uring,
    steal_interval: Some(Duration::from_millis(1)),
};

const REMEDY: &str = "run `iobench doctor` to see what this machine lacks";
/// Completions that are handled before the counters are shown.
const BATCH: usize = 256;

impl Server for MegapipeServer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> &'static str {
        self.description
    }

    fn listening(&self) -> Listening {
        Listening::Shared
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        let MegapipeServer { driver, steal_interval, .. } = *self;
        let config = Config { driver, steal_interval, ..Config::default() };
        let channel = file(Channel::with_config(config), "create a channel")?;
        let mut server = EventLoop { channel, context };
        let stop = server.start()?;
        server.run(stop)
    }
}

/// Gives a call on the channel the form of the program's other errors.
fn file<T>(result: std::result::Result<T, impl Into<megapipe::Error>>, action: &str) -> Result<T> {
    result.map_err(|error| io::Error::from(error.into())).context(action, REMEDY)
}

struct EventLoop<'a, 'b> {
    channel: Channel<()>,
    context: &'a mut ThreadContext<'b>,
}

impl EventLoop<'_, '_> {
    /// Starts accepting and waiting for the end; gives the handle that tells of the end.
    fn start(&mut self) -> Result<Handle> {
        let listener = borrow(self.context.shared_listener());
        let cpus = share_of(self.context.index, self.context.cpus);
        let joined = self.channel.register_listener(listener, cpus, ());
        let listening = file(joined, "take a share of the listening socket")?;
        file(self.channel.accept(listening, Accept::lightweight()), "accept")?;
        let stop: OwnedFd = borrow(self.context.stop())
            .try_clone_to_owned()
            .context("duplicate a descriptor", "raise the limit of open files (ulimit -n)")?;
        let stop = file(self.channel.register(stop, ()), "wait for the end")?;
        file(self.channel.read(stop, Vec::with_capacity(8)), "wait for the end")?;
        file(self.channel.flush(), "start accepting")?;
        Ok(stop)
    }

    fn run(&mut self, stop: Handle) -> Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        self.context.ready();
        loop {
            self.context.counters.system_calls = self.channel.counters().system_calls;
            self.context.publish();
            file(self.channel.dispatch_batch(&mut batch, BATCH, None), "wait for completions")?;
            for done in batch.drain(..) {
                if done.handle == stop {
                    return Ok(());
                }
                self.serve(done)?;
            }
        }
    }

    fn serve(&mut self, done: Completion) -> Result<()> {
        let counters = &mut self.context.counters;
        match done.event {
            Event::Receive(Ok(message)) if !message.is_empty() => {
                counters.bytes_received += message.len() as u64;
                // Unknown once an earlier completion of the same batch has ended the connection.
                if self.channel.cookie(done.handle).is_some() {
                    file(self.channel.write(done.handle, message), "write")?;
                }
            }
            Event::Write(Ok(count), Buffer::Lease(message)) if count == message.len() => {
                counters.bytes_sent += count as u64;
            }
            Event::Accept(Ok(accepted)) => {
                counters.accepted += 1;
                let registered = self.channel.register(accepted.socket, ());
                let connection = file(registered, "register a connection")?;
                file(self.channel.receive(connection, Repeat::UntilCancelled), "receive")?;
            }
            Event::Accept(Err(_)) => {
                // Out of descriptors or memory: counted, and tried again.
                counters.errors += 1;
                file(self.channel.accept(done.handle, Accept::lightweight()), "accept")?;
            }
            Event::Receive(Err(error)) | Event::Write(Err(error), _) => {
                // The benchmark's clients end every connection with RST.
                if !matches!(error.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE)) {
                    counters.errors += 1;
                }
                self.end(done.handle);
            }
            _ => self.end(done.handle),
        }
        Ok(())
    }

    /// Ends a connection, unless an earlier completion of the same batch has done so.
    fn end(&mut self, connection: Handle) {
        if self.channel.unregister(connection).is_ok() {
            self.context.counters.closed += 1;
        }
    }
}

/// The CPUs whose connections a thread takes: its own, and its part of those without a thread, as
/// the partitioned epoll server divides them.
fn share_of(thread: usize, cpus: &[usize]) -> CpuSet {
    let owner = |cpu| cpus.iter().position(|own| *own == cpu).unwrap_or(cpu % cpus.len());
    (0..affinity::configured_cpus()).filter(|cpu| owner(*cpu) == thread).collect()
}

fn borrow<'fd>(descriptor: RawFd) -> BorrowedFd<'fd> {
    // SAFETY: the context keeps its descriptors open while the thread runs, which is as long as
    // anything borrowed here is used.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_belongs_to_one_thread() {
        // More threads than CPUs is unusual, but must not lose a CPU either.
        for cpus in [vec![0], vec![1, 0], vec![4, 0, 9]] {
            let shares: Vec<CpuSet> =
                (0..cpus.len()).map(|thread| share_of(thread, &cpus)).collect();
            for cpu in 0..affinity::configured_cpus() {
                let owners: Vec<usize> =
                    (0..cpus.len()).filter(|thread| shares[*thread].contains(cpu)).collect();
                let expected = cpus.iter().position(|own| *own == cpu);
                assert_eq!(owners, [expected.unwrap_or(cpu % cpus.len())], "CPU {cpu}");
            }
        }
    }
}
