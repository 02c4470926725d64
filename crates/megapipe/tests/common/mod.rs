//! What the conformance suite shares: one body per test, one run of it per driver.

// Every test program uses its own part of this module.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod descriptors;
pub mod model;
pub mod process;
pub mod seccomp;

use megapipe::{
    Accept, Address, Buffer, Channel, Completion, Config, CpuSet, Datagram, Direction,
    DriverChoice, Error, Event, Handle, Lease, Message, Repeat, Source,
};
use std::io::{self, Read};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket,
};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up; far more than it should ever need.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Set for a run of the suite's `epoll::` tests in which the channels choose their driver and
/// io_uring cannot be used: because a seccomp filter bars it, which the suite installs, or if the
/// value is `hidden`, because the kernel lacks something.
const BARRED: &str = "MEGAPIPE_TEST_BARRED";

/// Makes a test of each function for every driver: `uring::name` and `epoll::name`.
#[macro_export]
macro_rules! conformance {
    ($($name:ident),+ $(,)?) => {
        mod uring {
            $(#[test]
            fn $name() {
                super::$name(megapipe::DriverChoice::Uring);
            })+
        }
        mod epoll {
            $(#[test]
            fn $name() {
                super::$name(megapipe::DriverChoice::Epoll);
            })+
        }
    };
}

/// A channel under test.
pub struct Rig {
    pub channel: Channel<u64>,
}

impl Deref for Rig {
    type Target = Channel<u64>;

    fn deref(&self) -> &Channel<u64> {
        &self.channel
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Channel<u64> {
        &mut self.channel
    }
}

impl Rig {
    pub fn new(driver: DriverChoice) -> Rig {
        Rig::with(driver, Config::default())
    }

    pub fn with(driver: DriverChoice, config: Config) -> Rig {
        match std::env::var_os(BARRED) {
            Some(why) if driver == DriverChoice::Epoll => {
                return Rig::barred(config, why == "hidden");
            }
            _ => {}
        }
        let channel = Channel::with_config(Config { driver, ..config });
        let channel = channel.unwrap_or_else(|error| panic!("no {driver:?} channel: {error}"));
        // Nothing would tell that the library that hides features was not loaded.
        let report = channel.driver();
        let is_hidden = std::env::var_os("HIDE_URING").is_some();
        assert!(driver != DriverChoice::Uring || !is_hidden || !report.replaced.is_empty());
        Rig { channel }
    }

    /// A channel that finds io_uring barred and falls back to epoll by itself.
    fn barred(config: Config, hidden: bool) -> Rig {
        thread_local!(static FILTER: () = seccomp::block_io_uring(libc::EPERM));
        if !hidden {
            FILTER.with(|()| ());
        }
        let channel = Channel::with_config(Config { driver: DriverChoice::Auto, ..config });
        let channel = channel.expect("a channel without io_uring");
        assert_eq!(channel.driver().kind, megapipe::DriverKind::Epoll);
        assert!(channel.driver().reason.contains("io_uring"), "{:?}", channel.driver());
        Rig { channel }
    }

    /// Whether lightweight sockets are entries of a table, with a limit of its own. They are
    /// descriptors with the epoll driver, and where the kernel's table lacks something.
    pub fn has_file_table(&self) -> bool {
        let report = self.channel.driver();
        let descriptors = "lightweight sockets are descriptors";
        report.kind == megapipe::DriverKind::Uring
            && !report.replaced.iter().any(|replaced| replaced.by == descriptors)
    }

    /// Registers with a cookie that does not matter.
    pub fn join(&mut self, source: impl Into<Source>) -> Handle {
        self.channel.register(source, 0).expect("register")
    }

    /// A channel beside one under test. Each channel over an installed driver takes a stack of its
    /// own, of which a test has one: there it is the kernel's.
    pub fn other(driver: DriverChoice) -> Rig {
        Rig::new(if is_installed(driver) { DriverChoice::Uring } else { driver })
    }

    /// A connection on the road of the suite: the test's side, which gives up after a while, and
    /// the channel's.
    pub fn tcp_pair(&mut self) -> (TcpStream, Handle) {
        if ROAD.get().is_none() {
            let (ours, theirs) = tcp_pair();
            return (ours, self.join(theirs));
        }
        let (ours, handle) = self.lightweight_pair();
        self.set_nodelay(handle, true).expect("nodelay");
        (ours, handle)
    }

    /// The same, which the channel has accepted as a lightweight socket.
    pub fn lightweight_pair(&mut self) -> (TcpStream, Handle) {
        let (listener, address) = listener();
        let listening = self.join(listener);
        self.accept(listening, Accept::lightweight().count(1)).expect("accept");
        let ours = client(address);
        let socket = accepted(self.last(listening)).socket;
        self.unregister(listening).expect("unregister");
        (ours, self.join(socket))
    }

    /// The next completion, which must come. A signal ends a wait too, see [`testkit::retried`].
    #[track_caller]
    pub fn next(&mut self) -> Completion {
        let until = Instant::now() + PATIENCE;
        loop {
            let is_late = Instant::now() >= until;
            match self.channel.dispatch(until.saturating_duration_since(Instant::now())) {
                Ok(Some(done)) => return done,
                Ok(None) if !is_late => {}
                Ok(None) => panic!(
                    "no completion within {PATIENCE:?}; {} requests outstanding, {:?}",
                    self.channel.outstanding(),
                    self.channel.counters()
                ),
                Err(error) => panic!("dispatch failed: {error}"),
            }
        }
    }

    /// The next completion, which must be the last of a request on `handle`.
    #[track_caller]
    pub fn last(&mut self, handle: Handle) -> Event {
        let done = self.next();
        assert_eq!(done.handle, handle, "a completion for another handle: {:?}", done.event);
        assert!(!done.more, "more completions are announced after {:?}", done.event);
        done.event
    }

    /// The next completion, which must be one of several of a repeating request on `handle`.
    #[track_caller]
    pub fn another(&mut self, handle: Handle) -> Event {
        let done = self.next();
        assert_eq!(done.handle, handle, "a completion for another handle: {:?}", done.event);
        assert!(done.more, "no more completions are announced after {:?}", done.event);
        done.event
    }

    /// Dispatches until no request is outstanding; gives the completions that came.
    #[track_caller]
    pub fn settle(&mut self) -> Vec<Completion> {
        self.settle_to(0)
    }

    /// The same, but until only so many requests are outstanding.
    #[track_caller]
    pub fn settle_to(&mut self, outstanding: usize) -> Vec<Completion> {
        let until = Instant::now() + PATIENCE;
        let mut came = Vec::new();
        while self.channel.outstanding() > outstanding {
            came.extend(self.channel.dispatch(Duration::from_millis(1)).expect("dispatch"));
            let left = self.channel.outstanding();
            assert!(Instant::now() < until, "{left} requests do not end; so far came {came:?}");
        }
        came.extend(self.channel.dispatch(Duration::ZERO).expect("dispatch"));
        came
    }
}

/// The number or errno that an event brings.
pub fn outcome(event: &Event) -> Result<u64, i32> {
    let unit = |result: &io::Result<()>| result.as_ref().map(|()| 0).map_err(errno);
    let size = |result: &io::Result<usize>| result.as_ref().map(|n| *n as u64).map_err(errno);
    let word = |result: &io::Result<u64>| result.as_ref().copied().map_err(errno);
    match event {
        Event::Accept(result) => result.as_ref().map(|_| 0).map_err(errno),
        Event::Connect(result)
        | Event::Disconnect(result)
        | Event::Sync(result)
        | Event::Close(result) => unit(result),
        Event::Read(result, _)
        | Event::Peek(result, _)
        | Event::ReadAt(result, ..)
        | Event::WriteAt(result, ..)
        | Event::ReadVectored(result, _)
        | Event::Write(result, _)
        | Event::WriteVectored(result, _)
        | Event::SendFile(result)
        | Event::SendMessage(result, _)
        | Event::ReceiveMessage(result, _)
        | Event::SendTo(result, _) => size(result),
        Event::Receive(result) => result.as_ref().map(|lease| lease.len() as u64).map_err(errno),
        Event::ReceiveFrom(result) => result.as_ref().map(|data| data.len() as u64).map_err(errno),
        Event::Signal(result) => result.as_ref().map(|info| info.signal as u64).map_err(errno),
        Event::Timer(result) | Event::Wake(result) => word(result),
        other => panic!("an event that the tests do not know: {other:?}"),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| panic!("an error without errno: {error}"))
}

/// The bytes that a successful read brought.
#[track_caller]
pub fn read_of(event: Event) -> Vec<u8> {
    match event {
        Event::Read(Ok(_), bytes) => bytes,
        other => panic!("expected a successful read: {other:?}"),
    }
}

#[track_caller]
pub fn received(event: Event) -> Lease {
    match event {
        Event::Receive(Ok(lease)) => lease,
        other => panic!("expected a successful receive: {other:?}"),
    }
}

#[track_caller]
pub fn datagram(event: Event) -> Datagram {
    match event {
        Event::ReceiveFrom(Ok(datagram)) => datagram,
        other => panic!("expected a datagram: {other:?}"),
    }
}

/// The buffer that a successful write gives back; the whole of it must have been written.
#[track_caller]
pub fn written(event: Event) -> Buffer {
    match event {
        Event::Write(Ok(bytes), buffer) if bytes == buffer.len() => buffer,
        other => panic!("expected a complete write: {other:?}"),
    }
}

#[track_caller]
pub fn accepted(event: Event) -> megapipe::Accepted {
    match event {
        Event::Accept(Ok(accepted)) => accepted,
        other => panic!("expected a connection: {other:?}"),
    }
}

/// Where the TCP connections of the suite run: the addresses of both families, IPv4 first.
#[derive(Clone, Copy, Debug)]
pub struct Road {
    /// What a listener of the channel's is bound to.
    pub bound: [IpAddr; 2],
    /// Where clients find it.
    pub found: [IpAddr; 2],
    /// Where a peer listens, to which the channel connects.
    pub peer: [IpAddr; 2],
    /// Waits until the channel's side knows of all that this thread's clients have sent.
    pub settle: fn(),
}

/// The loopback, as long as a test program sets nothing else.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Set by a program that runs the suite over a driver of another crate.
pub static ROAD: OnceLock<Road> = OnceLock::new();

pub fn road() -> Road {
    let loopback = Road { bound: LOOPBACK, found: LOOPBACK, peer: LOOPBACK, settle: || {} };
    ROAD.get().copied().unwrap_or(loopback)
}

/// Waits until the channel's side knows of all that this thread's clients have sent.
pub fn settle() {
    (road().settle)();
}

/// Whether the driver is one of another crate, whose connections are no descriptors.
pub fn is_installed(driver: DriverChoice) -> bool {
    matches!(driver, DriverChoice::Installed(_))
}

fn any_port(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 0)
}

fn listen_at(address: SocketAddr) -> (TcpListener, u16) {
    let listener = TcpListener::bind(address).expect("bind");
    // SAFETY: the call takes no pointers and the descriptor is open.
    let result = unsafe { libc::listen(listener.as_raw_fd(), 4096) };
    assert_eq!(result, 0, "listen: {}", io::Error::last_os_error());
    let port = listener.local_addr().expect("local address").port();
    (listener, port)
}

/// A listening socket for the channel with a long queue, and where clients find it.
pub fn listener() -> (TcpListener, SocketAddr) {
    listener_of(0)
}

/// The same, and a socket that keeps the port from others when the listener is closed.
pub fn lasting_listener() -> (TcpListener, SocketAddr, OwnedFd) {
    let (kept, address) = deaf_address(road().bound[0]);
    let (listener, port) = listen_at(address);
    (listener, SocketAddr::new(road().found[0], port), kept)
}

/// A socket that is bound but does not listen, and its address, at which nothing answers: others
/// that ask for any port do not get this one.
pub fn deaf_address(ip: IpAddr) -> (OwnedFd, SocketAddr) {
    let IpAddr::V4(ip) = ip else { panic!("{ip} is not IPv4") };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: the arguments outlive the calls, which are told their sizes, and nothing else owns
    // the descriptor. As listeners of Rust's library it shares its address unless a socket listens.
    let bound = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "socket: {}", io::Error::last_os_error());
        let (level, yes, bytes) = (libc::SOL_SOCKET, 1_i32, size_of::<i32>() as u32);
        let set = libc::setsockopt(fd, level, libc::SO_REUSEADDR, (&raw const yes).cast(), bytes);
        assert_eq!(set, 0, "SO_REUSEADDR: {}", io::Error::last_os_error());
        let result =
            libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
        assert_eq!(result, 0, "bind: {}", io::Error::last_os_error());
        TcpListener::from_raw_fd(fd)
    };
    let address = bound.local_addr().expect("local address");
    (bound.into(), address)
}

/// The same of a family: 0 is IPv4, 1 is IPv6.
pub fn listener_of(family: usize) -> (TcpListener, SocketAddr) {
    let (listener, port) = listen_at(any_port(road().bound[family]));
    (listener, SocketAddr::new(road().found[family], port))
}

/// A listening socket to which the channel connects.
pub fn peer_listener() -> (TcpListener, SocketAddr) {
    peer_listener_of(0)
}

/// The same of a family.
pub fn peer_listener_of(family: usize) -> (TcpListener, SocketAddr) {
    let ip = road().peer[family];
    let (listener, port) = listen_at(any_port(ip));
    (listener, SocketAddr::new(ip, port))
}

/// A client that gives up after a while.
pub fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    patient(&stream);
    stream.set_nodelay(true).expect("nodelay");
    settle();
    stream
}

/// Makes a blocking socket give up after a while.
pub fn patient(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("time-out");
    stream.set_write_timeout(Some(PATIENCE)).expect("time-out");
}

/// One read. The end of a ring in the same thread interrupts it, which std does not make good.
fn read_once(stream: &mut impl Read) -> io::Result<usize> {
    loop {
        match stream.read(&mut [0; 1]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The peer has ended the stream.
#[track_caller]
pub fn expect_end(stream: &mut impl Read) {
    assert_eq!(read_once(stream).expect("the end of the stream"), 0, "more data");
}

/// The peer has reset the connection.
#[track_caller]
pub fn expect_reset(stream: &mut impl Read) {
    assert_eq!(errno(&read_once(stream).expect_err("a reset")), libc::ECONNRESET);
}

/// The peer is gone, by an end or by a reset.
#[track_caller]
pub fn expect_gone(stream: &mut TcpStream) {
    match read_once(stream) {
        Ok(count) => assert_eq!(count, 0, "more data"),
        Err(error) => assert_eq!(errno(&error), libc::ECONNRESET),
    }
}

/// A descriptor is non-blocking and closed by execve(2), as accepts promise it.
#[track_caller]
pub fn expect_free_descriptor(descriptor: &impl AsRawFd) {
    let fd = descriptor.as_raw_fd();
    // SAFETY: the calls take no pointers.
    let (own, shared) = unsafe { (libc::fcntl(fd, libc::F_GETFD), libc::fcntl(fd, libc::F_GETFL)) };
    assert_eq!(own, libc::FD_CLOEXEC);
    assert_eq!(shared & libc::O_NONBLOCK, libc::O_NONBLOCK, "it blocks");
}

/// A connected pair of the loopback's: the test's side, which gives up after a while, and the
/// channel's side.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let (listener, port) = listen_at(any_port(LOOPBACK[0]));
    let ours = client(SocketAddr::new(LOOPBACK[0], port));
    let (theirs, _) = listener.accept().expect("accept");
    theirs.set_nodelay(true).expect("nodelay");
    (ours, theirs)
}

/// A connected pair of UNIX sockets: the test's side, which gives up, and the channel's side.
pub fn unix_pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("socketpair");
    ours.set_read_timeout(Some(PATIENCE)).expect("time-out");
    ours.set_write_timeout(Some(PATIENCE)).expect("time-out");
    (ours, theirs)
}

/// A bound UDP socket on the loopback that gives up after a while.
pub fn udp(ip: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((ip, 0)).unwrap_or_else(|error| panic!("bind {ip}: {error}"));
    socket.set_read_timeout(Some(PATIENCE)).expect("time-out");
    let address = socket.local_addr().expect("local address");
    (socket, address)
}

/// An empty file in memory, for tests that cannot wait until a disk has the time.
pub fn memory_file() -> OwnedFd {
    // SAFETY: the name is a string, and nothing else owns the descriptor.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// Drops a channel. Whether it took so long that it may have given up the kernel's letting go of
/// its memory, and leaked that.
pub fn drop_gives_up(rig: Rig) -> bool {
    let start = Instant::now();
    drop(rig);
    start.elapsed() >= Duration::from_secs(2)
}

/// A source that never becomes ready, and what keeps it so.
pub fn silent() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("socketpair")
}

/// An endless stream of bytes in which every position can be told from its neighbours.
#[derive(Clone)]
pub struct Pattern {
    block: Arc<Vec<u8>>,
}

/// A prime, so that it is no multiple of any buffer's size.
const BLOCK: usize = 1_048_583;

impl Pattern {
    /// Streams of different seeds differ nearly everywhere.
    pub fn new(seed: u64) -> Pattern {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut block = Vec::with_capacity(BLOCK + 8);
        while block.len() < BLOCK {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            block.extend_from_slice(&state.to_le_bytes());
        }
        block.truncate(BLOCK);
        Pattern { block: Arc::new(block) }
    }

    /// The bytes `offset..offset + bytes` of the stream.
    pub fn bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut made = Vec::with_capacity(bytes);
        while made.len() < bytes {
            let at = (offset + made.len()) % BLOCK;
            let step = (BLOCK - at).min(bytes - made.len());
            made.extend_from_slice(&self.block[at..at + step]);
        }
        made
    }

    /// Panics unless `found` is what the stream has at `offset`.
    #[track_caller]
    pub fn check(&self, offset: usize, found: &[u8]) {
        let mut done = 0;
        while done < found.len() {
            let at = (offset + done) % BLOCK;
            let step = (BLOCK - at).min(found.len() - done);
            let (here, there) = (&found[done..done + step], &self.block[at..at + step]);
            if let Some(wrong) = here.iter().zip(there).position(|(a, b)| a != b) {
                panic!("byte {} of the stream is wrong", offset + done + wrong);
            }
            done += step;
        }
    }
}

/// Calls everything that takes a handle; each call must fail, and `check` looks at the error.
pub fn call_everything(rig: &mut Rig, handle: Handle, check: impl Fn(Error)) {
    let address: SocketAddr = "127.0.0.1:9".parse().unwrap();
    check(rig.accept(handle, Accept::lightweight()).unwrap_err());
    check(rig.connect(handle, address).unwrap_err());
    check(rig.read(handle, Vec::with_capacity(1)).unwrap_err().error);
    check(rig.read_at(handle, Vec::with_capacity(1), 0).unwrap_err().error);
    check(rig.read_vectored(handle, vec![Vec::with_capacity(1)]).unwrap_err().error);
    check(rig.receive(handle, Repeat::Once).unwrap_err());
    check(rig.receive_from(handle, Repeat::Once).unwrap_err());
    check(rig.watch(handle, Repeat::Once).unwrap_err());
    check(rig.write(handle, b"x").unwrap_err().error);
    check(rig.write_at(handle, b"x", 0).unwrap_err().error);
    check(rig.write_vectored(handle, vec![b"x".into()]).unwrap_err().error);
    check(rig.send_to(handle, b"x", address).unwrap_err().error);
    check(rig.peek(handle, Vec::with_capacity(1)).unwrap_err().error);
    check(rig.write_more(handle, b"x").unwrap_err().error);
    check(rig.send_file(handle, handle, 0, 1).unwrap_err());
    check(rig.poll(handle, libc::POLLIN as u32, Repeat::Once).unwrap_err());
    check(rig.request_peer_address(handle).unwrap_err());
    check(rig.queued_bytes(handle).unwrap_err());
    check(rig.send_message(handle, Message::new(b"x")).unwrap_err().error);
    check(rig.receive_message(handle, Message::with_capacity(1)).unwrap_err().error);
    check(rig.enable_packet_info(handle).unwrap_err());
    check(rig.disconnect(handle, Shutdown::Both).unwrap_err());
    check(rig.sync(handle).unwrap_err());
    check(rig.sync_data(handle).unwrap_err());
    check(rig.cancel(handle).unwrap_err());
    check(rig.cancel_direction(handle, Direction::Inbound).unwrap_err());
    check(rig.set_time_limit(handle, Direction::Inbound, None).unwrap_err());
    check(rig.descriptor(handle).unwrap_err());
    check(rig.set_nodelay(handle, true).unwrap_err());
    check(rig.set_linger(handle, None).unwrap_err());
    check(rig.peer_address(handle).unwrap_err());
    check(rig.socket_option(handle, 0, 0, &mut [0; 4]).unwrap_err());
    check(rig.kind(handle).unwrap_err());
    check(rig.set_cpus(handle, CpuSet::one(0)).unwrap_err());
    check(rig.unregister(handle).unwrap_err());
    check(rig.close(handle).unwrap_err());
    assert_eq!(rig.cookie(handle), None);
}

/// The address as the crate writes it.
pub fn inet(address: SocketAddr) -> Address {
    Address::Inet(address)
}
