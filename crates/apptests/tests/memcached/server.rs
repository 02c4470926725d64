//! A memcached on the channel and its client, for tests.

use megapipe_apptests::{Running, target_dir, xtask};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;
use testkit::{eventually, is_root};

/// Time-out, longer than any action of the tests.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Values of MEGAPIPE_DRIVER.
pub(crate) const DRIVERS: [&str; 2] = ["auto", "epoll"];

/// Builds memcached once, by the command that a user would use. The variable MEGAPIPE_MEMCACHED
/// names another build of the adapted server.
fn binary(tree: &str) -> PathBuf {
    if tree == "megapipe"
        && let Some(other) = env::var_os("MEGAPIPE_MEMCACHED")
    {
        return other.into();
    }
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| xtask(&["memcached"]).unwrap());
    target_dir().join("apps/memcached").join(tree).join("memcached")
}

/// A memcached, killed when dropped.
pub(crate) struct Server {
    pub(crate) process: Running,
    pub(crate) directory: TempDir,
    pub(crate) port: u16,
}

impl Server {
    /// Starts it on a TCP port that the kernel chooses.
    pub(crate) fn start(driver: &str, options: &[&str]) -> Server {
        Server::start_of("megapipe", driver, options)
    }

    /// Starts the unmodified memcached, to compare with.
    pub(crate) fn start_stock(options: &[&str]) -> Server {
        Server::start_of("stock", "none", options)
    }

    /// Starts it with this library preloaded.
    pub(crate) fn start_with(library: &Path, driver: &str, options: &[&str]) -> Server {
        Server::listen("megapipe", driver, Some(library), options)
    }

    fn start_of(tree: &str, driver: &str, options: &[&str]) -> Server {
        Server::listen(tree, driver, None, options)
    }

    fn listen(tree: &str, driver: &str, library: Option<&Path>, options: &[&str]) -> Server {
        let mut words = vec!["-l", "127.0.0.1", "-p", "-1"];
        words.extend(options);
        let mut server = Server::spawn_in(TempDir::new().unwrap(), tree, driver, library, &words);
        let file = server.directory.path().join("ports");
        let found = eventually(TIME_LIMIT, || {
            server.port = fs::read_to_string(&file)
                .ok()
                .and_then(|text| port_in(&text, "TCP"))
                .unwrap_or_default();
            server.port != 0
        });
        assert!(found, "memcached says no port");
        server
    }

    /// Starts it on a UNIX socket in its directory.
    pub(crate) fn start_local(driver: &str) -> Server {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("socket");
        let words = ["-s", path.to_str().unwrap()];
        let server = Server::spawn_in(directory, "megapipe", driver, None, &words);
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
        server
    }

    fn spawn_in(
        directory: TempDir,
        tree: &str,
        driver: &str,
        library: Option<&Path>,
        words: &[&str],
    ) -> Server {
        let mut command = Command::new(binary(tree));
        command.args(words).env("MEGAPIPE_DRIVER", driver);
        command.env("MEMCACHED_PORT_FILENAME", directory.path().join("ports"));
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
            // AddressSanitizer must not insist on being the first library.
            let options = env::var("ASAN_OPTIONS").unwrap_or_default();
            command.env("ASAN_OPTIONS", format!("{options}:verify_asan_link_order=0"));
        }
        if is_root() {
            command.args(["-u", "root"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Server { process: Running::start(&mut command).unwrap(), directory, port: 0 }
    }

    /// Returns the address of its TCP port.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Returns its UDP port.
    pub(crate) fn udp_port(&self) -> u16 {
        let file = self.directory.path().join("ports");
        port_in(&fs::read_to_string(file).unwrap(), "UDP").unwrap()
    }

    /// Connects a client.
    pub(crate) fn client(&self) -> Client<TcpStream> {
        Client::new(TcpStream::connect(self.address()).unwrap())
    }

    /// Connects a client. Returns `None` if the connection is not established soon: while memcached
    /// accepts nothing, its listening socket drops SYNs.
    pub(crate) fn client_at_once(&self) -> Option<Client<TcpStream>> {
        match TcpStream::connect_timeout(&self.address(), Duration::from_millis(500)) {
            Ok(stream) => Some(Client::new(stream)),
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
        Client { reader: BufReader::new(stream) }
    }
}

fn port_in(text: &str, transport: &str) -> Option<u16> {
    let prefix = format!("{transport} INET: ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok())
}

/// A client of the text protocol.
pub(crate) struct Client<S: Read> {
    reader: BufReader<S>,
}

impl Client<TcpStream> {
    /// Wraps a connection.
    pub(crate) fn new(stream: TcpStream) -> Client<TcpStream> {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        Client { reader: BufReader::new(stream) }
    }
}

impl<S: Read + Write> Client<S> {
    /// Returns the socket.
    pub(crate) fn stream(&self) -> &S {
        self.reader.get_ref()
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// Returns the next line without its end; empty at the end of the stream.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    /// Sends a command and reads one line.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.send(request.as_bytes());
        self.line()
    }

    /// Stores a value.
    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        let header = format!("set {key} 0 0 {}\r\n", value.len());
        self.send(&[header.as_bytes(), value, b"\r\n"].concat());
        assert_eq!(self.line(), "STORED");
    }

    /// Gets a value.
    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n").as_bytes());
        self.answer(key)
    }

    /// Returns the answer to a get of one key.
    pub(crate) fn answer(&mut self, key: &str) -> Option<Vec<u8>> {
        let header = self.line();
        if header == "END" {
            return None;
        }
        let size = header.strip_prefix(&format!("VALUE {key} 0 ")).unwrap_or_else(|| {
            panic!("`{header}` is no answer to get {key}");
        });
        let mut value = vec![0; size.parse::<usize>().unwrap() + 2];
        self.reader.read_exact(&mut value).unwrap();
        assert_eq!(value.split_off(value.len() - 2), b"\r\n");
        assert_eq!(self.line(), "END");
        Some(value)
    }

    /// Returns the rest of the stream until the server closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).unwrap();
        rest
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
