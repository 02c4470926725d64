//! Defines what can be registered with a channel: descriptors, sockets, signals, timers and wake-up
//! sources.

use crate::signals::{Blocked, Signals};
use crate::sys::{check, event_counter, file_status, get_number};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The kind of a handle, which determines its permitted requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connected or connecting stream socket: TCP, UNIX.
    Stream,
    /// A datagram socket: UDP, UNIX, netlink.
    Datagram,
    /// A connected socket of sequenced packets (`SOCK_SEQPACKET`): a connection that preserves
    /// message boundaries.
    Packet,
    /// A listening socket.
    Listener,
    /// A pipe, FIFO or terminal: bytes without a position.
    Pipe,
    /// A disk file: bytes at offsets.
    File,
    /// Signals of the process.
    Signal,
    /// A timer.
    Timer,
    /// Wake-ups from other threads.
    Wake,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Stream => "a stream socket",
            Kind::Datagram => "a datagram socket",
            Kind::Packet => "a packet socket",
            Kind::Listener => "a listening socket",
            Kind::Pipe => "a pipe",
            Kind::File => "a disk file",
            Kind::Signal => "a signal source",
            Kind::Timer => "a timer",
            Kind::Wake => "a wake-up source",
        }
    }

    /// Returns whether message boundaries are preserved.
    pub(crate) fn keeps_bounds(self) -> bool {
        matches!(self, Kind::Datagram | Kind::Packet)
    }

    /// Determines the kind of a descriptor by system calls.
    fn of(descriptor: BorrowedFd<'_>) -> io::Result<Kind> {
        let fd = descriptor.as_raw_fd();
        match file_status(fd)?.st_mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFBLK => Ok(Kind::File),
            libc::S_IFSOCK => {
                if get_number(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0 {
                    return Ok(Kind::Listener);
                }
                match get_number(fd, libc::SOL_SOCKET, libc::SO_TYPE)? {
                    libc::SOCK_STREAM => Ok(Kind::Stream),
                    libc::SOCK_SEQPACKET => Ok(Kind::Packet),
                    _ => Ok(Kind::Datagram),
                }
            }
            libc::S_IFDIR => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            _ => Ok(Kind::Pipe),
        }
    }
}

/// A descriptor or lightweight socket to be registered with a channel.
///
/// Made by `From` from the types of the standard library, from any [`OwnedFd`], from a [`Socket`]
/// that an accept returned, and from [`Signals`], [`Timer`] and [`wake_pair`].
#[derive(Debug)]
pub struct Source {
    pub(crate) endpoint: Endpoint,
    pub(crate) kind: Option<Kind>,
    /// Unblocks the signals of a [`Signals`] when dropped.
    pub(crate) blocked: Option<Blocked>,
    /// Present if it is an accepted connection.
    pub(crate) counted: Option<Counted>,
}

/// Counts an accepted connection that is not registered for
/// [`Config::max_connections`](crate::Config::max_connections), until it is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted(Rc<()>);

impl Counted {
    /// Returns the number of its clones.
    pub(crate) fn clones(&self) -> usize {
        Rc::strong_count(&self.0) - 1
    }
}

/// What a driver takes over when a handle is registered.
#[derive(Debug)]
#[non_exhaustive]
pub enum Endpoint {
    /// A descriptor.
    Descriptor(OwnedFd),
    /// A connection that was accepted as a lightweight socket on a driver without such sockets: a
    /// descriptor that the channel owns.
    Lightweight(OwnedFd),
    /// A lightweight socket of io_uring: an index in the ring's file table.
    Direct(NumberedSocket),
    /// A connection of an installed driver.
    Installed(NumberedSocket),
}

/// A socket that its driver identifies by a number and that is not registered yet. Dropping it adds
/// the number to the driver's list of discarded numbers.
#[derive(Debug)]
pub struct NumberedSocket {
    number: u32,
    discarded: Discarded,
    armed: bool,
}

/// The list of discarded numbers. Its clones share one list, by which a driver also recognises its
/// own sockets.
#[derive(Clone, Debug, Default)]
pub struct Discarded(Rc<RefCell<Vec<u32>>>);

impl Discarded {
    /// Adds a number.
    pub(crate) fn push(&self, number: u32) {
        self.0.borrow_mut().push(number);
    }

    /// Takes one of the numbers.
    pub fn pop(&self) -> Option<u32> {
        self.0.borrow_mut().pop()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

impl NumberedSocket {
    /// Creates a socket with this number, below 2²⁹.
    pub fn new(number: u32, discarded: &Discarded) -> NumberedSocket {
        NumberedSocket { number, discarded: discarded.clone(), armed: true }
    }

    /// Returns the number; fails with `EXDEV` if the socket belongs to another driver.
    pub fn number(&self, discarded: &Discarded) -> io::Result<u32> {
        match Rc::ptr_eq(&self.discarded.0, &discarded.0) {
            true => Ok(self.number),
            false => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// Takes the number; fails with `EXDEV` if the socket belongs to another driver, which then
    /// frees it.
    pub fn take(mut self, discarded: &Discarded) -> io::Result<u32> {
        let number = self.number(discarded)?;
        self.armed = false;
        Ok(number)
    }
}

impl Drop for NumberedSocket {
    fn drop(&mut self) {
        if self.armed {
            self.discarded.push(self.number);
        }
    }
}

impl Source {
    fn new(descriptor: impl Into<OwnedFd>, kind: Kind) -> Source {
        let endpoint = Endpoint::Descriptor(descriptor.into());
        Source { endpoint, kind: Some(kind), blocked: None, counted: None }
    }

    /// Returns the kind; determines it by system calls if the type does not.
    pub(crate) fn kind(&self) -> io::Result<Kind> {
        match (&self.endpoint, self.kind) {
            (_, Some(kind)) => Ok(kind),
            (Endpoint::Descriptor(descriptor), None) => Kind::of(descriptor.as_fd()),
            (_, None) => Ok(Kind::Stream),
        }
    }
}

impl Source {
    /// Marks a descriptor as an accepted connection: while it is registered, it counts for
    /// [`Config::max_connections`](crate::Config::max_connections) like a [`Socket`]. For
    /// descriptors that were taken out of one by [`Socket::into_descriptor`].
    pub fn accepted(connection: impl Into<Source>) -> Source {
        let source = connection.into();
        Source { counted: Some(source.counted.unwrap_or_default()), ..source }
    }

    /// Returns the descriptor, to use without a channel; returns a source without one unchanged.
    pub fn into_descriptor(self) -> Result<OwnedFd, Source> {
        match self.endpoint {
            Endpoint::Descriptor(descriptor) => Ok(descriptor),
            endpoint => Err(Source { endpoint, ..self }),
        }
    }

    /// Returns whether a read returns one frame, truncated to the buffer, as from a tun or tap
    /// device: true for all character devices except terminals.
    pub(crate) fn reads_frames(&self, kind: Kind) -> bool {
        let Endpoint::Descriptor(descriptor) = &self.endpoint else { return false };
        let fd = descriptor.as_raw_fd();
        // SAFETY: the call takes no pointers.
        kind == Kind::Pipe && is_device(fd) && unsafe { libc::isatty(fd) } == 0
    }

    /// Whether the sockets that a listener accepts are packet sockets.
    pub(crate) fn receives_packets(&self) -> bool {
        let Endpoint::Descriptor(descriptor) = &self.endpoint else { return false };
        let socket_type = get_number(descriptor.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE);
        socket_type.is_ok_and(|socket_type| socket_type == libc::SOCK_SEQPACKET)
    }
}

fn is_device(fd: i32) -> bool {
    file_status(fd).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFCHR)
}

macro_rules! source_from {
    ($($type:ty => $kind:expr),* $(,)?) => {
        $(impl From<$type> for Source {
            fn from(value: $type) -> Source {
                Source::new(value, $kind)
            }
        })*
    };
}

source_from! {
    TcpStream => Kind::Stream,
    TcpListener => Kind::Listener,
    UdpSocket => Kind::Datagram,
    UnixStream => Kind::Stream,
    UnixListener => Kind::Listener,
    UnixDatagram => Kind::Datagram,
    Timer => Kind::Timer,
    WakeSource => Kind::Wake,
}

impl From<OwnedFd> for Source {
    fn from(descriptor: OwnedFd) -> Source {
        let endpoint = Endpoint::Descriptor(descriptor);
        Source { endpoint, kind: None, blocked: None, counted: None }
    }
}

impl From<File> for Source {
    fn from(file: File) -> Source {
        OwnedFd::from(file).into()
    }
}

impl From<Signals> for Source {
    fn from(signals: Signals) -> Source {
        let (descriptor, blocked) = signals.into_parts();
        Source { blocked: Some(blocked), ..Source::new(descriptor, Kind::Signal) }
    }
}

impl From<Socket> for Source {
    fn from(socket: Socket) -> Source {
        let Socket { endpoint, kind, counted } = socket;
        Source::accepted(Source { endpoint, kind: Some(kind), blocked: None, counted })
    }
}

/// First number of lightweight sockets.
pub(crate) const FIRST_LIGHTWEIGHT: u32 = 1 << 30;

/// First number of an installed driver's sockets.
const FIRST_INSTALLED: u32 = FIRST_LIGHTWEIGHT + (1 << 29);

/// An accepted connection that is not registered yet. Dropping it closes it. It counts for
/// [`Config::max_connections`](crate::Config::max_connections) of the channel that accepted it.
#[derive(Debug)]
pub struct Socket {
    pub(crate) endpoint: Endpoint,
    pub(crate) kind: Kind,
    pub(crate) counted: Option<Counted>,
}

impl From<Endpoint> for Socket {
    /// Creates a connected stream socket.
    fn from(endpoint: Endpoint) -> Socket {
        Socket { endpoint, kind: Kind::Stream, counted: None }
    }
}

impl Socket {
    /// Returns whether it is a lightweight socket, which only its channel can register and which is
    /// closed when it leaves the channel. All connections of an installed driver are lightweight.
    pub fn is_lightweight(&self) -> bool {
        !matches!(self.endpoint, Endpoint::Descriptor(_))
    }

    /// Creates a connection from a driver's endpoint.
    pub fn from_endpoint(endpoint: Endpoint) -> Socket {
        endpoint.into()
    }

    /// Returns the number of a lightweight socket within its channel, from 2³⁰ on so that it is
    /// never confused with a descriptor (report, section 4.1.1). It is reused after the socket is
    /// closed.
    pub fn lightweight_number(&self) -> Option<u32> {
        match &self.endpoint {
            Endpoint::Direct(direct) => Some(FIRST_LIGHTWEIGHT + direct.number),
            Endpoint::Lightweight(descriptor) => {
                Some(FIRST_LIGHTWEIGHT + descriptor.as_raw_fd() as u32)
            }
            Endpoint::Installed(installed) => Some(FIRST_INSTALLED + installed.number),
            Endpoint::Descriptor(_) => None,
        }
    }

    /// Returns the descriptor, to use without the channel; returns a socket without one unchanged,
    /// such as a lightweight socket of io_uring. The descriptor is non-blocking.
    pub fn into_descriptor(self) -> Result<OwnedFd, Socket> {
        match self.endpoint {
            Endpoint::Descriptor(descriptor) | Endpoint::Lightweight(descriptor) => Ok(descriptor),
            endpoint => Err(Socket { endpoint, ..self }),
        }
    }
}

/// A timer on the monotonic clock, by timerfd_create(2).
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer that expires once, after `delay`.
    pub fn after(delay: Duration) -> io::Result<Timer> {
        Timer::new(delay, Duration::ZERO)
    }

    /// Creates a timer that expires every `period`, first after one period.
    pub fn every(period: Duration) -> io::Result<Timer> {
        Timer::new(period, period)
    }

    /// Creates a timer that does not expire until [`Channel::set_timer`](crate::Channel::set_timer)
    /// sets it.
    pub fn stopped() -> io::Result<Timer> {
        let flags = libc::TFD_CLOEXEC;
        // SAFETY: the call takes no pointers, and the new descriptor has no other owner.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: timerfd_create has just returned this descriptor, which has no other owner.
        Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn new(first: Duration, period: Duration) -> io::Result<Timer> {
        let timer = Timer::stopped()?;
        set_timer(timer.0.as_raw_fd(), Some(first), period)?;
        Ok(timer)
    }
}

/// Sets a timer of timerfd_create(2), or stops it.
pub(crate) fn set_timer(fd: i32, after: Option<Duration>, every: Duration) -> io::Result<()> {
    let time = |duration: Duration| libc::timespec {
        tv_sec: duration.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: duration.subsec_nanos().into(),
    };
    // A zero time stops the timer, so an expiry at once is set to one nanosecond.
    let first = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
    let spec = libc::itimerspec { it_interval: time(every), it_value: time(first) };
    // SAFETY: `spec` outlives the call, and a null pointer does not request the old setting.
    check(unsafe { libc::timerfd_settime(fd, 0, &spec, std::ptr::null_mut()) })?;
    Ok(())
}

impl From<Timer> for OwnedFd {
    fn from(timer: Timer) -> OwnedFd {
        timer.0
    }
}

/// The end of a wake-up pair that a channel registers; see [`wake_pair`].
#[derive(Debug)]
pub struct WakeSource(OwnedFd);

impl From<WakeSource> for OwnedFd {
    fn from(source: WakeSource) -> OwnedFd {
        source.0
    }
}

/// Wakes a channel from any thread; see [`wake_pair`].
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Completes the channel's [`watch`](crate::Channel::watch) with
    /// [`Event::Wake`](crate::Event::Wake). Several wake-ups before the channel handles them are
    /// counted together. Costs one system call; never blocks.
    pub fn wake(&self) {
        let one: u64 = 1;
        // A full counter means that 2⁶⁴ - 2 wake-ups are pending already, so the error does not
        // matter.
        // SAFETY: the eight bytes of `one` are readable and the descriptor is open.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// Creates a wake-up pair over eventfd(2): register the source with a channel, and wake it by the
/// waker.
///
/// ```
/// use megapipe::{Channel, Event, Repeat, wake_pair};
/// let (waker, source) = wake_pair()?;
/// let mut channel = Channel::new()?;
/// let handle = channel.register(source, "stop")?;
/// channel.watch(handle, Repeat::Once)?;
/// std::thread::spawn(move || waker.wake()).join().unwrap();
/// let done = channel.dispatch(None)?.unwrap();
/// assert!(matches!(done.event, Event::Wake(Ok(1))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn wake_pair() -> io::Result<(Waker, WakeSource)> {
    let source = event_counter()?;
    let waker = source.try_clone()?;
    Ok((Waker(Arc::new(waker)), WakeSource(source)))
}
