//! The ping-pong server of the MegaPipe report (Listing 3.1), on the channel.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use megapipe::{
    Accept, Buffer, Channel, Completion, Config, CpuSet, DriverChoice, DriverReport, Event, Handle,
    Lease, Repeat,
};

use crate::error::{Context, Error, Result};
use crate::server::listener::Listening;
use crate::server::response::Reply;
use crate::server::stream::{ACCEPT_REMEDY, is_refused};
use crate::server::{Server, ThreadContext};
use crate::sys::affinity;
use crate::sys::borrow;

/// A channel for each thread with its part of the partitioned listener, lightweight sockets, and
/// buffers that are written back without a copy.
pub(crate) struct MegapipeServer {
    name: &'static str,
    description: &'static str,
    driver: DriverChoice,
    batch: u32,
    accept: fn() -> Accept,
    steal_interval: Option<Duration>,
}

pub(crate) static USUAL: MegapipeServer = MegapipeServer {
    name: "megapipe",
    description: "the channel with a partitioned listener, lightweight sockets and batches",
    driver: DriverChoice::Auto,
    batch: BATCH,
    accept: Accept::lightweight,
    steal_interval: None,
};

pub(crate) static EPOLL: MegapipeServer = MegapipeServer {
    name: "megapipe-epoll",
    description: "the same program over the channel's epoll driver, even where io_uring works",
    driver: DriverChoice::Epoll,
    batch: BATCH,
    accept: Accept::lightweight,
    steal_interval: None,
};

pub(crate) static STEALING: MegapipeServer = MegapipeServer {
    name: "megapipe-stealing",
    description: "megapipe, with idle channels that take connections from busy ones",
    driver: DriverChoice::Auto,
    batch: BATCH,
    accept: Accept::lightweight,
    steal_interval: Some(Duration::from_millis(1)),
};

/// Only the first of the report's three techniques (Table 5.1).
pub(crate) static PARTITIONED: MegapipeServer = MegapipeServer {
    name: "megapipe-p",
    description: "megapipe with the partitioned listener alone: no batches, regular descriptors",
    driver: DriverChoice::Auto,
    batch: 1,
    accept: Accept::descriptors,
    steal_interval: None,
};

/// The first two of them; `megapipe` has all three.
pub(crate) static BATCHED: MegapipeServer = MegapipeServer {
    name: "megapipe-pb",
    description: "megapipe with the partitioned listener and batches, but regular descriptors",
    driver: DriverChoice::Auto,
    batch: BATCH,
    accept: Accept::descriptors,
    steal_interval: None,
};

const REMEDY: &str = "run `iobench doctor`, which names what this machine lacks";
const BUG: &str = "report this as a bug";
/// Batching threshold, as in the report (section 3.4.3).
const BATCH: u32 = 32;
/// Completions that are handled before the counters are published.
const COMPLETIONS: usize = 256;
impl Server for MegapipeServer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> &'static str {
        self.description
    }

    fn limits(&self) -> &'static str {
        "ulimit -n; ends peers that leave 4 MiB of split echoes unread"
    }

    fn leaves_driver_open(&self) -> bool {
        self.driver == DriverChoice::Auto
    }

    fn listening(&self) -> Listening {
        Listening::Shared
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        let MegapipeServer { driver, batch, accept, steal_interval, .. } = *self;
        // Without batches there is no reason to wait for more completions.
        let linger = if batch == 1 { Duration::ZERO } else { Config::default().linger };
        let config = Config { driver, batch, linger, steal_interval, ..Config::default() };
        let channel = file(Channel::with_config(config), "create a channel")?;
        let mut server = EventLoop { channel, context, accept };
        let stop = server.start()?;
        server.run(stop)
    }
}

/// Returns the driver that a channel gets on this machine and in this environment, and the reason.
pub(crate) fn describe_driver() -> Result<String> {
    // A ring whose destruction the kernel completes later interrupts calls of its thread.
    let probe = || Channel::<()>::new().map(|channel| channel.driver().clone());
    let report = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, probe);
        thread.map(std::thread::ScopedJoinHandle::join)
    });
    let report = report
        .context("start a thread", "raise `ulimit -u`, or permit clone3(2) in the sandbox")?;
    let report = report.map_err(|_| Error::setup("a channel's creation panicked", BUG))?;
    let DriverReport { kind, reason, .. } = file(report, "create a channel")?;
    Ok(format!("{kind}, because {reason}"))
}

/// Converts an error of the channel into an error of the program.
fn file<T>(result: std::result::Result<T, impl Into<megapipe::Error>>, action: &str) -> Result<T> {
    result.map_err(|error| io::Error::from(error.into())).context(action, REMEDY)
}

/// The outstanding answers of a connection, if requests have a size.
#[derive(Default)]
struct Connection {
    /// Bytes of the incomplete request that have arrived.
    partial: usize,
    /// Complete requests without an answer; one answer is written at a time.
    owed: usize,
    /// Answers whose write is in flight.
    writing: usize,
    /// The peer has closed its side; outstanding answers are sent first.
    is_ending: bool,
    /// The incomplete request, if it is to be echoed.
    held: Vec<u8>,
}

struct EventLoop<'a, 'b> {
    channel: Channel<Connection>,
    context: &'a mut ThreadContext<'b>,
    accept: fn() -> Accept,
}

impl EventLoop<'_, '_> {
    /// Starts accepting and watching for the end; returns the handle whose completion is the end.
    fn start(&mut self) -> Result<Handle> {
        let listener = borrow(self.context.shared_listener());
        let cpus: CpuSet =
            affinity::share_of(self.context.index, self.context.cpus).into_iter().collect();
        let joined = self.channel.register_listener(listener, cpus, Connection::default());
        let listening = file(joined, "take a share of the listening socket")?;
        file(self.channel.accept(listening, (self.accept)()), "accept")?;
        let stop: OwnedFd = borrow(self.context.stop())
            .try_clone_to_owned()
            .context("duplicate a descriptor", "raise the limit of open files (ulimit -n)")?;
        let stop = file(self.channel.register(stop, Connection::default()), "wait for the end")?;
        file(self.channel.read(stop, Vec::with_capacity(8)), "wait for the end")?;
        file(self.channel.flush(), "start accepting")?;
        Ok(stop)
    }

    fn run(&mut self, stop: Handle) -> Result<()> {
        let mut batch = Vec::with_capacity(COMPLETIONS);
        self.context.ready();
        loop {
            self.context.counters.system_calls = self.channel.counters().system_calls;
            self.context.publish();
            file(
                self.channel.dispatch_batch(&mut batch, COMPLETIONS, None),
                "wait for completions",
            )?;
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
                self.answer(done.handle, message)?;
            }
            Event::Receive(Ok(_)) => self.received_all(done.handle),
            Event::Write(Ok(count), buffer) if count == buffer.len() => {
                counters.bytes_sent += count as u64;
                self.written(done.handle, buffer)?;
            }
            Event::Accept(Ok(accepted)) => {
                counters.accepted += 1;
                let registered = self.channel.register(accepted.socket, Connection::default());
                let connection = file(registered, "register a connection")?;
                file(self.channel.receive(connection, Repeat::UntilCancelled), "receive")?;
            }
            Event::Accept(Err(error)) if error.raw_os_error().is_some_and(is_refused) => {
                Err(error).context("accept", ACCEPT_REMEDY)?;
            }
            // Out of descriptors or memory: the channel continues by itself.
            Event::Accept(Err(_)) if done.more => counters.errors += 1,
            Event::Accept(Err(error)) => {
                Err(error)
                    .context("accept", "check that nothing has shut the listening socket down")?;
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

    /// Answers the requests that a message completes. The connection is unknown if an earlier
    /// completion of the same batch has ended it.
    fn answer(&mut self, handle: Handle, message: Lease) -> Result<()> {
        let Some(connection) = self.channel.cookie_mut(handle) else { return Ok(()) };
        let responder = self.context.responder;
        let whole = match responder.reply() {
            Reply::Raw => true,
            Reply::Filler { request_bytes, .. } => {
                let arrived = connection.partial + message.len();
                connection.owed += arrived / request_bytes;
                connection.partial = arrived % request_bytes;
                return self.write_filler(handle);
            }
            Reply::Echo { request_bytes } if connection.held.is_empty() => {
                let requests = message.len() / request_bytes;
                message.len().is_multiple_of(request_bytes) && (requests == 1 || !responder.works())
            }
            Reply::Echo { .. } => false,
        };
        if !whole {
            return self.echo_copies(handle, &message);
        }
        if responder.work(&mut self.context.counters) {
            connection.writing += 1;
            file(self.channel.write(handle, message), "write")?;
        }
        Ok(())
    }

    /// Writes the next outstanding answer, unless a write is in flight.
    fn write_filler(&mut self, handle: Handle) -> Result<()> {
        let responder = self.context.responder;
        let Reply::Filler { bytes, .. } = responder.reply() else { return Ok(()) };
        let Some(connection) = self.channel.cookie_mut(handle) else { return Ok(()) };
        if connection.writing > 0 || connection.owed == 0 {
            return Ok(());
        }
        if responder.work(&mut self.context.counters) {
            connection.owed -= 1;
            connection.writing += 1;
            file(self.channel.write(handle, bytes), "write")?;
        }
        Ok(())
    }

    /// Echoes requests that did not arrive as one message each and have to be assembled.
    fn echo_copies(&mut self, handle: Handle, message: &[u8]) -> Result<()> {
        let responder = self.context.responder;
        let Reply::Echo { request_bytes } = responder.reply() else { return Ok(()) };
        let Some(connection) = self.channel.cookie_mut(handle) else { return Ok(()) };
        connection.held.extend_from_slice(message);
        while let Some(connection) = self.channel.cookie_mut(handle)
            && connection.held.len() >= request_bytes
        {
            let complete = connection.held.len() / request_bytes * request_bytes;
            let answer_bytes = if responder.works() { request_bytes } else { complete };
            if !responder.work(&mut self.context.counters) {
                return Ok(());
            }
            let rest = connection.held.split_off(answer_bytes);
            let answer = std::mem::replace(&mut connection.held, rest);
            connection.writing += 1;
            file(self.channel.write(handle, answer), "write")?;
        }
        Ok(())
    }

    /// Takes back a written buffer, and continues with the outstanding answers.
    fn written(&mut self, handle: Handle, buffer: Buffer) -> Result<()> {
        let Some(connection) = self.channel.cookie_mut(handle) else { return Ok(()) };
        connection.writing -= 1;
        if let Buffer::Owned(mut bytes) = buffer {
            // The next request uses the same memory.
            if connection.held.capacity() == 0 {
                bytes.clear();
                connection.held = bytes;
            }
        }
        if connection.owed > 0 {
            return self.write_filler(handle);
        }
        if connection.is_ending && connection.writing == 0 {
            self.end(handle);
        }
        Ok(())
    }

    /// Handles the end of the peer's stream: ends the connection when its answers are sent.
    fn received_all(&mut self, handle: Handle) {
        let Some(connection) = self.channel.cookie_mut(handle) else { return };
        connection.is_ending = true;
        if connection.writing == 0 && connection.owed == 0 {
            self.end(handle);
        }
    }

    /// Ends a connection, unless an earlier completion of the same batch has done so.
    fn end(&mut self, connection: Handle) {
        if self.channel.unregister(connection).is_ok() {
            self.context.counters.closed += 1;
        }
    }
}
