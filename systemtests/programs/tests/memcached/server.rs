//! A memcached on the channel and its client, which panic if anything fails.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use systemtests_programs::memcached::{self, Build, Memcached};
use tempfile::TempDir;
use testkit::eventually;

/// Time-out, longer than any action of the tests.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Values of MEGAPIPE_DRIVER.
pub(crate) const DRIVERS: [&str; 2] = ["auto", "epoll"];

/// A memcached, killed when dropped.
pub(crate) struct Server(Memcached);

impl Deref for Server {
    type Target = Memcached;

    fn deref(&self) -> &Memcached {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Memcached {
        &mut self.0
    }
}

impl Server {
    /// Starts it on a TCP port that the kernel chooses.
    pub(crate) fn start(driver: &'static str, options: &[&str]) -> Server {
        Server(Memcached::start(Build::Adapted(driver), None, options).unwrap())
    }

    /// Starts the unmodified memcached, to compare with.
    pub(crate) fn start_stock(options: &[&str]) -> Server {
        Server(Memcached::start(Build::Stock, None, options).unwrap())
    }

    /// Starts a release.
    pub(crate) fn start_release(build: Build, options: &[&str]) -> Server {
        Server(Memcached::start(build, None, options).unwrap())
    }

    /// Starts it with this library preloaded.
    pub(crate) fn start_with(library: &Path, driver: &'static str, options: &[&str]) -> Server {
        let words = [&["-l", "127.0.0.1", "-p", "-1"], options].concat();
        let (build, directory) = (Build::Adapted(driver), TempDir::new().unwrap());
        let mut server = Memcached::spawn(build, Some(library), directory, &words).unwrap();
        server.await_port().unwrap();
        Server(server)
    }

    /// Starts it on a UNIX socket in its directory.
    pub(crate) fn start_local(driver: &'static str) -> Server {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("socket");
        let words = ["-s", path.to_str().unwrap()];
        let server = Memcached::spawn(Build::Adapted(driver), None, directory, &words).unwrap();
        let mut first = None;
        let up = || {
            first = UnixStream::connect(&path).ok();
            first.is_some()
        };
        assert!(eventually(TIME_LIMIT, up));
        // Waits until memcached has closed this connection, which must not be in a test's counts.
        let mut first = first.unwrap();
        first.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        first.shutdown(Shutdown::Write).unwrap();
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
        Server(server)
    }

    /// Returns the address of its TCP port.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port()))
    }

    /// Connects a client.
    pub(crate) fn client(&self) -> Client<TcpStream> {
        Client(self.0.client(TIME_LIMIT).unwrap())
    }

    /// Connects a client. Returns `None` if the connection is not established soon: while memcached
    /// accepts nothing, its listening socket drops SYNs.
    pub(crate) fn client_at_once(&self) -> Option<Client<TcpStream>> {
        match TcpStream::connect_timeout(&self.address(), Duration::from_millis(500)) {
            Ok(stream) => {
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
                stream.set_write_timeout(Some(TIME_LIMIT)).unwrap();
                Some(Client(memcached::Client::new(stream)))
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Connects a client and waits until it is accepted, so that others cannot take its place.
    pub(crate) fn served_client(&self) -> Client<TcpStream> {
        let mut client = self.client();
        let version = client.ask("version\r\n");
        assert!(version.starts_with("VERSION "), "{version}");
        client
    }

    /// Connects a client over the UNIX socket.
    pub(crate) fn local_client(&self) -> Client<UnixStream> {
        let stream = UnixStream::connect(self.directory.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        Client(memcached::Client::new(stream))
    }
}

/// A client of the text protocol.
pub(crate) struct Client<S: Read>(memcached::Client<S>);

impl<S: Read + Write> Client<S> {
    /// Returns the socket.
    pub(crate) fn stream(&self) -> &S {
        self.0.stream()
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.send(bytes).unwrap();
    }

    /// Reads so many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.0.bytes(count).unwrap()
    }

    /// Returns the next line without its end; empty at the end of the stream.
    pub(crate) fn line(&mut self) -> String {
        match self.0.line() {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => String::new(),
            line => line.unwrap(),
        }
    }

    /// Sends a command and reads one line.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.send(request.as_bytes());
        self.line()
    }

    /// Stores a value.
    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        self.0.set(key, value).unwrap();
    }

    /// Gets a value.
    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.0.get(key).unwrap()
    }

    /// Returns the answer to a get of one key.
    pub(crate) fn answer(&mut self, key: &str) -> Option<Vec<u8>> {
        self.0.answer(key).unwrap()
    }

    /// Returns the rest of the stream until the server closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        self.0.rest().unwrap()
    }

    /// Returns a value in `stats` or `stats megapipe`.
    pub(crate) fn figure(&mut self, group: &str, name: &str) -> String {
        let mut line = self.ask(&format!("stats {group}\r\n").replace(" \r", "\r"));
        let mut found = None;
        while line != "END" {
            assert!(line.starts_with("STAT "), "{line}");
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                found = Some(value.to_string());
            }
            line = self.line();
        }
        found.unwrap_or_else(|| panic!("stats {group} has no {name}"))
    }

    /// Returns a number in `stats` or `stats megapipe`.
    pub(crate) fn number(&mut self, group: &str, name: &str) -> u64 {
        self.figure(group, name).parse().unwrap()
    }
}

/// Bytes that differ along the value and between values.
pub(crate) fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 251 + at * 7 + seed) as u8).collect()
}
