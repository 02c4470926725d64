//! What can be registered with a channel.

use crate::signals::{Blocked, Signals};
use crate::sys::{check, get_number};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What a handle is, which decides which requests it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connected or connecting stream socket: TCP, UNIX.
    Stream,
    /// A datagram socket: UDP, UNIX, netlink.
    Datagram,
    /// A connected socket of sequenced packets (`SOCK_SEQPACKET`): a stream that keeps the bounds
    /// of messages.
    Packet,
    /// A listening socket.
    Listener,
    /// A pipe, a FIFO, a terminal: bytes without a position.
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

    /// Whether messages keep their bounds.
    pub(crate) fn keeps_bounds(self) -> bool {
        matches!(self, Kind::Datagram | Kind::Packet)
    }

    /// Asks the kernel what a descriptor is.
    fn of(descriptor: BorrowedFd<'_>) -> io::Result<Kind> {
        let fd = descriptor.as_raw_fd();
        // SAFETY: all-zero bytes are a valid `stat`, which fstat only fills.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writing and outlives the call.
        check(unsafe { libc::fstat(fd, &mut stat) })?;
        match stat.st_mode & libc::S_IFMT {
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

/// A descriptor or lightweight socket on its way into a channel.
///
/// Made by `From` from the types of the standard library, from any [`OwnedFd`], from a [`Socket`]
/// that an accept brought, and from [`Signals`], [`Timer`] and [`wake_pair`].
#[derive(Debug)]
pub struct Source {
    pub(crate) endpoint: Endpoint,
    pub(crate) kind: Option<Kind>,
    /// What unblocks the signals of a [`Signals`] at its end.
    pub(crate) blocked: Option<Blocked>,
}

/// Where the bytes of a handle come from, as a driver takes it over.
#[derive(Debug)]
#[non_exhaustive]
pub enum Endpoint {
    /// A descriptor.
    Descriptor(OwnedFd),
    /// A connection that was accepted as a lightweight socket where the driver has none: the
    /// channel's own, though there is a descriptor below it.
    Lightweight(OwnedFd),
    /// A lightweight socket of io_uring: an entry in the ring's own file table.
    Direct(NumberedSocket),
    /// A connection of an installed driver.
    Installed(NumberedSocket),
}

/// A socket that is a number of its driver's and not registered yet. Dropping it leaves the number
/// where the driver finds what is no longer used.
#[derive(Debug)]
pub struct NumberedSocket {
    number: u32,
    discarded: Discarded,
    armed: bool,
}

/// The numbers that are no longer used. Its clones are one list, by which a driver also knows
/// its own sockets.
#[derive(Clone, Debug, Default)]
pub struct Discarded(Rc<RefCell<Vec<u32>>>);

impl Discarded {
    /// Adds one.
    pub(crate) fn push(&self, number: u32) {
        self.0.borrow_mut().push(number);
    }

    /// Takes one of them.
    pub fn pop(&self) -> Option<u32> {
        self.0.borrow_mut().pop()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

impl NumberedSocket {
    /// A socket with this number, below 2²⁹.
    pub fn new(number: u32, discarded: &Discarded) -> NumberedSocket {
        NumberedSocket { number, discarded: discarded.clone(), armed: true }
    }

    /// The number; fails with `EXDEV` if the socket is another driver's.
    pub fn number(&self, discarded: &Discarded) -> io::Result<u32> {
        match Rc::ptr_eq(&self.discarded.0, &discarded.0) {
            true => Ok(self.number),
            false => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// Takes the number back; fails with `EXDEV` if the socket is another driver's, which drops it.
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
        Source { endpoint, kind: Some(kind), blocked: None }
    }

    /// What it is; asks the kernel if the type did not say.
    pub(crate) fn kind(&self) -> io::Result<Kind> {
        match (&self.endpoint, self.kind) {
            (_, Some(kind)) => Ok(kind),
            (Endpoint::Descriptor(descriptor), None) => Kind::of(descriptor.as_fd()),
            (_, None) => Ok(Kind::Stream),
        }
    }
}

impl Source {
    /// The descriptor, to use without a channel; gives a source that has none back unchanged.
    pub fn into_descriptor(self) -> Result<OwnedFd, Source> {
        match self.endpoint {
            Endpoint::Descriptor(descriptor) => Ok(descriptor),
            endpoint => Err(Source { endpoint, ..self }),
        }
    }

    /// Whether a read takes one frame and cuts it to the room, as from a tun or tap device: true of
    /// all character devices that are no terminals.
    pub(crate) fn reads_frames(&self, kind: Kind) -> bool {
        let Endpoint::Descriptor(descriptor) = &self.endpoint else { return false };
        let fd = descriptor.as_raw_fd();
        // SAFETY: the call takes no pointers.
        kind == Kind::Pipe && is_device(fd) && unsafe { libc::isatty(fd) } == 0
    }

    /// Whether a listener brings packet sockets.
    pub(crate) fn brings_packets(&self) -> bool {
        let Endpoint::Descriptor(descriptor) = &self.endpoint else { return false };
        let socket_type = get_number(descriptor.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE);
        socket_type.is_ok_and(|socket_type| socket_type == libc::SOCK_SEQPACKET)
    }
}

fn is_device(fd: i32) -> bool {
    // SAFETY: all-zero bytes are a valid `stat`, which fstat only fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writing and outlives the call.
    let known = unsafe { libc::fstat(fd, &mut stat) } == 0;
    known && stat.st_mode & libc::S_IFMT == libc::S_IFCHR
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
        Source { endpoint: Endpoint::Descriptor(descriptor), kind: None, blocked: None }
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
        Source { endpoint: socket.endpoint, kind: Some(socket.kind), blocked: None }
    }
}

/// Lightweight sockets are numbered from here on.
pub(crate) const FIRST_LIGHTWEIGHT: u32 = 1 << 30;

/// And those of an installed driver from here on.
const FIRST_INSTALLED: u32 = FIRST_LIGHTWEIGHT + (1 << 29);

/// A connection that an accept brought and that is not registered yet. Dropping it closes it.
#[derive(Debug)]
pub struct Socket {
    pub(crate) endpoint: Endpoint,
    pub(crate) kind: Kind,
}

impl From<Endpoint> for Socket {
    /// A connected stream socket.
    fn from(endpoint: Endpoint) -> Socket {
        Socket { endpoint, kind: Kind::Stream }
    }
}

impl Socket {
    /// Whether it is a lightweight socket, which only its channel can register and which is closed
    /// when it leaves the channel. So are all connections of an installed driver.
    pub fn is_lightweight(&self) -> bool {
        !matches!(self.endpoint, Endpoint::Descriptor(_))
    }

    /// A connection as a driver gives it out.
    pub fn from_endpoint(endpoint: Endpoint) -> Socket {
        endpoint.into()
    }

    /// The connection as a driver takes it.
    pub fn into_endpoint(self) -> Endpoint {
        self.endpoint
    }

    /// The number of a lightweight socket within its channel, from 2³⁰ on so that it is never taken
    /// for a descriptor (report, section 4.1.1). It is free again once the socket is closed.
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

    /// The descriptor, to use without the channel; gives a socket that has none back unchanged,
    /// such as a lightweight socket of io_uring. The descriptor does not block.
    pub fn into_descriptor(self) -> Result<OwnedFd, Socket> {
        match self.endpoint {
            Endpoint::Descriptor(descriptor) | Endpoint::Lightweight(descriptor) => Ok(descriptor),
            endpoint => Err(Socket { endpoint, ..self }),
        }
    }
}

/// A timer on the monotonic clock, by way of timerfd_create(2).
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Expires once, after `delay`.
    pub fn after(delay: Duration) -> io::Result<Timer> {
        Timer::new(delay, Duration::ZERO)
    }

    /// Expires every `period`, first after one period.
    pub fn every(period: Duration) -> io::Result<Timer> {
        Timer::new(period, period)
    }

    /// Does not expire until [`Channel::set_timer`](crate::Channel::set_timer) says when.
    pub fn stopped() -> io::Result<Timer> {
        let flags = libc::TFD_CLOEXEC;
        // SAFETY: the call takes no pointers; the new descriptor is owned here alone.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the kernel has just given this descriptor to us.
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
    // A zero time stops the timer; what is due at once is due in a nanosecond.
    let first = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
    let spec = libc::itimerspec { it_interval: time(every), it_value: time(first) };
    // SAFETY: `spec` outlives the call and the old setting is not asked for.
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
    /// [`Event::Wake`](crate::Event::Wake). Wakes that come faster than the channel looks are
    /// counted together. One system call; never blocks.
    pub fn wake(&self) {
        let one: u64 = 1;
        // A full counter means that more wakes than anyone could count are pending already.
        // SAFETY: the eight bytes of `one` are readable and the descriptor is open.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// A pair of ends, by way of eventfd(2): register the one with a channel, wake it by the other.
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
    // SAFETY: the call takes no pointers; the new descriptor is owned here alone.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: the kernel has just given this descriptor to us.
    let source = unsafe { OwnedFd::from_raw_fd(fd) };
    let waker = source.try_clone()?;
    Ok((Waker(Arc::new(waker)), WakeSource(source)))
}
