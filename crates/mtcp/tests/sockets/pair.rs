//! Provides two contexts in one thread, joined by memory.

use mtcp::config::Mode;
use mtcp::{Config, Context, Descriptor, Family, Mtcp};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The time after which a test counts as hanging, long enough for a busy machine with
/// ThreadSanitizer.
pub(crate) const GUARD: Duration = Duration::from_secs(240);

pub(crate) struct Pair {
    pub(crate) server: Context,
    pub(crate) client: Context,
}

pub(crate) fn config(address: &str, mode: Mode) -> Config {
    let mut config = Config {
        addresses: vec![(address.parse().expect("an address"), 24)],
        grace: Duration::from_millis(50),
        ..Config::default()
    };
    config.engine.mode = mode;
    config
}

/// Sets an option that is an `int`.
pub(crate) fn set(
    context: &mut Context,
    descriptor: Descriptor,
    (level, name): (i32, i32),
    number: i32,
) -> io::Result<()> {
    context.setsockopt(descriptor, level, name, &number.to_ne_bytes())
}

/// Reads an option that is an `int`.
pub(crate) fn get(context: &mut Context, descriptor: Descriptor, (level, name): (i32, i32)) -> i32 {
    let mut value = [0; 4];
    context.getsockopt(descriptor, level, name, &mut value).expect("an open socket");
    i32::from_ne_bytes(value)
}

/// Sets SO_LINGER.
pub(crate) fn set_linger(context: &mut Context, descriptor: Descriptor, seconds: i32) {
    let value = [1_i32.to_ne_bytes(), seconds.to_ne_bytes()].concat();
    let set = context.setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_LINGER, &value);
    set.expect("an open socket");
}

pub(crate) const NO_DELAY: (i32, i32) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
pub(crate) const ERROR: (i32, i32) = (libc::SOL_SOCKET, libc::SO_ERROR);
pub(crate) const LOW_WATER: (i32, i32) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);

pub(crate) fn address(port: u16) -> SocketAddr {
    SocketAddr::new("10.0.0.1".parse().expect("an address"), port)
}

impl Pair {
    pub(crate) fn new(mode: Mode) -> Pair {
        Pair::with(config("10.0.0.1", mode), config("10.0.0.2", mode))
    }

    pub(crate) fn with(server: Config, client: Config) -> Pair {
        let (server, client) = Mtcp::pair(server, client, Default::default()).expect("two stacks");
        let context = |mtcp: Mtcp| mtcp.context(0).expect("a context");
        Pair { server: context(server), client: context(client) }
    }

    /// Runs both ends until `look` returns a value.
    pub(crate) fn until<T>(&mut self, mut look: impl FnMut(&mut Pair) -> Option<T>) -> T {
        let end = Instant::now() + GUARD;
        loop {
            self.server.turn().expect("the server's device");
            self.client.turn().expect("the client's device");
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < end, "nothing comes");
            std::thread::yield_now();
        }
    }

    /// Repeats a call until it no longer fails with EAGAIN.
    pub(crate) fn retry<T>(
        &mut self,
        mut call: impl FnMut(&mut Pair) -> io::Result<T>,
    ) -> io::Result<T> {
        self.until(|pair| match call(pair) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => None,
            other => Some(other),
        })
    }

    pub(crate) fn listen(&mut self, port: u16) -> Descriptor {
        let listener = self.server.socket(Family::V4).expect("a socket");
        self.server.set_nonblocking(listener, true).expect("a socket");
        self.server.bind(listener, address(port)).expect("a free port");
        self.server.listen(listener, 1024).expect("to listen");
        listener
    }

    /// Opens a connection: returns the server's socket and the client's, both non-blocking.
    pub(crate) fn connect(&mut self, listener: Descriptor, port: u16) -> (Descriptor, Descriptor) {
        let far = self.client.socket(Family::V4).expect("a socket");
        self.client.set_nonblocking(far, true).expect("a socket");
        let error = self.client.connect(far, address(port)).expect_err("not at once");
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
        let near = self.retry(|pair| pair.server.accept(listener)).expect("a connection");
        self.server.set_nonblocking(near, true).expect("a socket");
        self.until(|pair| pair.client.getpeername(far).ok());
        (near, far)
    }
}
