//! Runs the distribution's memcached or another release, unmodified or adapted to the channel, and
//! a client of both its protocols.

use crate::process::Running;
use crate::{TIME_LIMIT, built, first_words};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use testkit::{eventually, is_root};

/// The build of memcached, and the channel's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Unmodified.
    Stock,
    /// Adapted to the channel, with this value of MEGAPIPE_DRIVER.
    Adapted(&'static str),
    /// A release, unmodified or with this value of MEGAPIPE_DRIVER.
    Release(&'static str, Option<&'static str>),
}

/// Returns the releases; the first one is that of the other builds.
pub fn releases() -> impl Iterator<Item = &'static str> {
    first_words(include_str!("../../../apps/memcached/releases"))
}

/// A server that ends with the test.
#[derive(Debug)]
pub struct Memcached {
    /// The server.
    pub process: Running,
    /// A directory of its own.
    pub directory: TempDir,
    port: u16,
}

/// Returns the path of a build. The variable MEGAPIPE_MEMCACHED names another one of the adapted
/// server.
///
/// # Errors
/// If it is not built.
pub fn program(build: Build) -> io::Result<PathBuf> {
    match (build, std::env::var_os("MEGAPIPE_MEMCACHED")) {
        (Build::Stock, _) => built("apps/memcached/stock/memcached"),
        (Build::Adapted(_), None) => built("apps/memcached/megapipe/memcached"),
        (Build::Adapted(_), Some(other)) => Ok(other.into()),
        (Build::Release(release, driver), _) => {
            let other = if Some(release) == releases().next() { "" } else { release };
            let tree = if driver.is_some() { "megapipe" } else { "stock" };
            built(Path::new("apps/memcached").join(other).join(tree).join("memcached"))
        }
    }
}

impl Memcached {
    /// Starts a server on a port, or on one that the kernel chooses, and waits until it listens.
    pub fn start(build: Build, port: Option<u16>, options: &[&str]) -> io::Result<Memcached> {
        let port = port.map_or_else(|| "-1".to_string(), |port| port.to_string());
        let words = [&["-l", "127.0.0.1", "-p", &port], options].concat();
        let mut server = Memcached::spawn(build, None, TempDir::new()?, &words)?;
        server.await_port()?;
        Ok(server)
    }

    /// Starts a server with exactly these words, perhaps with a library preloaded; does not wait.
    pub fn spawn(
        build: Build,
        library: Option<&Path>,
        directory: TempDir,
        words: &[&str],
    ) -> io::Result<Memcached> {
        let mut command = Command::new(program(build)?);
        command.args(words).env("MEMCACHED_PORT_FILENAME", directory.path().join("ports"));
        if let Build::Adapted(driver) | Build::Release(_, Some(driver)) = build {
            command.env("MEGAPIPE_DRIVER", driver);
        }
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
            // AddressSanitizer must not insist on being the first library.
            let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
            command.env("ASAN_OPTIONS", format!("{options}:verify_asan_link_order=0"));
        }
        if is_root() {
            command.args(["-u", "root"]);
        }
        let log = fs::File::create(directory.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(Memcached { process: Running::start(&mut command)?, directory, port: 0 })
    }

    /// Waits until the server listens on its port.
    pub fn await_port(&mut self) -> io::Result<()> {
        let mut decided = || {
            self.port = self.port_of("TCP");
            self.port != 0 || !matches!(self.process.child().try_wait(), Ok(None))
        };
        if eventually(TIME_LIMIT, &mut decided) && self.port != 0 {
            return Ok(());
        }
        Err(io::Error::other(format!("memcached does not start: {}", self.log().trim())))
    }

    /// Its TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its UDP port, if it has one.
    pub fn udp_port(&self) -> u16 {
        self.port_of("UDP")
    }

    /// Returns the port of a transport that the server has written down; 0 if there is none.
    fn port_of(&self, transport: &str) -> u16 {
        let text = fs::read_to_string(self.directory.path().join("ports")).unwrap_or_default();
        let prefix = format!("{transport} INET: ");
        text.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok()).unwrap_or(0)
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Connects, with a time-out for this and for each read and write.
    pub fn client(&self, timeout: Duration) -> io::Result<Client> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Client::new(stream))
    }
}

impl Drop for Memcached {
    /// Kills the server, because its proper end takes a second.
    fn drop(&mut self) {
        let _ = self.process.child().kill();
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client<S: Read = TcpStream> {
    reader: BufReader<S>,
}

/// Operations of the binary protocol.
const GET: u8 = 0;
const SET: u8 = 1;

impl<S: Read + Write> Client<S> {
    /// Wraps a connection.
    pub fn new(stream: S) -> Client<S> {
        Client { reader: BufReader::with_capacity(1 << 16, stream) }
    }

    /// Returns the socket.
    pub fn stream(&self) -> &S {
        self.reader.get_ref()
    }

    /// Returns the rest of the stream until the server closes.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        Ok(rest)
    }

    /// Reads so many bytes.
    pub fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Reads a line without its end; an error at the end of the stream.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_string()),
        }
    }

    /// Sends a command and reads one line.
    pub fn ask(&mut self, request: &str) -> io::Result<String> {
        self.send(request.as_bytes())?;
        self.line()
    }

    /// Stores a value.
    pub fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes())?;
        self.send(value)?;
        match self.ask("\r\n")?.as_str() {
            "STORED" => Ok(()),
            other => Err(invalid(format!("set was answered `{other}`"))),
        }
    }

    /// Gets a value.
    pub fn get(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.send(format!("get {key}\r\n").as_bytes())?;
        self.answer(key)
    }

    /// Reads the answer to a get of one key.
    pub fn answer(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        let header = self.line()?;
        if header == "END" {
            return Ok(None);
        }
        let size = header.strip_prefix(&format!("VALUE {key} 0 "));
        let size = size.and_then(|size| size.parse::<usize>().ok());
        let size = size.ok_or_else(|| invalid(format!("get was answered `{header}`")))?;
        let mut value = self.bytes(size + 2)?;
        match (value.split_off(size).as_slice(), self.line()?.as_str()) {
            (b"\r\n", "END") => Ok(Some(value)),
            _ => Err(invalid("a value without its end".into())),
        }
    }

    /// Stores a value by the binary protocol.
    pub fn set_binary(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        self.send(&request(SET, 8, key, value.len()))?;
        // Flags and time to live.
        self.send(&[&[0; 8], key.as_bytes(), value].concat())?;
        match self.response(SET)? {
            (0, _) => Ok(()),
            (status, _) => Err(invalid(format!("set was answered with status {status}"))),
        }
    }

    /// Gets a value by the binary protocol.
    pub fn get_binary(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.send(&request(GET, 0, key, 0))?;
        self.send(key.as_bytes())?;
        match self.response(GET)? {
            (0, value) => Ok(Some(value)),
            (1, _) => Ok(None),
            (status, _) => Err(invalid(format!("get was answered with status {status}"))),
        }
    }

    /// Status and value of a response.
    fn response(&mut self, operation: u8) -> io::Result<(u16, Vec<u8>)> {
        let mut header = [0; 24];
        self.reader.read_exact(&mut header)?;
        if header[..2] != [0x81, operation] {
            return Err(invalid(format!("a response that begins with {:?}", &header[..2])));
        }
        let number = |at: usize| u32::from_be_bytes(std::array::from_fn(|n| header[at + n]));
        let mut body = vec![0; number(8) as usize];
        self.reader.read_exact(&mut body)?;
        let before =
            usize::from(header[4]) + usize::from(u16::from_be_bytes([header[2], header[3]]));
        if before > body.len() {
            return Err(invalid("a response that is shorter than its extras".into()));
        }
        Ok((u16::from_be_bytes([header[6], header[7]]), body.split_off(before)))
    }
}

/// Returns the header of a request.
fn request(operation: u8, extras: u8, key: &str, value: usize) -> Vec<u8> {
    let body = usize::from(extras) + key.len() + value;
    let mut header = vec![0x80, operation];
    header.extend((key.len() as u16).to_be_bytes());
    header.extend([extras, 0, 0, 0]);
    header.extend((body as u32).to_be_bytes());
    header.resize(24, 0);
    header
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
