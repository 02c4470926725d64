//! Runs the distribution's redis, unmodified or adapted to the channel, and clients of it.

use crate::process::Running;
use crate::{Port, TIME_LIMIT, built};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use testkit::eventually;

/// The build of redis, and the channel's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Unmodified.
    Stock,
    /// Adapted to the channel, with this value of MEGAPIPE_DRIVER.
    Adapted(&'static str),
}

/// A server that ends with the test.
#[derive(Debug)]
pub struct Redis {
    /// The server.
    pub process: Running,
    /// A directory of its own, with its log, data and UNIX socket.
    pub directory: TempDir,
    port: Port,
}

/// Returns the command that starts a build with these options. The variable MEGAPIPE_REDIS names
/// another adapted server.
///
/// # Errors
/// If it is not built.
pub fn command(build: Build, options: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(match (build, std::env::var_os("MEGAPIPE_REDIS")) {
        (Build::Stock, _) => built("apps/redis/stock/src/redis-server")?,
        (Build::Adapted(_), None) => built("apps/redis/megapipe/src/redis-server")?,
        (Build::Adapted(_), Some(other)) => other.into(),
    });
    command.args(["--bind", "127.0.0.1", "--save", ""]).args(options);
    if let Build::Adapted(driver) = build {
        command.args(["--megapipe", "yes"]).env("MEGAPIPE_DRIVER", driver);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

impl Redis {
    /// Starts a server on a free port, and waits until it answers.
    ///
    /// # Errors
    /// If it is not built, or does not answer.
    pub fn start(build: Build, options: &[&str]) -> io::Result<Redis> {
        let (directory, port) = (TempDir::new()?, Port::reserve()?);
        let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        let mut command = command(build, options)?;
        command.args(["--port", &port.number().to_string(), "--dir", &path("")]);
        command.args(["--logfile", &path("log"), "--unixsocket", &path("socket")]);
        let process = Running::start(&mut command)?;
        let mut server = Redis { process, directory, port };
        let mut decided = || {
            server.client().and_then(|mut client| client.ask("PING")).is_ok()
                || !matches!(server.process.child().try_wait(), Ok(None))
        };
        if eventually(TIME_LIMIT, &mut decided) && server.client().is_ok() {
            return Ok(server);
        }
        Err(io::Error::other(format!("redis does not start: {}", server.log())))
    }

    /// Its TCP port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Connects, with a time-out for each read and write.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn client(&self) -> io::Result<Client> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port()));
        let stream = TcpStream::connect_timeout(&address, TIME_LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        stream.set_write_timeout(Some(TIME_LIMIT))?;
        Ok(Client(BufReader::new(stream)))
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client<S: Read = TcpStream>(pub BufReader<S>);

impl<S: Read + Write> Client<S> {
    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Sends a command of words without spaces, and reads its answer.
    ///
    /// # Errors
    /// Those of the socket, and the end.
    pub fn ask(&mut self, words: &str) -> io::Result<String> {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.send(&request(&words))?;
        Ok(String::from_utf8_lossy(&self.answer()?).into_owned())
    }

    /// Reads one answer: a line with what belongs to it.
    ///
    /// # Errors
    /// Those of the socket, and the end.
    pub fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        let mut wanted = 1;
        while wanted > 0 {
            wanted -= 1;
            let begin = answer.len();
            if self.0.read_until(b'\n', &mut answer)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = String::from_utf8_lossy(&answer[begin..]).into_owned();
            let count = line[1..].trim_end().parse::<i64>().unwrap_or(-1);
            match line.as_bytes()[0] {
                b'$' if count >= 0 => {
                    let begin = answer.len();
                    answer.resize(begin + count as usize + 2, 0);
                    self.0.read_exact(&mut answer[begin..])?;
                }
                b'*' if count >= 0 => wanted += count,
                _ => {}
            }
        }
        Ok(answer)
    }
}

/// Returns a request of these words.
pub fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}
