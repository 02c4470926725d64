//! Runs the distribution's memcached, unmodified or adapted to the channel, and a client of both
//! its protocols.

use crate::process::Running;
use crate::{TIME_LIMIT, target_dir, xtask};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
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
}

/// A server that ends with the test.
#[derive(Debug)]
pub struct Memcached {
    running: Running,
    directory: TempDir,
    port: u16,
}

/// Builds both, once, by the command that a user would use; returns the path of one.
///
/// # Errors
/// If the build fails; the error has its output.
pub fn program(build: Build) -> io::Result<PathBuf> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| xtask(&["memcached"]).map_err(|error| error.to_string()));
    built.clone().map_err(io::Error::other)?;
    let tree = match build {
        Build::Stock => "stock",
        Build::Adapted(_) => "megapipe",
    };
    Ok(target_dir().join("apps/memcached").join(tree).join("memcached"))
}

impl Memcached {
    /// Starts a server on a port, or on one that the kernel chooses, and waits until it listens.
    pub fn start(build: Build, port: Option<u16>, options: &[&str]) -> io::Result<Memcached> {
        let directory = TempDir::new()?;
        let file = directory.path().join("ports");
        let mut command = Command::new(program(build)?);
        let port = port.map_or_else(|| "-1".to_string(), |port| port.to_string());
        command.args(["-l", "127.0.0.1", "-p", &port]).args(options);
        command.env("MEMCACHED_PORT_FILENAME", &file);
        if let Build::Adapted(driver) = build {
            command.env("MEGAPIPE_DRIVER", driver);
        }
        if is_root() {
            command.args(["-u", "root"]);
        }
        let log = fs::File::create(directory.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let running = Running::start(&mut command)?;
        let mut server = Memcached { running, directory, port: 0 };
        let mut decided = || {
            server.port = port_in(&fs::read_to_string(&file).unwrap_or_default(), "TCP");
            server.port != 0 || !matches!(server.running.child().try_wait(), Ok(None))
        };
        if !eventually(TIME_LIMIT, &mut decided) || server.port == 0 {
            let log = server.log();
            return Err(io::Error::other(format!("memcached does not start: {}", log.trim())));
        }
        Ok(server)
    }

    /// Its TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its UDP port, if it has one.
    pub fn udp_port(&self) -> u16 {
        let text = fs::read_to_string(self.directory.path().join("ports"));
        port_in(&text.unwrap_or_default(), "UDP")
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns the process.
    pub fn process(&mut self) -> &mut Running {
        &mut self.running
    }

    /// Connects, with a time-out for this and for each read and write.
    pub fn client(&self, timeout: Duration) -> io::Result<Client> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Client { reader: BufReader::with_capacity(1 << 16, stream) })
    }
}

impl Drop for Memcached {
    /// Kills the server, because its proper end takes a second.
    fn drop(&mut self) {
        let _ = self.running.child().kill();
    }
}

/// Returns the port in the text; 0 if there is none.
fn port_in(text: &str, transport: &str) -> u16 {
    let prefix = format!("{transport} INET: ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok()).unwrap_or(0)
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<TcpStream>,
}

/// Operations of the binary protocol.
const GET: u8 = 0;
const SET: u8 = 1;

impl Client {
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
        let mut value = vec![0; size + 2];
        self.reader.read_exact(&mut value)?;
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
