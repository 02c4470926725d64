//! The servers under test, behind one trait, and the process that runs one of them.
//!
//! A server implements one function, the loop of a thread. Threads, pinning, listening sockets,
//! counters and the end are shared, so that servers differ in nothing else.

pub(crate) mod children;
pub(crate) mod epoll;
pub(crate) mod external;
pub(crate) mod forking;
pub(crate) mod framing;
pub(crate) mod limits;
pub(crate) mod listener;
pub(crate) mod megapipe;
pub(crate) mod mtcp;
pub(crate) mod output_tail;
pub(crate) mod peer;
pub(crate) mod poll;
pub(crate) mod pool;
pub(crate) mod process;
pub(crate) mod response;
pub(crate) mod running;
pub(crate) mod select;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod thread;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

use ::mtcp::Mtcp;

use crate::error::{Context, Error, Result};
use crate::exchange::Service;
use crate::server::children::ChildPlace;
use crate::server::listener::{Listeners, Listening};
use crate::server::pool::Queue;
use crate::server::response::Responder;
use crate::server::shared::{Counters, Page, ThreadBlock};
use crate::stack::{self, Kind, Site};
use crate::sys::affinity;
use crate::sys::signals::{Event, wait_for_any};

/// Most bytes of one read of a thread; also the most that a server may buffer per connection.
pub(crate) const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Most bytes of one read in servers with a buffer for every connection.
pub(crate) const CONNECTION_BUFFER_BYTES: usize = 16 * 1024;

/// A server. It answers every request in order, by the rules of the responder, and closes a
/// connection when the peer has closed it.
pub(crate) trait Server: Sync {
    /// Returns the name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// Returns a description in one line.
    fn describe(&self) -> &'static str;

    /// Returns what limits the number of connections, as text.
    fn limits(&self) -> &'static str {
        "ulimit -n"
    }

    /// Fails if the server could not hold this many connections on this machine.
    fn check_connections(&self, connections: usize) -> Result<()> {
        limits::check_files(connections)
    }

    /// Returns whether the pinned threads do all the work, so that their CPU time is the server's.
    fn works_in_its_threads(&self) -> bool {
        true
    }

    /// Returns whether the threads count all their system calls.
    fn counts_system_calls(&self) -> bool {
        self.stack().is_none()
    }

    /// Returns the server's user-level TCP, if it does not use the kernel's.
    fn stack(&self) -> Option<Kind> {
        None
    }

    /// Returns whether the environment and the machine determine the driver of its channels.
    fn leaves_driver_open(&self) -> bool {
        false
    }

    /// Returns the listening sockets to create before the threads start.
    fn listening(&self) -> Listening;

    /// Serves until `context.stop()` becomes readable. Runs on a thread that is already pinned.
    /// Call `context.ready()` once connections can be served and `context.publish()` whenever the
    /// loop is about to sleep. A peer's reset is no error.
    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()>;
}

/// All servers. The first is the baseline of the report.
static SERVERS: [&dyn Server; 17] = [
    &epoll::SHARED,
    &epoll::PARTITIONED,
    &megapipe::USUAL,
    &megapipe::EPOLL,
    &megapipe::STEALING,
    &megapipe::PARTITIONED,
    &megapipe::BATCHED,
    &epoll::EDGE,
    &poll::PollServer,
    &select::SelectServer,
    &thread::ThreadServer,
    &forking::ForkingServer,
    &pool::PoolServer,
    &mtcp::XDP,
    &mtcp::PAIRED,
    &mtcp::PACKET,
    &mtcp::TAP,
];

/// How many of them are compared by default.
const USUAL: usize = 4;

pub(crate) fn all() -> &'static [&'static dyn Server] {
    &SERVERS
}

/// Returns the servers that are compared by default.
pub(crate) fn usual() -> &'static [&'static dyn Server] {
    &SERVERS[..USUAL]
}

/// Returns a paragraph about each server, for the help.
pub(crate) fn catalogue() -> String {
    let entry = |server: &&dyn Server| {
        format!(
            "  {:<18} {}\n{:21}limits: {}\n",
            server.name(),
            server.describe(),
            "",
            server.limits()
        )
    };
    all().iter().map(entry).collect()
}

/// Finds a server by its name.
pub(crate) fn find(name: &str) -> Result<&'static dyn Server> {
    all().iter().copied().find(|server| server.name() == name).ok_or_else(|| {
        let known: Vec<_> = all().iter().map(|server| server.name()).collect();
        Error::setup(
            format!("unknown server `{name}`"),
            format!("choose from: {}", known.join(", ")),
        )
    })
}

/// Returns a line about the driver of those servers of iobench whose names leave it open, with the
/// reason; `None` if there are none. Fails if they could not start.
pub(crate) fn describe_driver<'a>(names: impl Iterator<Item = &'a str>) -> Result<Option<String>> {
    let mut open: Vec<&str> = Vec::new();
    for name in names {
        if !open.contains(&name) && find(name).is_ok_and(|server| server.leaves_driver_open()) {
            open.push(name);
        }
    }
    if open.is_empty() {
        return Ok(None);
    }
    Ok(Some(format!("driver of {}: {}", open.join(", "), megapipe::describe_driver()?)))
}

/// Where a server listens.
#[derive(Debug, Clone)]
pub(crate) struct ServerLocation {
    pub(crate) address: SocketAddr,
    /// The device of a server with user-level TCP, in the thread's network namespace.
    pub(crate) interface: Option<String>,
}

impl ServerLocation {
    /// Starts the stacks of a server with user-level TCP.
    fn start_stacks(&self, kind: Kind, cpus: &[usize]) -> Result<Mtcp> {
        if let Some(interface) = &self.interface {
            let site = Site { interface: interface.clone(), address: self.address.ip() };
            return stack::start(kind, &site, cpus);
        }
        stack::start_from_environment(cpus.len())?.ok_or_else(|| {
            Error::setup(
                "a server on user-level TCP needs a device and an address of its own",
                "use `iobench compare --path veth`; or name --interface and, with --bind, an \
                 unused address; or set MTCP_CONFIG to a configuration file",
            )
        })
    }
}

/// The context of a server's thread.
pub(crate) struct ThreadContext<'a> {
    /// The index of the thread within the server.
    pub(crate) index: usize,
    /// The CPUs of the server's threads, by thread.
    pub(crate) cpus: &'a [usize],
    /// Counted by the thread; other processes see them after `publish`.
    pub(crate) counters: Counters,
    pub(crate) responder: &'a Responder,
    /// The address for a server that creates its listening sockets itself.
    pub(crate) address: SocketAddr,
    /// The stacks of a server with user-level TCP, one for each thread.
    pub(crate) stacks: Option<&'a Mtcp>,
    listener: Option<RawFd>,
    stop: RawFd,
    block: &'a ThreadBlock,
    children: &'a [ChildPlace],
    queue: &'a Queue,
    /// Present until the thread is ready.
    readiness: Option<Sender<()>>,
}

impl ThreadContext<'_> {
    /// Returns the socket to accept on, bound, listening and non-blocking: the one that all threads
    /// share (`Listening::Shared`) or the thread's own (`Listening::PerCpu`). Open while the thread
    /// runs. There is none with `Listening::Own`.
    pub(crate) fn shared_listener(&self) -> RawFd {
        // No system call accepts this number as a descriptor.
        self.listener.unwrap_or(-1)
    }

    /// Becomes readable when the thread has to return; every thread may read it once.
    pub(crate) fn stop(&self) -> RawFd {
        self.stop
    }

    /// Reports that the thread serves from now on.
    pub(crate) fn ready(&mut self) {
        self.block.announce(affinity::thread_id());
        if let Some(readiness) = self.readiness.take() {
            // If another thread could not start, the receiver no longer exists.
            let _ = readiness.send(());
        }
    }

    /// Publishes the counters to the measuring process.
    pub(crate) fn publish(&self) {
        self.block.publish(&self.counters);
    }
}

/// Runs a server with one thread on each of `cpus` until one of `ends` becomes readable or hangs
/// up, or a thread or `started` fails. `started` is called with the port once all threads serve:
/// earlier connections could be in an accept queue that no thread serves yet.
pub(crate) fn run(
    server: &dyn Server,
    cpus: &[usize],
    service: Service,
    place: &ServerLocation,
    page: &Page,
    ends: &[OwnedFd],
    started: impl FnOnce(u16) -> Result<()>,
) -> Result<()> {
    let stacks = server.stack().map(|kind| place.start_stacks(kind, cpus)).transpose()?;
    let listeners = Listeners::create(server.listening(), place.address, cpus)?;
    let address = SocketAddr::new(place.address.ip(), listeners.port);
    let (stop, finished) = (Event::new()?, Event::new()?);
    let (responder, queue) = (Responder::new(service), Queue::default());
    let end = || {
        responder.stop();
        stop.raise();
    };
    page.publish_port(listeners.port);
    let (readiness, ready) = channel();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, &cpu) in cpus.iter().enumerate() {
            let mut context = ThreadContext {
                index,
                cpus,
                counters: Counters::default(),
                responder: &responder,
                address,
                stacks: stacks.as_ref(),
                listener: listeners.of_thread(index).map(AsRawFd::as_raw_fd),
                stop: stop.raw(),
                block: page.block(index),
                children: page.children(index),
                queue: &queue,
                readiness: Some(readiness.clone()),
            };
            let finished = &finished;
            let spawned = Builder::new().name(format!("{}-{index}", server.name())).spawn_scoped(
                scope,
                move || {
                    let result =
                        affinity::pin_to(cpu).and_then(|()| server.run_thread(&mut context));
                    context.publish();
                    finished.raise();
                    result
                },
            );
            match spawned {
                Ok(handle) => threads.push(handle),
                Err(error) => {
                    end();
                    return Err(error).context("start a server thread", "raise `ulimit -u`");
                }
            }
        }
        drop(readiness);
        // A thread that fails drops its sender without a message.
        let is_ready = ready.iter().count() == cpus.len();
        let announced = if is_ready { started(listeners.port) } else { Ok(()) };
        if announced.is_ok() {
            wait_for_end(ends, &finished);
        }
        end();
        let served = threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| {
                Err(Error::setup("a server thread panicked", "report this as a bug"))
            })
        });
        announced.and(served)
    })
}

/// Waits until one of `ends` becomes readable or hangs up, or a thread has finished.
fn wait_for_end(ends: &[OwnedFd], finished: &Event) {
    let mut watched: Vec<RawFd> = ends.iter().map(AsRawFd::as_raw_fd).collect();
    watched.push(finished.raw());
    wait_for_any(&watched);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_servers_are_answered_with_the_known_ones() {
        let message = find("nginx").err().unwrap().to_string();
        assert!(message.contains("`nginx`") && message.contains("epoll-partitioned"), "{message}");
    }

    #[test]
    fn the_driver_is_described_for_the_servers_that_leave_it_open() {
        let described = |names: &[&str]| describe_driver(names.iter().copied()).unwrap();
        assert_eq!(described(&["epoll", "megapipe-epoll", "mtcp", "nginx"]), None);
        let text = described(&["megapipe", "epoll", "megapipe-pb", "megapipe"]).unwrap();
        let driver = text.strip_prefix("driver of megapipe, megapipe-pb: ").expect("the names");
        assert!(driver.contains(", because "), "{text}");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = all().iter().map(|server| server.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
