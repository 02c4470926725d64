//! Implements `Channel`: creating it, registering sources and dispatching completions.

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

/// Hands the requests of one thread to the system and returns their completions.
///
/// `C` is the type of the cookies: what the application wants to find again with each handle, such
/// as the state of a connection. The channel stores them.
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
/// In a forked child every call fails with [`Error::Forked`]; the parent's channel is not affected.
///
/// # Order
///
/// The channel executes the requests of one direction of a handle in the order of submission; each
/// begins when the one before it has ended. If a write to a stream fails part-way, those behind it
/// are not begun and complete with `ECANCELED`. The two directions are independent. Reads and
/// writes of a file at an offset have no order.
///
/// # Dropping
///
/// Dropping the channel has four steps. It lets handles that are being closed write their queued
/// output, for at most one second, and resets TCP connections that then have output left, so that
/// their peers do not take a part for the whole. It cancels everything else and waits at most two
/// seconds until the kernel no longer uses its memory; memory that the kernel uses after that is
/// leaked rather than freed. It closes the registered sources. It leaves its share of partitioned
/// listeners to the other channels.
pub struct Channel<C = ()> {
    engine: Engine,
    cookies: Vec<Option<C>>,
    /// Makes the channel `!Send`: rings and buffers belong to the creating thread.
    not_send: PhantomData<*mut ()>,
}

/// What [`Channel::unregister`] returns: the cookie, the descriptor and undelivered connections.
#[derive(Debug)]
pub struct Unregistered<C> {
    /// The application's cookie.
    pub cookie: C,
    /// The descriptor, for use without the channel; `None` for lightweight sockets and connections
    /// of an installed driver, which are closed, and for partitioned listeners, whose original the
    /// channel never owned.
    pub descriptor: Option<OwnedFd>,
    /// Connections that the listener had accepted and not delivered. For a partitioned listener
    /// that no other channel has joined, also those in this channel's accept queue.
    pub connections: Vec<Socket>,
}

impl<C> Channel<C> {
    /// Creates a channel with the default settings.
    ///
    /// Uses io_uring (Linux 6.1 or later) or else epoll; see [`Channel::driver`]. Submits each kind
    /// of request once on the new ring to learn what the kernel supports; this takes some tens of
    /// microseconds.
    pub fn new() -> Result<Channel<C>> {
        Channel::with_config(Config::default())
    }

    /// Creates a channel.
    ///
    /// Fails with [`Error::Setup`], which names cause and remedy, if memory or descriptors are
    /// short, and with [`Error::Config`] if a setting is out of range.
    pub fn with_config(config: Config) -> Result<Channel<C>> {
        let engine = Engine::new(config)?;
        Ok(Channel { engine, cookies: Vec::new(), not_send: PhantomData })
    }

    /// Returns the driver that the channel uses, the reason for the choice, and the io_uring
    /// features that the kernel lacks.
    pub fn driver(&self) -> &DriverReport {
        self.engine.report()
    }

    /// Returns the channel's counters.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// Returns the number of outstanding requests.
    pub fn outstanding(&self) -> usize {
        self.engine.outstanding()
    }

    /// Registers a descriptor, an accepted socket, signals, a timer or a wake-up source.
    ///
    /// The channel owns the source from now on; [`Channel::unregister`] returns a descriptor. While
    /// a pipe or terminal is registered, `O_NONBLOCK` is set, which also affects every other holder
    /// of the same open file description.
    ///
    /// Fails with [`Error::TooManyHandles`] at [`Config::max_handles`], and with `EXDEV` for a
    /// lightweight socket of another channel. The channel then closes the source.
    pub fn register(&mut self, source: impl Into<Source>, cookie: C) -> Result<Handle> {
        self.register_or_return(source, cookie).map_err(|rejected| rejected.error)
    }

    /// Registers as [`Channel::register`] does, but returns the source on failure. Only a
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

    /// Resets a connection that was accepted and that is not registered, and closes it. It takes no
    /// handle, so it works at [`Config::max_handles`], too. To end a connection without a reset,
    /// drop its socket. Both take effect with the next [`Channel::flush`], or when
    /// [`Channel::dispatch`] has no completion to return at once.
    ///
    /// Fails with `EXDEV` for a lightweight socket of another channel, which is closed.
    ///
    /// ```
    /// use megapipe::{Accept, Channel, Event};
    /// use std::io::{ErrorKind, Read};
    /// let mut channel = Channel::new()?;
    /// let listener = megapipe::listen("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let listening = channel.register(listener, ())?;
    /// channel.accept(listening, Accept::lightweight())?;
    /// let mut client = std::net::TcpStream::connect(address)?;
    /// let done = channel.dispatch(None)?.expect("a connection");
    /// let Event::Accept(Ok(accepted)) = done.event else { panic!() };
    /// channel.refuse(accepted.socket)?;
    /// channel.flush()?;
    /// let end = client.read(&mut [0]).map_err(|error| error.kind());
    /// assert_eq!(end, Err(ErrorKind::ConnectionReset));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refuse(&mut self, connection: impl Into<Source>) -> Result<()> {
        self.engine.refuse(connection.into())
    }

    /// Pairs two handles, such as both connections of a proxy: from now on, the repeating receives
    /// of each pause while the output of the *other* is long, see [`Config::output_pause`], and not
    /// while its own is. So a proxy holds little more than `output_pause` bytes in each direction,
    /// and each direction goes on while the other has to wait. A pair ends with the first
    /// [`Channel::close`], [`Channel::abort`] or [`Channel::unregister`] of one of its handles, and
    /// when one is paired with another handle. A handle that is paired with itself has no partner.
    /// The example `proxy` uses it.
    ///
    /// Both handles must be of streams, packets, pipes or datagram sockets.
    pub fn pair(&mut self, one: Handle, other: Handle) -> Result<()> {
        let kinds = [Kind::Stream, Kind::Packet, Kind::Pipe, Kind::Datagram];
        let one = self.check(one, "a pair", &kinds)?;
        let other = self.check(other, "a pair", &kinds)?;
        self.engine.pair(one, other)
    }

    /// Sets a registered [`Timer`](crate::Timer): the next expiry comes after `after` and further
    /// ones every `every`, if that is above zero; `None` stops the timer. The channel discards
    /// expirations that were counted and not delivered, but delivers a completion that it already
    /// holds. Costs one system call.
    pub fn set_timer(
        &mut self,
        handle: Handle,
        after: impl Into<Option<Duration>>,
        every: Duration,
    ) -> Result<()> {
        let key = self.engine.key(handle)?;
        self.engine.set_timer(key, after.into(), every)
    }

    /// Joins the channels that share a listening TCP socket. The channel gets an accept queue of
    /// its own for the connections whose handshake runs on the given CPUs (report, section 3.4.1).
    ///
    /// The original keeps the other CPUs; register it with [`Channel::register`] in one of the
    /// channels if the sets do not cover all CPUs. While they cover all that are online, one of the
    /// channels accepts from the original as well, in which connections from before the call wait.
    /// The first call sets `SO_REUSEPORT` on the
    /// original and steers by a classic BPF program; no privilege is needed. The channels must be
    /// in one process. When a channel ends, another one takes over its accept queue. If the CPUs
    /// distribute the connections very unequally, new ones are distributed to all channels at
    /// random for a while, unless [`Config::rebalance`] is false.
    ///
    /// Fails with [`Error::Listener`] if the set is empty or overlaps with another channel's, or if
    /// the socket is not a listening TCP socket or already shares its port.
    pub fn register_listener(
        &mut self,
        listener: impl AsFd,
        cpus: CpuSet,
        cookie: C,
    ) -> Result<Handle> {
        let key = self.engine.register_share(listener.as_fd(), &cpus)?;
        Ok(self.keep(key, cookie))
    }

    fn keep(&mut self, key: crate::slab::Key, cookie: C) -> Handle {
        let index = key.index as usize;
        if index >= self.cookies.len() {
            self.cookies.resize_with(index + 1, || None);
        }
        self.cookies[index] = Some(cookie);
        self.engine.handle(key)
    }

    /// Closes a handle after all submitted writes are written: the normal way to end a connection.
    /// Inbound requests are cancelled and the cookie is returned. The only further completion of
    /// the handle is one [`Event::Close`](crate::Event::Close); when it arrives, the memory of the
    /// handle's requests is free.
    ///
    /// The close takes effect with the next flush or dispatch at the latest, so it costs no system
    /// call of its own. Until then a receive in flight may take data from a duplicate of the
    /// descriptor.
    ///
    /// The result of that event reports a queued write that failed; the handle is then aborted, so
    /// that the peer does not take a part for the whole. It is aborted, too, if a write had failed
    /// part-way before. If the peer takes nothing for [`Config::close_timeout`], the handle is
    /// aborted and the result is `ETIMEDOUT`. A listener's undelivered connections are closed, too.
    ///
    /// # Input that arrives during the close
    ///
    /// A stream socket that has waited for its output for 5 ms discards what its peer sends, so
    /// that two ends that both close with much queued output do not wait for each other. If
    /// anything came, all is written and the peer has not ended its direction, the channel shuts
    /// down writing and continues to discard until the peer ends, has sent nothing for 2 s, or 30 s
    /// or 64 MiB are reached (or `close_timeout`, if that is shorter). A TCP socket that is closed
    /// with unread input resets the connection, and the peer loses what it has not read yet (RFC
    /// 1122, section 4.2.2.13). This can happen to a connection whose close does not have to wait.
    /// If the peer may still be sending, shut down writing with [`disconnect`](Channel::disconnect)
    /// and read to the end before you close.
    ///
    /// Other descriptors of the same socket also lose the discarded input and the direction that
    /// was shut down. If [`Channel::descriptor`] has returned a descriptor of a handle, its close
    /// discards nothing.
    pub fn close(&mut self, handle: Handle) -> Result<C> {
        let key = self.engine.key(handle)?;
        self.engine.close(key)?;
        self.take_cookie(handle)
    }

    /// Closes a handle at once and discards its queued output. It also works on a handle that
    /// [`Channel::close`] is closing, so it ends a write that does not complete. A TCP connection
    /// is reset, so that the peer does not mistake a part of the data for the whole. Otherwise as
    /// [`Channel::close`]; returns the cookie unless `close` has returned it.
    pub fn abort(&mut self, handle: Handle) -> Result<Option<C>> {
        let key = self.engine.key(handle)?;
        self.engine.abort(key)?;
        Ok(self.cookies.get_mut(handle.index as usize).and_then(Option::take))
    }

    /// Removes a handle from the channel and returns its descriptor and cookie, to use the
    /// descriptor without the channel. Pending requests, writes included, are cancelled and never
    /// delivered. To end a connection use [`Channel::close`].
    ///
    /// A lightweight socket cannot exist without its channel. The channel closes it as
    /// [`Channel::close`] does, after its queued writes, but without an event, on every driver.
    /// Data that the kernel had already delivered when its completion was cancelled is lost.
    pub fn unregister(&mut self, handle: Handle) -> Result<Unregistered<C>> {
        let key = self.engine.key(handle)?;
        let remains = self.engine.unregister(key)?;
        let cookie = self.take_cookie(handle)?;
        let (descriptor, connections) = (remains.descriptor, remains.connections);
        Ok(Unregistered { cookie, descriptor, connections })
    }

    /// Returns the number of bytes that were submitted to be written to a handle and that the
    /// kernel has not taken yet. The current write counts in full until a part of it completes.
    pub fn queued_bytes(&self, handle: Handle) -> Result<usize> {
        self.engine.queued_bytes(self.engine.key(handle)?)
    }

    /// Limits the time of each request of one direction of a handle. A request in flight that makes
    /// no progress for `limit` ends with `ETIMEDOUT`. The time of a repeating receive starts again
    /// with each completion, that of a write with each part that is written. It does not run for a
    /// request that waits behind another one. `None`, the default, is no limit. A write that was
    /// ended may have been written in part: [`Channel::abort`] the handle then.
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

    /// Returns the cookie of a handle, or `None` if the handle is not registered.
    pub fn cookie(&self, handle: Handle) -> Option<&C> {
        self.engine.member(self.engine.key(handle).ok()?).ok()?;
        self.cookies.get(handle.index as usize)?.as_ref()
    }

    /// Returns the cookie of a handle for modification.
    pub fn cookie_mut(&mut self, handle: Handle) -> Option<&mut C> {
        self.engine.member(self.engine.key(handle).ok()?).ok()?;
        self.cookies.get_mut(handle.index as usize)?.as_mut()
    }

    /// Returns the handle with this index and generation, for language bindings that store numbers.
    /// If there is no such member, every call rejects the handle as stale.
    pub fn handle(&self, index: u32, generation: u32) -> Handle {
        self.engine.numbered(index, generation)
    }

    /// Iterates over the registered handles, in ascending order of [`Handle::index`]. Because an
    /// index is reused, that is not the order of registration.
    ///
    /// A handle that [`Channel::close`] or [`Channel::abort`] has taken is not among them, although
    /// its [`Event::Close`](crate::Event::Close) may still come and it counts for
    /// [`Config::max_handles`] until then. Makes no system call; takes time in proportion to the
    /// largest number of handles that the channel has had. In a forked child there are none.
    ///
    /// ```
    /// use megapipe::Channel;
    /// let mut channel = Channel::new()?;
    /// let (a, b) = std::os::unix::net::UnixStream::pair()?;
    /// let registered = [channel.register(a, "a")?, channel.register(b, "b")?];
    /// assert!(channel.handles().eq(registered));
    /// // Ends every connection.
    /// for handle in channel.handles().collect::<Vec<_>>() {
    ///     channel.close(handle)?;
    /// }
    /// assert_eq!(channel.handles().count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn handles(&self) -> impl Iterator<Item = Handle> + '_ {
        self.engine.handles()
    }

    /// Returns the kind of a handle's source.
    pub fn kind(&self, handle: Handle) -> Result<Kind> {
        Ok(self.engine.member(self.engine.key(handle)?)?.kind)
    }

    /// Waits for the next completion; flushes first if there is none.
    ///
    /// `timeout`: `None` waits without a limit, zero returns at once. Returns `None` when the time
    /// is up, a signal handler ran, or the process was stopped and continued (`SIGSTOP`,
    /// `SIGCONT`).
    ///
    /// Completions are delivered one by one, but fetched from the kernel in batches. A busy channel
    /// may stay in the kernel for up to [`Config::linger`] after the first completion to fetch more
    /// at once. It measures whether this helps; a lone request and its answer do not wait.
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

    /// Waits as [`Channel::dispatch`] does, then appends the available completions to `batch`, at
    /// most `limit` of them; returns their number.
    ///
    /// Unlike completions that are still in the channel, those in the batch are not withdrawn when
    /// their handle is unregistered; [`Channel::cookie`] then returns `None` for them.
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

    /// Hands the collected requests to the kernel now. `dispatch` does it by itself; call this
    /// before other work that takes long.
    pub fn flush(&mut self) -> Result<()> {
        self.engine.flush()
    }

    /// Returns a duplicate descriptor of the socket or file; for a lightweight socket it makes a
    /// regular descriptor. The handle stays registered; the descriptor stays open when the handle
    /// ends.
    pub fn descriptor(&mut self, handle: Handle) -> Result<OwnedFd> {
        let key = self.engine.key(handle)?;
        self.engine.descriptor(key)
    }

    /// Sets a socket option, see setsockopt(2). Works for lightweight sockets, too, at the levels
    /// `SOL_SOCKET` and `IPPROTO_TCP`.
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

    /// Reads a socket option, see getsockopt(2), also of lightweight sockets; returns the length of
    /// the value.
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

    /// Sets `TCP_NODELAY`: whether small segments are sent at once. Connections inherit it from
    /// their listener.
    pub fn set_nodelay(&mut self, handle: Handle, nodelay: bool) -> Result<()> {
        let value = libc::c_int::from(nodelay).to_ne_bytes();
        self.set_socket_option(handle, libc::IPPROTO_TCP, libc::TCP_NODELAY, &value)
    }

    /// Sets `SO_LINGER`, in whole seconds, rounded up: how long a close waits for unsent data. Zero
    /// resets the connection, `None` is the default. Connections inherit it from their listener.
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

    /// Returns the address of the peer of a connection, by a system call. For each connection of a
    /// busy server, [`Channel::request_peer_address`] is cheaper.
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
