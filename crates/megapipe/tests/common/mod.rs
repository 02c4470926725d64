//! Implements the fixture of the conformance suite: one test body per test, run once for each
//! driver.

// Every test program uses its own part of this module.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod descriptors;
pub mod events;
pub mod model;
pub mod process;
pub mod seccomp;

pub use events::*;

use megapipe::{
    Accept, Address, Channel, Completion, Config, Direction, DriverChoice, Error, Event, Handle,
    Message, Repeat, Source,
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

/// Time-out of the tests, far longer than any step needs.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Makes tests of bodies for the kernel's drivers, `uring::name` and `epoll::name`. The bodies are
/// functions of the calling module, or with `file: name, name;` of that module of the program.
#[macro_export]
macro_rules! conformance {
    ($($file:ident: $($name:ident),+;)+) => {
        mod uring {
            $($(#[test]
            fn $name() {
                $crate::$file::$name(megapipe::DriverChoice::Uring);
            })+)+
        }
        mod epoll {
            $($(#[test]
            fn $name() {
                $crate::$file::$name(megapipe::DriverChoice::Epoll);
            })+)+
        }
    };
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

impl From<Channel<u64>> for Rig {
    fn from(channel: Channel<u64>) -> Rig {
        Rig { channel }
    }
}

impl Rig {
    pub fn new(driver: DriverChoice) -> Rig {
        Rig::with(driver, Config::default())
    }

    pub fn with(driver: DriverChoice, config: Config) -> Rig {
        // Where `hide-uring` hides a feature, the channel must replace it, or choose epoll itself.
        let is_hidden = std::env::var_os("HIDE_URING").is_some();
        let chosen = match driver {
            DriverChoice::Epoll if is_hidden => DriverChoice::Auto,
            other => other,
        };
        let channel = Channel::with_config(Config { driver: chosen, ..config });
        let channel = channel.unwrap_or_else(|error| panic!("no {driver:?} channel: {error}"));
        let report = channel.driver();
        match driver {
            DriverChoice::Uring => assert!(!is_hidden || !report.replaced.is_empty()),
            DriverChoice::Epoll => {
                assert_eq!(report.kind, megapipe::DriverKind::Epoll);
                assert!(!is_hidden || report.reason.contains("io_uring"), "{report:?}");
            }
            _ => {}
        }
        Rig { channel }
    }

    /// Returns whether lightweight sockets are entries of a table, with a limit of its own. They
    /// are descriptors with the epoll driver, and with io_uring if the kernel lacks a feature for
    /// its table.
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

    /// Creates a second channel. Each channel over an installed driver takes a stack of its own, of
    /// which a test has only one: then the second channel uses the kernel's driver.
    pub fn other(driver: DriverChoice) -> Rig {
        Rig::new(if is_installed(driver) { DriverChoice::Uring } else { driver })
    }

    /// Connects by the addresses of the suite: returns the test's side, which has a time limit, and
    /// the channel's side.
    pub fn tcp_pair(&mut self) -> (TcpStream, Handle) {
        if TEST_ADDRESSES.get().is_none() {
            let (ours, theirs) = tcp_pair();
            return (ours, self.join(theirs));
        }
        let (ours, handle) = self.lightweight_pair();
        self.set_nodelay(handle, true).expect("nodelay");
        (ours, handle)
    }

    /// Connects like `tcp_pair`; the channel has accepted the connection as a lightweight socket.
    pub fn lightweight_pair(&mut self) -> (TcpStream, Handle) {
        let (listener, address) = listener();
        let listening = self.join(listener);
        self.accept(listening, Accept::lightweight().count(1)).expect("accept");
        let ours = client(address);
        let socket = accepted(self.last(listening)).socket;
        self.unregister(listening).expect("unregister");
        (ours, self.join(socket))
    }

    /// Returns the next completion, which must arrive. A signal also ends a wait, see
    /// [`testkit::retried`].
    #[track_caller]
    pub fn next(&mut self) -> Completion {
        let until = Instant::now() + TIME_LIMIT;
        loop {
            let is_late = Instant::now() >= until;
            match self.dispatch(until.saturating_duration_since(Instant::now())) {
                Ok(Some(done)) => return done,
                Ok(None) if !is_late => {}
                Ok(None) => panic!(
                    "no completion within {TIME_LIMIT:?}; {} requests outstanding, {:?}",
                    self.channel.outstanding(),
                    self.channel.counters()
                ),
                Err(error) => panic!("dispatch failed: {error}"),
            }
        }
    }

    /// Returns the next completion, which must be the last of a request on `handle`.
    #[track_caller]
    pub fn last(&mut self, handle: Handle) -> Event {
        let done = self.next();
        assert_eq!(done.handle, handle, "a completion for another handle: {:?}", done.event);
        assert!(!done.more, "more completions are announced after {:?}", done.event);
        done.event
    }

    /// Returns the next completion, which must be one of several of a repeating request on
    /// `handle`.
    #[track_caller]
    pub fn another(&mut self, handle: Handle) -> Event {
        let done = self.next();
        assert_eq!(done.handle, handle, "a completion for another handle: {:?}", done.event);
        assert!(done.more, "no more completions are announced after {:?}", done.event);
        done.event
    }

    /// Dispatches until no request is outstanding; returns the completions.
    #[track_caller]
    pub fn drain(&mut self) -> Vec<Completion> {
        self.drain_to(0)
    }

    /// Dispatches until only that many requests are outstanding; returns the completions.
    #[track_caller]
    pub fn drain_to(&mut self, outstanding: usize) -> Vec<Completion> {
        let until = Instant::now() + TIME_LIMIT;
        let mut came = Vec::new();
        while self.channel.outstanding() > outstanding {
            came.extend(self.dispatch(Duration::from_millis(1)).expect("dispatch"));
            let left = self.channel.outstanding();
            assert!(Instant::now() < until, "{left} requests do not end; so far came {came:?}");
        }
        came.extend(self.dispatch(Duration::ZERO).expect("dispatch"));
        came
    }
}

/// The addresses of the suite's TCP connections: those of both families, IPv4 first.
#[derive(Clone, Copy, Debug)]
pub struct TestAddresses {
    /// Addresses to which listeners of the channel are bound.
    pub bound: [IpAddr; 2],
    /// Addresses at which clients reach them.
    pub found: [IpAddr; 2],
    /// Addresses at which a peer listens, to which the channel connects.
    pub peer: [IpAddr; 2],
    /// Waits until the channel's side has received all that this thread's clients have sent.
    pub await_delivery: fn(),
}

/// The loopback addresses, used unless a test program sets others.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Set by a program that runs the suite over a driver of another crate.
pub static TEST_ADDRESSES: OnceLock<TestAddresses> = OnceLock::new();

pub fn test_addresses() -> TestAddresses {
    let loopback =
        TestAddresses { bound: LOOPBACK, found: LOOPBACK, peer: LOOPBACK, await_delivery: || {} };
    TEST_ADDRESSES.get().copied().unwrap_or(loopback)
}

/// Waits until the channel's side has received all that this thread's clients have sent.
pub fn await_delivery() {
    (test_addresses().await_delivery)();
}

/// Returns whether the driver belongs to another crate, whose connections are not descriptors.
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

/// Returns a listening socket for the channel with a long queue, and the address for clients.
pub fn listener() -> (TcpListener, SocketAddr) {
    listener_of(0)
}

/// Returns the same, and a socket that reserves the port after the listener is closed.
pub fn lasting_listener() -> (TcpListener, SocketAddr, OwnedFd) {
    let (kept, address) = deaf_address(test_addresses().bound[0]);
    let (listener, port) = listen_at(address);
    (listener, SocketAddr::new(test_addresses().found[0], port), kept)
}

/// Returns a socket that is bound but does not listen, and its address, at which nothing answers.
/// It reserves the port.
pub fn deaf_address(ip: IpAddr) -> (OwnedFd, SocketAddr) {
    let IpAddr::V4(ip) = ip else { panic!("{ip} is not IPv4") };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: the arguments outlive the calls, the lengths are their sizes, and the descriptor has
    // no other owner. Like listeners of Rust's library it shares its address unless a socket
    // listens.
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

/// Returns a listener and its address of a family: 0 is IPv4, 1 is IPv6.
pub fn listener_of(family: usize) -> (TcpListener, SocketAddr) {
    let (listener, port) = listen_at(any_port(test_addresses().bound[family]));
    (listener, SocketAddr::new(test_addresses().found[family], port))
}

/// Returns a listening socket to which the channel connects.
pub fn peer_listener() -> (TcpListener, SocketAddr) {
    peer_listener_of(0)
}

/// Returns a listening socket of a family to which the channel connects.
pub fn peer_listener_of(family: usize) -> (TcpListener, SocketAddr) {
    let ip = test_addresses().peer[family];
    let (listener, port) = listen_at(any_port(ip));
    (listener, SocketAddr::new(ip, port))
}

/// Returns a client with a time limit.
pub fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    set_time_limit(&stream);
    stream.set_nodelay(true).expect("nodelay");
    await_delivery();
    stream
}

/// Returns that many clients, which enter the listener's accept queue in their order.
#[track_caller]
pub fn clients_in_order(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    testkit::on_one_cpu(|| (0..count).map(|_| client(address)).collect())
}

/// Sets a time limit for the calls of a blocking socket.
pub fn set_time_limit(stream: &TcpStream) {
    stream.set_read_timeout(Some(TIME_LIMIT)).expect("time-out");
    stream.set_write_timeout(Some(TIME_LIMIT)).expect("time-out");
}

/// Reads once. The end of a ring in the same thread interrupts a read, and std does not repeat it.
fn read_once(stream: &mut impl Read) -> io::Result<usize> {
    loop {
        match stream.read(&mut [0; 1]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Checks that the peer has ended the stream.
#[track_caller]
pub fn expect_end(stream: &mut impl Read) {
    assert_eq!(read_once(stream).expect("the end of the stream"), 0, "more data");
}

/// Checks that the peer has reset the connection.
#[track_caller]
pub fn expect_reset(stream: &mut impl Read) {
    assert_eq!(errno(&read_once(stream).expect_err("a reset")), libc::ECONNRESET);
}

/// Checks that the peer has ended or reset the connection.
#[track_caller]
pub fn expect_gone(stream: &mut TcpStream) {
    match read_once(stream) {
        Ok(count) => assert_eq!(count, 0, "more data"),
        Err(error) => assert_eq!(errno(&error), libc::ECONNRESET),
    }
}

/// Checks that a descriptor is non-blocking and close-on-exec, as accepts guarantee.
#[track_caller]
pub fn expect_free_descriptor(descriptor: &impl AsRawFd) {
    let fd = descriptor.as_raw_fd();
    // SAFETY: the calls take no pointers.
    let (own, shared) = unsafe { (libc::fcntl(fd, libc::F_GETFD), libc::fcntl(fd, libc::F_GETFL)) };
    assert_eq!(own, libc::FD_CLOEXEC);
    assert_eq!(shared & libc::O_NONBLOCK, libc::O_NONBLOCK, "it blocks");
}

/// Connects over the loopback: returns the test's side, which has a time limit, and the channel's
/// side.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let (listener, port) = listen_at(any_port(LOOPBACK[0]));
    let ours = client(SocketAddr::new(LOOPBACK[0], port));
    let (theirs, _) = listener.accept().expect("accept");
    theirs.set_nodelay(true).expect("nodelay");
    (ours, theirs)
}

/// Returns a connected pair of UNIX sockets: the test's side, with a time limit, and the channel's.
pub fn unix_pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("socketpair");
    ours.set_read_timeout(Some(TIME_LIMIT)).expect("time-out");
    ours.set_write_timeout(Some(TIME_LIMIT)).expect("time-out");
    (ours, theirs)
}

/// Returns a bound UDP socket on the loopback, with a time limit.
pub fn udp(ip: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((ip, 0)).unwrap_or_else(|error| panic!("bind {ip}: {error}"));
    socket.set_read_timeout(Some(TIME_LIMIT)).expect("time-out");
    let address = socket.local_addr().expect("local address");
    (socket, address)
}

/// Returns an empty file in memory, for tests that must not wait for a disk.
pub fn memory_file() -> OwnedFd {
    // SAFETY: the name is a string, and the descriptor has no other owner.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// Drops a channel. Returns whether that took so long that the channel may have stopped waiting for
/// the kernel to release its memory, and leaked it.
pub fn drop_gives_up(rig: Rig) -> bool {
    let start = Instant::now();
    drop(rig);
    start.elapsed() >= Duration::from_secs(2)
}

/// Returns a source that never becomes ready, and the peer that keeps it open.
pub fn silent() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("socketpair")
}

/// An endless stream of bytes in which every position differs from its neighbours.
#[derive(Clone)]
pub struct Pattern {
    block: Arc<Vec<u8>>,
}

/// A prime, so it is not a multiple of any buffer's size.
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

    /// Returns the bytes `offset..offset + bytes` of the stream.
    pub fn bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut made = Vec::with_capacity(bytes);
        while made.len() < bytes {
            let at = (offset + made.len()) % BLOCK;
            let step = (BLOCK - at).min(bytes - made.len());
            made.extend_from_slice(&self.block[at..at + step]);
        }
        made
    }

    /// Panics unless `found` is the content of the stream at `offset`.
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

/// Makes every call that takes a handle; each must fail, and `check` gets the error.
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
    let enabled = [rig.enable_packet_info(handle), rig.enable_ecn(handle), rig.enable_gro(handle)];
    enabled.into_iter().for_each(|told| check(told.unwrap_err()));
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
    check(rig.unregister(handle).unwrap_err());
    check(rig.close(handle).unwrap_err());
    assert_eq!(rig.cookie(handle), None);
}

/// Converts the address to the crate's type.
pub fn inet(address: SocketAddr) -> Address {
    Address::Inet(address)
}
