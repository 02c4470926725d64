//! The channel as the application sees it.

mod messages;
mod requests;
mod socket_requests;

pub use self::requests::{Accept, Direction, Rejected, Repeat};

use crate::address::Address;
use crate::completion::{Completion, Handle};
use crate::config::{Config, DriverReport};
use crate::counters::Counters;
use crate::cpuset::CpuSet;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::source::{Kind, Socket, Source};
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A pipe between one thread and the system: requests go in, completions come out.
///
/// `C` is the type of the cookies: what the application wants to find again with each handle, such
/// as the state of a connection. The channel keeps them.
///
/// # One thread
///
/// A channel belongs to the thread that created it and cannot be sent to another:
///
/// ```compile_fail
/// let channel: megapipe::Channel<()> = megapipe::Channel::new().unwrap();
/// std::thread::spawn(move || drop(channel));
/// ```
///
/// In a forked child every call fails with [`Error::Forked`]; the parent's channel is undisturbed.
///
/// # Order
///
/// Requests of one direction on one handle are carried out in the order of filing, each begun when
/// the one before it has ended; both directions go on side by side. Reads and writes of a file at
/// an offset have no order.
///
/// # Dropping
///
/// Dropping the channel lets handles that are being closed write what they have queued (for a
/// second at most), cancels everything else, waits until the kernel has let go of its memory (two
/// seconds at most; what it still holds then is leaked rather than freed), closes what is
/// registered, and leaves its share of partitioned listeners to the other channels.
pub struct Channel<C = ()> {
    engine: Engine,
    cookies: Vec<Option<C>>,
    /// Rings and buffers are the creating thread's.
    not_send: PhantomData<*mut ()>,
}

/// What an unregistered handle leaves behind.
#[derive(Debug)]
pub struct Unregistered<C> {
    /// The application's cookie.
    pub cookie: C,
    /// The descriptor, for use without the channel; `None` for lightweight sockets and connections
    /// of an installed driver, which are closed, and for partitioned listeners, whose original was
    /// never the channel's.
    pub descriptor: Option<OwnedFd>,
    /// Connections that a listener had accepted and not delivered, or that waited in its share of a
    /// listening socket of which no other channel has a share.
    pub connections: Vec<Socket>,
}

impl<C> Channel<C> {
    /// Creates a channel with the default settings.
    ///
    /// Uses io_uring (Linux 6.1 or later) or else epoll; see [`Channel::driver`]. Tries on the new
    /// ring every request that the io_uring driver submits, some tens of microseconds.
    pub fn new() -> Result<Channel<C>> {
        Channel::with_config(Config::default())
    }

    /// Creates a channel.
    ///
    /// Fails with [`Error::Setup`], which names cause and remedy, if resources are short, and with
    /// [`Error::Config`] if a setting is out of range.
    pub fn with_config(config: Config) -> Result<Channel<C>> {
        let engine = Engine::new(config)?;
        Ok(Channel { engine, cookies: Vec::new(), not_send: PhantomData })
    }

    /// Which driver the channel uses, why, and which features of io_uring the kernel lacks.
    pub fn driver(&self) -> &DriverReport {
        self.engine.report()
    }

    /// What the channel has done so far.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// How many requests are outstanding.
    pub fn outstanding(&self) -> usize {
        self.engine.outstanding()
    }

    /// Registers a descriptor, a socket that was accepted, signals, a timer or a wake-up source.
    ///
    /// The channel owns it from now on; [`Channel::unregister`] gives a descriptor back. While a
    /// pipe or terminal is registered, `O_NONBLOCK` is set, which every other holder of the same
    /// open file description sees, too.
    ///
    /// Fails with [`Error::TooManyHandles`] at [`Config::max_handles`], and with `EXDEV` for a
    /// lightweight socket of another channel. What was to be registered is closed then.
    pub fn register(&mut self, source: impl Into<Source>, cookie: C) -> Result<Handle> {
        self.register_or_return(source, cookie).map_err(|rejected| rejected.error)
    }

    /// Registers as [`Channel::register`] does, but gives back what could not be registered; only a
    /// lightweight socket of another channel is closed.
    pub fn register_or_return(
        &mut self,
        source: impl Into<Source>,
        cookie: C,
    ) -> Result<Handle, Rejected<Option<Source>>> {
        match self.engine.register(source.into()) {
            Ok(key) => Ok(self.keep(key, cookie)),
            Err((error, buffer)) => Err(Rejected { error, buffer }),
        }
    }

    /// Sets a [`Timer`](crate::Timer) that is registered: the next expiry comes `after` this time
    /// and further ones `every` so often, if that is above zero; `None` stops it. What it had
    /// counted and not delivered is forgotten; a completion that is in the channel already is
    /// delivered. One system call.
    pub fn set_timer(
        &mut self,
        handle: Handle,
        after: impl Into<Option<Duration>>,
        every: Duration,
    ) -> Result<()> {
        let key = self.engine.key(handle)?;
        self.engine.set_timer(key, after.into(), every)
    }

    /// Joins the channels that share a listening TCP socket, with an accept queue of its own for
    /// the connections whose handshake runs on the given CPUs (report, section 3.4.1).
    ///
    /// The original keeps the other CPUs; register it with [`Channel::register`] in one of the
    /// channels if the sets do not cover all. The first call sets `SO_REUSEPORT` on the original
    /// and steers by a classic BPF program; no privilege is needed. The channels must be in one
    /// process. When a channel ends, its share goes to another one. If the CPUs divide the
    /// connections very unequally, new ones are spread over all channels for a while, unless
    /// [`Config::rebalance`] is false.
    ///
    /// Fails with [`Error::Listener`] if the set is empty or overlaps with another channel's, or if
    /// the socket is no listening TCP socket or shares its port already.
    pub fn register_listener(
        &mut self,
        listener: impl AsFd,
        cpus: CpuSet,
        cookie: C,
    ) -> Result<Handle> {
        let key = self.engine.register_share(listener.as_fd(), &cpus)?;
        Ok(self.keep(key, cookie))
    }

    /// Changes the CPUs whose connections come to a partitioned listener. Connections that are
    /// queued already stay where they are.
    pub fn set_cpus(&mut self, handle: Handle, cpus: CpuSet) -> Result<()> {
        let key = self.engine.key(handle)?;
        self.engine.set_cpus(key, &cpus)
    }

    /// The CPUs whose connections come to a partitioned listener.
    pub fn cpus(&mut self, handle: Handle) -> Result<CpuSet> {
        let key = self.engine.key(handle)?;
        self.engine.cpus(key)
    }

    fn keep(&mut self, key: crate::slab::Key, cookie: C) -> Handle {
        let index = key.index as usize;
        if index >= self.cookies.len() {
            self.cookies.resize_with(index + 1, || None);
        }
        self.cookies[index] = Some(cookie);
        self.engine.handle(key)
    }

    /// Closes a handle once all that was filed to be written is written: the right end for a
    /// connection. What is inbound is cancelled, the cookie comes back, and nothing is delivered
    /// for the handle any more but one [`Event::Close`](crate::Event::Close), the last of all. By
    /// then the memory of its requests is free.
    ///
    /// The close takes effect with the next flush or dispatch at the latest, so that it costs no
    /// system call of its own. Until then a receive that is under way may take data from a
    /// duplicate of the descriptor.
    ///
    /// A queued write that fails shows in the result of that event. If the peer takes nothing for
    /// [`Config::close_timeout`], the handle is aborted and the result is `ETIMEDOUT`. A listener's
    /// undelivered connections are closed, too.
    ///
    /// # What the peer still sends
    ///
    /// A stream socket that has waited for its output for 5 ms discards what its peer sends, so
    /// that two ends that both close with much queued do not wait for each other. If anything came,
    /// all is written and the peer has not ended its direction, the channel shuts down writing and
    /// goes on discarding until the peer ends, has sent nothing for 2 s, or 30 s or 64 MiB are
    /// reached (or `close_timeout`, where that is shorter). Closed with unread input, a TCP socket
    /// would reset the connection, and the peer lose what it has not read yet (RFC 1122, section
    /// 4.2.2.13). Both happen to a connection whose close does not have to wait: where a peer may
    /// still be sending, shut down writing by [`disconnect`](Channel::disconnect) and read to the
    /// end before closing.
    ///
    /// Descriptors that others have of the same socket lose the input and the direction, too. A
    /// handle of which [`Channel::descriptor`] has given one discards nothing.
    pub fn close(&mut self, handle: Handle) -> Result<C> {
        let key = self.engine.key(handle)?;
        self.engine.close(key)?;
        self.take_cookie(handle)
    }

    /// Closes a handle at once and discards what is queued, also one that
    /// [`Channel::close`] is closing: it overtakes a write that does not end. A TCP connection is
    /// reset, so that the peer does not take what it has for the whole. Otherwise as
    /// [`Channel::close`]; gives the cookie unless `close` has given it.
    pub fn abort(&mut self, handle: Handle) -> Result<Option<C>> {
        let key = self.engine.key(handle)?;
        self.engine.abort(key)?;
        Ok(self.cookies.get_mut(handle.index as usize).and_then(Option::take))
    }

    /// Takes a handle out of the channel, to go on with its descriptor: what is pending is
    /// cancelled and never delivered, also writes, and the descriptor and the cookie come back.
    /// To end a connection use [`Channel::close`].
    ///
    /// A lightweight socket cannot be without its channel: it is closed as by [`Channel::close`],
    /// queued writes first, but without an event. It makes no difference which driver the channel
    /// has. Data that the kernel had already handed over when its completion was cancelled is
    /// lost.
    pub fn unregister(&mut self, handle: Handle) -> Result<Unregistered<C>> {
        let key = self.engine.key(handle)?;
        let remains = self.engine.unregister(key)?;
        let cookie = self.take_cookie(handle)?;
        let (descriptor, connections) = (remains.descriptor, remains.connections);
        Ok(Unregistered { cookie, descriptor, connections })
    }

    /// Bytes that were filed to be written to a handle and that the kernel has not taken yet. A
    /// write under way counts in full until a part of it completes.
    pub fn queued_bytes(&self, handle: Handle) -> Result<usize> {
        self.engine.queued_bytes(self.engine.key(handle)?)
    }

    /// Limits the time of each request of one direction of a handle: one that is under way and has
    /// not got on for `limit` ends with `ETIMEDOUT`. Repeating receives begin their time anew with
    /// each completion, writes with each part that is written; what waits behind another request
    /// has not begun. `None`, as at first, is no limit. A write that was ended may have been
    /// written in part: [`Channel::abort`] the handle then.
    ///
    /// ```
    /// use megapipe::{Channel, Direction, Event, Repeat};
    /// use std::os::unix::net::UnixStream;
    /// use std::time::Duration;
    /// let mut channel = Channel::new()?;
    /// let (silent, ours) = UnixStream::pair()?;
    /// let handle = channel.register(ours, ())?;
    /// channel.set_time_limit(handle, Direction::Inbound, Duration::from_millis(5))?;
    /// channel.receive(handle, Repeat::UntilCancelled)?;
    /// let done = channel.dispatch(None)?.expect("the end of the time");
    /// let Event::Receive(Err(error)) = done.event else { panic!() };
    /// assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_time_limit(
        &mut self,
        handle: Handle,
        direction: Direction,
        limit: impl Into<Option<Duration>>,
    ) -> Result<()> {
        let key = self.engine.key(handle)?;
        self.engine.set_time_limit(key, direction.lane(), limit.into())
    }

    fn take_cookie(&mut self, handle: Handle) -> Result<C> {
        let slot = self.cookies.get_mut(handle.index as usize);
        slot.and_then(Option::take).ok_or(Error::UnknownHandle)
    }

    /// The cookie of a handle; `None` if it is not registered (any more).
    pub fn cookie(&self, handle: Handle) -> Option<&C> {
        self.engine.member(self.engine.key(handle).ok()?).ok()?;
        self.cookies.get(handle.index as usize)?.as_ref()
    }

    /// The cookie of a handle, to change it.
    pub fn cookie_mut(&mut self, handle: Handle) -> Option<&mut C> {
        self.engine.member(self.engine.key(handle).ok()?).ok()?;
        self.cookies.get_mut(handle.index as usize)?.as_mut()
    }

    /// The handle with this index and generation, for bindings to languages that keep numbers. What
    /// names no member is refused by every call, as a stale handle is.
    pub fn handle(&self, index: u32, generation: u32) -> Handle {
        self.engine.numbered(index, generation)
    }

    /// What a handle is.
    pub fn kind(&self, handle: Handle) -> Result<Kind> {
        Ok(self.engine.member(self.engine.key(handle)?)?.kind)
    }

    /// Waits for the next completion, and flushes first if none is there.
    ///
    /// `timeout`: `None` for ever, zero to look without waiting. Gives `None` when the time is up
    /// or a signal handler ran.
    ///
    /// Completions come one by one, but are fetched from the kernel in batches; a busy channel may
    /// stay in the kernel for up to [`Config::linger`] after the first one to fetch more at once.
    /// Whether it does is found by trying: a lone request and its answer are not kept waiting.
    ///
    /// ```
    /// use megapipe::{Channel, Event, Repeat, Timer};
    /// use std::time::Duration;
    /// let mut channel = Channel::new()?;
    /// let tick = channel.register(Timer::every(Duration::from_millis(1))?, ())?;
    /// channel.watch(tick, Repeat::UntilCancelled)?;
    /// let done = channel.dispatch(Duration::from_secs(5))?.expect("a tick in time");
    /// assert!(matches!(done.event, Event::Timer(Ok(1..))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dispatch(&mut self, timeout: impl Into<Option<Duration>>) -> Result<Option<Completion>> {
        self.engine.dispatch(timeout.into())
    }

    /// Waits as [`Channel::dispatch`] does, then appends to `batch` the completions that are there,
    /// at most `limit` of them; gives their number.
    ///
    /// Unlike completions that are still in the channel, those in the batch are not withdrawn when
    /// their handle is unregistered; [`Channel::cookie`] gives `None` for them then.
    pub fn dispatch_batch(
        &mut self,
        batch: &mut Vec<Completion>,
        limit: usize,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<usize> {
        let before = batch.len();
        if limit > 0
            && let Some(first) = self.engine.dispatch(timeout.into())?
        {
            batch.push(first);
            self.engine.drain_ready(batch, before.saturating_add(limit));
        }
        Ok(batch.len() - before)
    }

    /// Hands what was filed to the kernel now. Never needed before `dispatch`; of use before other
    /// work that takes long.
    pub fn flush(&mut self) -> Result<()> {
        self.engine.flush()
    }

    /// Another descriptor for the same socket or file; the way from a lightweight socket to a
    /// regular one. The handle stays registered; the descriptor stays open when it goes.
    pub fn descriptor(&mut self, handle: Handle) -> Result<OwnedFd> {
        let key = self.engine.key(handle)?;
        self.engine.descriptor(key)
    }

    /// setsockopt(2), also for lightweight sockets (at the levels `SOL_SOCKET` and `IPPROTO_TCP`).
    pub fn set_socket_option(
        &mut self,
        handle: Handle,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<()> {
        let key = self.engine.key(handle)?;
        self.engine.set_option(key, level, name, value)
    }

    /// getsockopt(2), also for lightweight sockets; gives the length of the value.
    pub fn socket_option(
        &mut self,
        handle: Handle,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize> {
        let key = self.engine.key(handle)?;
        self.engine.get_option(key, level, name, value)
    }

    /// `TCP_NODELAY`: whether small segments are sent at once. Inherited from a listener.
    pub fn set_nodelay(&mut self, handle: Handle, nodelay: bool) -> Result<()> {
        let value = libc::c_int::from(nodelay).to_ne_bytes();
        self.set_socket_option(handle, libc::IPPROTO_TCP, libc::TCP_NODELAY, &value)
    }

    /// `SO_LINGER`, in whole seconds, rounded up: how long a close waits for unsent data; zero to
    /// reset the connection, `None` for the default. Inherited from a listener.
    pub fn set_linger(&mut self, handle: Handle, linger: Option<Duration>) -> Result<()> {
        let seconds = linger.map_or(0, |time| {
            let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            whole.min(i32::MAX as u64) as libc::c_int
        });
        let mut value = [0; 8];
        value[..4].copy_from_slice(&libc::c_int::from(linger.is_some()).to_ne_bytes());
        value[4..].copy_from_slice(&seconds.to_ne_bytes());
        self.set_socket_option(handle, libc::SOL_SOCKET, libc::SO_LINGER, &value)
    }

    /// The address of the other side of a connection, now. For each connection of a busy server,
    /// [`Channel::request_peer_address`] is cheaper.
    pub fn peer_address(&mut self, handle: Handle) -> Result<Address> {
        let key = self.engine.key(handle)?;
        let object = self.engine.member(key)?.object();
        self.engine.peer_address(object).map_err(Error::system("getpeername"))
    }
}

impl<C> std::fmt::Debug for Channel<C> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Channel")
            .field("driver", &self.engine.report().kind)
            .field("outstanding", &self.engine.outstanding())
            .finish_non_exhaustive()
    }
}
