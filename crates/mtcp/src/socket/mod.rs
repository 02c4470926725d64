//! Implements sockets: the calls of mTCP's socket API and of its public header, with the meaning of
//! the man pages.
//!
//! One layer serves both modes of an engine; `Port` hides the difference. All names are those of
//! POSIX. Errors are [`std::io::Error`]s with the errno of the man page.

mod closing;
mod control;
mod drive;
mod epoll;
pub(crate) mod errors;
pub(crate) mod events;
mod lifecycle;
pub(crate) mod naming;
pub(crate) mod options;
mod pipe;
pub(crate) mod settings;
mod stream;
mod table;
pub(crate) mod tcp_info;
mod urgent;

pub use self::closing::Linger;
pub use self::control::SIOCATMARK;
pub use self::epoll::EpollControl;
pub use self::events::{EpollEvent, Events};
pub use self::options::copied_options;
pub use self::pipe::PipeWriter;
pub use self::stream::Flags;

use self::epoll::{Epoll, NONE, Watches};
use self::errors::from;
use self::naming::{Bound, Sources};
use self::pipe::{Pipe, PipeEnd};
use self::settings::Extras;
use self::table::Table;
use crate::engine::Port;
use mtcp_proto::{Options, Readiness, Shutdown, SocketId};
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of a socket, an epoll or an end of a pipe in one [`Context`]. It is not a file
/// descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Descriptor(pub u32);

/// The family of a socket's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4: `AF_INET`.
    V4,
    /// IPv6: `AF_INET6`; also IPv4 with IPv4-mapped addresses, unless `IPV6_V6ONLY` is set.
    V6,
}

/// The initial settings of a context's sockets.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(crate) options: Options,
    /// Most open descriptors.
    pub(crate) max_descriptors: usize,
    /// How long the end of a context waits for data that still has to be sent.
    pub(crate) grace: Duration,
    pub(crate) ephemeral_ports: std::ops::RangeInclusive<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Neither listening nor connected.
    Fresh,
    /// `connect` has begun and has not reported its result, whatever that is.
    Connecting,
    Connected,
    Listening,
    /// The attempt to connect has failed, and was shut down before `connect` reported that.
    Disconnecting,
}

/// The directions that the application has shut down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ended {
    receive: bool,
    send: bool,
}

impl Ended {
    fn note(&mut self, how: Shutdown) {
        self.receive |= how != Shutdown::Send;
        self.send |= how != Shutdown::Receive;
    }
}

#[derive(Debug)]
struct Socket {
    phase: Phase,
    family: Family,
    nonblocking: bool,
    /// The readiness that epolls have seen, as far as it certainly still applies.
    seen: Readiness,
    ended: Ended,
    /// The number of calls of [`Context::shutdown`], which wraps.
    shutdowns: u8,
    /// The errno of a connection that was ended here, until it is reported; 0 is none.
    error: i32,
    /// The stack's socket, unless [`Phase::Fresh`].
    id: Option<SocketId>,
    /// Settings that few sockets have.
    extras: Option<Box<Extras>>,
}

#[derive(Debug)]
enum Object {
    Socket(Socket),
    Epoll(Box<Epoll>),
    Pipe(Arc<Pipe>, PipeEnd),
}

#[derive(Debug)]
struct Entry {
    object: Object,
    /// The first watch of this descriptor.
    first_watch: u32,
}

/// Number of calls after which a context without waiting calls runs a turn by itself, so that a
/// program that only polls its sockets makes progress.
const CALLS_PER_TURN: u32 = 256;
/// The number of calls that a call without a result counts for.
const FRUITLESS_CALLS: u32 = 16;

/// One core's sockets (`mctx_t` of mTCP). It belongs to the thread that created it.
///
/// In mode `complete` the context contains the stack and runs it in its calls: in
/// [`Context::epoll_wait`] and other waiting calls, and once every few hundred other calls. In mode
/// `paired` a separate thread runs the stack. No call raises `SIGPIPE`.
///
/// Sockets are blocking unless [`Context::set_nonblocking`] was called; epolls always wait as
/// requested. Dropping the context closes all of its descriptors. Written data is still sent, for
/// at most the configured grace time; connections that need longer are reset.
pub struct Context {
    core: u16,
    port: Box<dyn Port>,
    table: Table<Entry>,
    watches: Watches,
    /// The descriptor of each of the stack's sockets, by index.
    places: Vec<u32>,
    /// Both ends of all pipes that are open.
    pipes: Vec<Descriptor>,
    /// Number of calls until the next turn.
    credit: u32,
    /// Whether events were taken since the last [`Context::take_news`].
    news: bool,
    defaults: Defaults,
    sources: Option<Sources>,
    /// Sockets with a bound address, by port.
    bound: BTreeMap<u16, Vec<Bound>>,
    /// The next port that a bind to port 0 tries.
    next_port: u16,
    thread: PhantomData<*const ()>,
    /// State that must live as long as the device.
    _keep: Option<Arc<dyn Any>>,
}

impl Context {
    pub(crate) fn new(
        core: u16,
        port: Box<dyn Port>,
        defaults: Defaults,
        keep: Option<Arc<dyn Any>>,
    ) -> Context {
        Context {
            core,
            port,
            table: Table::new(defaults.max_descriptors),
            watches: Watches::default(),
            places: Vec::new(),
            pipes: Vec::new(),
            credit: CALLS_PER_TURN,
            news: false,
            next_port: *defaults.ephemeral_ports.start(),
            defaults,
            sources: None,
            bound: BTreeMap::new(),
            thread: PhantomData,
            _keep: keep,
        }
    }

    /// The core of this context, from 0.
    pub fn core(&self) -> usize {
        usize::from(self.core)
    }

    /// Processes packets and events once, without waiting. Only a program that waits neither in
    /// [`Context::epoll_wait`] nor in a blocking call needs it.
    ///
    /// # Errors
    /// `ENXIO` if the interface is gone, otherwise `ENETDOWN`; [`Context::failure`] has the cause.
    pub fn turn(&mut self) -> io::Result<()> {
        self.credit = CALLS_PER_TURN;
        self.news |= self.port.turn()?;
        self.take_events();
        Ok(())
    }

    /// The file descriptors that become readable when [`Context::turn`] has work to do, for a
    /// program that waits by itself, in poll(2) or io_uring. They stay the same. Call
    /// [`Context::prepare_to_sleep`] directly before waiting.
    pub fn system_descriptors(&self) -> Vec<std::os::fd::RawFd> {
        self.port.descriptors()
    }

    /// How long a program that waits by itself may sleep, at most `timeout`; zero if it must not
    /// sleep.
    pub fn prepare_to_sleep(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        self.port.prepare_to_sleep(timeout)
    }

    /// The counters of the stack.
    pub fn counters(&mut self) -> mtcp_proto::Counters {
        self.port.counters()
    }

    fn take_events(&mut self) {
        while let Some((id, readiness, arrived)) = self.port.next_news() {
            self.news = true;
            self.notify_readiness(id, readiness, arrived);
        }
        if self.port.alarm().answer() {
            for index in 0..self.pipes.len() {
                let descriptor = self.pipes[index];
                let ready = self.ready(descriptor).unwrap_or_default();
                self.notify(descriptor, ready);
            }
        }
    }

    /// Processes an increase of a socket's readiness, or further arrivals.
    fn notify_readiness(&mut self, id: SocketId, readiness: Readiness, arrived: Readiness) {
        let Some(&place) = self.places.get(id.index as usize) else { return };
        let descriptor = Descriptor(place);
        let Ok(entry) = self.table.get_mut(descriptor) else { return };
        let Object::Socket(socket) = &mut entry.object else { return };
        if socket.id != Some(id) {
            return;
        }
        let news = readiness.without(socket.seen).with(arrived);
        socket.seen = readiness;
        if entry.first_watch == NONE {
            return;
        }
        // As in the kernel, a change of state is reported to all watches, whatever events they
        // request.
        let state = Readiness::PEER_CLOSED.with(Readiness::CLOSED).with(Readiness::ERROR);
        let state = state.with(Readiness::SEND_FINISHED);
        let news = if news.intersects(state) {
            Events(u32::MAX)
        } else if news.intersects(Readiness::READABLE) {
            events::of_readiness(news) | Events::URGENT
        } else {
            events::of_readiness(news)
        };
        self.notify(descriptor, news);
    }

    /// The present readiness of a descriptor.
    fn ready(&mut self, descriptor: Descriptor) -> io::Result<Events> {
        Ok(match &mut self.table.get_mut(descriptor)?.object {
            Object::Socket(socket) => match socket.id {
                Some(id) => {
                    let (ready, ended) = (self.port.readiness(id), socket.ended);
                    if !ready.intersects(Readiness::WRITABLE) {
                        // Room that was reported can go again without a call of the application,
                        // with the congestion window. Whoever finds none is notified of the next,
                        // as by the kernel (tcp_poll sets SOCK_NOSPACE).
                        socket.seen = socket.seen.without(Readiness::WRITABLE);
                    }
                    let events = events::of_socket(ready, ended);
                    // A socket that was shut down before it is connected has no room until it is.
                    let waits = ended.send && !self.is_decided(id);
                    let events = if waits { events.without(Events::OUT) } else { events };
                    self.ready_with_urgent(descriptor, events)
                }
                None => {
                    let failed = if socket.error != 0 { Events::ERROR } else { Events::default() };
                    let none = events::of_socket(Readiness::default(), socket.ended);
                    none | failed | Events::OUT | Events::HANG_UP
                }
            },
            Object::Pipe(pipe, end) => pipe.ready(*end),
            Object::Epoll(_) => {
                let ready = self.epoll_is_ready(descriptor);
                if ready { Events::IN } else { Events::default() }
            }
        })
    }

    /// Whether the attempt to connect has succeeded or failed.
    fn is_decided(&self, id: SocketId) -> bool {
        let over = Readiness::CLOSED.with(Readiness::ERROR);
        self.port.was_established(id) || self.port.readiness(id).intersects(over)
    }

    fn install(&mut self, object: Object) -> io::Result<Descriptor> {
        self.table.insert(Entry { object, first_watch: NONE })
    }

    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    fn socket_of(&mut self, descriptor: Descriptor) -> io::Result<&mut Socket> {
        match &mut self.table.get_mut(descriptor)?.object {
            Object::Socket(socket) => Ok(socket),
            _ => Err(from(libc::ENOTSOCK)),
        }
    }

    /// Assigns the stack's socket to its descriptor.
    fn place(&mut self, id: SocketId, descriptor: Descriptor) {
        let index = id.index as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, NONE);
        }
        self.places[index] = descriptor.0;
    }

    /// Counts calls, and runs a turn when enough were counted.
    fn spend(&mut self, calls: u32) -> io::Result<()> {
        if self.credit > calls {
            self.credit -= calls;
            return Ok(());
        }
        self.turn()
    }

    /// Repeats an attempt after each turn until it returns a value.
    ///
    /// # Errors
    /// The errors of the attempt; `EAGAIN` when the time is over.
    fn block<R>(
        &mut self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Context) -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.turn()?;
            if let Some(done) = attempt(self)? {
                return Ok(done);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(from(libc::EAGAIN));
            }
            self.port.wait(left)?;
        }
    }

    /// Implements [`Drop`]: closes everything, and runs the stack until the rest is sent.
    fn finish(&mut self) {
        // Unread data makes a close a reset, so new data is taken first. A stack that has failed
        // has none.
        let _ = self.turn();
        for descriptor in self.table.descriptors() {
            // All connections send their remaining data at the same time, for the grace time.
            let _ = self.begin_to_linger(descriptor);
            // An error of a second close has no receiver.
            let _ = self.close(descriptor);
        }
        let over = self.block(Some(self.defaults.grace), |context| {
            Ok((context.port.unfinished() == 0).then_some(()))
        });
        if over.is_err() {
            self.port.abort_all();
            let _ = self.port.turn();
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.finish();
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Context").field("core", &self.core).finish_non_exhaustive()
    }
}
