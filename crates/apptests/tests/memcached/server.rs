//! A memcached on the channel and a client of it.

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

/// Longer than anything here takes, so that only what hangs meets it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What MEGAPIPE_DRIVER says.
pub(crate) const DRIVERS: [&str; 2] = ["auto", "epoll"];

/// Builds it once, by the command that a person would use. MEGAPIPE_MEMCACHED in the environment
/// names another build of the adapted one.
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

pub(crate) struct Server {
    pub(crate) process: Running,
    pub(crate) directory: TempDir,
    pub(crate) port: u16,
}

impl Server {
    /// On a TCP port that the kernel chooses.
    pub(crate) fn start(driver: &str, options: &[&str]) -> Server {
        Server::start_of("megapipe", driver, options)
    }

    /// memcached as it is, to compare with.
    pub(crate) fn start_stock(options: &[&str]) -> Server {
        Server::start_of("stock", "none", options)
    }

    /// With this library preloaded.
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
        let found = eventually(PATIENCE, || {
            server.port = fs::read_to_string(&file)
                .ok()
                .and_then(|text| port_in(&text, "TCP"))
                .unwrap_or_default();
            server.port != 0
        });
        assert!(found, "memcached says no port");
        server
    }

    /// On a UNIX socket in its directory.
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
        assert!(eventually(PATIENCE, up));
        // What a test counts must not have this one in it: the end comes when memcached has closed.
        let mut first = first.unwrap();
        first.set_read_timeout(Some(PATIENCE)).unwrap();
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
            // AddressSanitizer wants to be the first, but need not be.
            let options = env::var("ASAN_OPTIONS").unwrap_or_default();
            command.env("ASAN_OPTIONS", format!("{options}:verify_asan_link_order=0"));
        }
        if is_root() {
            command.args(["-u", "root"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Server { process: Running::start(&mut command).unwrap(), directory, port: 0 }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(crate) fn udp_port(&self) -> u16 {
        let file = self.directory.path().join("ports");
        port_in(&fs::read_to_string(file).unwrap(), "UDP").unwrap()
    }

    pub(crate) fn client(&self) -> Client<TcpStream> {
        Client::new(TcpStream::connect(self.address()).unwrap())
    }

    /// A client, or nothing if the connection is not made soon: while memcached accepts nothing, a
    /// listening socket of it drops what arrives.
    pub(crate) fn client_at_once(&self) -> Option<Client<TcpStream>> {
        match TcpStream::connect_timeout(&self.address(), Duration::from_millis(500)) {
            Ok(stream) => Some(Client::new(stream)),
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// A client that has been accepted, so that others cannot take its place.
    pub(crate) fn served_client(&self) -> Client<TcpStream> {
        let mut client = self.client();
        let version = client.ask("version\r\n");
        assert!(version.starts_with("VERSION "), "{version}");
        client
    }

    pub(crate) fn local_client(&self) -> Client<UnixStream> {
        let stream = UnixStream::connect(self.directory.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { reader: BufReader::new(stream) }
    }
}

fn port_in(text: &str, transport: &str) -> Option<u16> {
    let prefix = format!("{transport} INET: ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok())
}

pub(crate) struct Client<S: Read> {
    reader: BufReader<S>,
}

impl Client<TcpStream> {
    pub(crate) fn new(stream: TcpStream) -> Client<TcpStream> {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client { reader: BufReader::new(stream) }
    }
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn stream(&self) -> &S {
        self.reader.get_ref()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// The next line without its end; empty at the end of the stream.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.send(request.as_bytes());
        self.line()
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        let header = format!("set {key} 0 0 {}\r\n", value.len());
        self.send(&[header.as_bytes(), value, b"\r\n"].concat());
        assert_eq!(self.line(), "STORED");
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n").as_bytes());
        self.answer(key)
    }

    /// The answer to a get of one key.
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

    /// What is left until the server closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).unwrap();
        rest
    }

    /// A figure of `stats` or `stats megapipe`.
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

    pub(crate) fn number(&mut self, group: &str, name: &str) -> u64 {
        self.figure(group, name).parse().unwrap()
    }
}

/// Bytes that differ along the value and between values.
pub(crate) fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 251 + at * 7 + seed) as u8).collect()
}
