//! An HTTP client that can write byte by byte, and that checks strictly what it reads.

use crate::TIME_LIMIT;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// A connection to a server on this host.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    /// Bytes received after the last response.
    ahead: Vec<u8>,
}

/// A server's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status, such as 200.
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// The body as received, with its transfer encoding.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Client {
    /// Connects to a port of 127.0.0.1.
    pub fn connect(port: u16) -> io::Result<Client> {
        Client::connect_to(&format!("127.0.0.1:{port}"))
    }

    /// Connects to an address such as `[::1]:80`.
    pub fn connect_to(address: &str) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        stream.set_write_timeout(Some(TIME_LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, ahead: Vec::new() })
    }

    /// Connects to a port of 127.0.0.1, with a time-out for this and for each read and write.
    pub fn connect_within(port: u16, timeout: Duration) -> io::Result<Client> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        let client = Client { stream, ahead: Vec::new() };
        client.set_timeout(timeout)?;
        Ok(client)
    }

    /// Sets the time-out of each read and write.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))
    }

    /// Returns the socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Requests a path on a connection that stays open.
    pub fn get(&mut self, path: &str) -> io::Result<Response> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))?;
        self.response()
    }

    /// Reads one response whose header has its length.
    pub fn response(&mut self) -> io::Result<Response> {
        let (status, head) = self.head()?;
        let mut response = Response { status, head, body: Vec::new() };
        let length = response.header("Content-Length").and_then(|text| text.parse().ok());
        let length: usize = length.ok_or_else(|| invalid("a response without a length"))?;
        response.body = self.bytes(length)?;
        Ok(response)
    }

    /// Reads exactly `length` bytes.
    pub fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() < length {
            self.more()?;
        }
        let rest = self.ahead.split_off(length);
        Ok(std::mem::replace(&mut self.ahead, rest))
    }

    /// Reads status line and headers, up to the empty line.
    pub fn head(&mut self) -> io::Result<(u16, String)> {
        let end = loop {
            if let Some(at) = self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.more()?;
        };
        let rest = self.ahead.split_off(end);
        let head = std::mem::replace(&mut self.ahead, rest);
        let head = String::from_utf8(head).map_err(|_| invalid("a head that is not UTF-8"))?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Ok((status.ok_or_else(|| invalid("no status in the head"))?, head))
    }

    /// Reads to the end of the stream.
    pub fn rest(mut self) -> io::Result<Vec<u8>> {
        self.stream.read_to_end(&mut self.ahead)?;
        Ok(self.ahead)
    }

    fn more(&mut self) -> io::Result<()> {
        let mut room = [0; 16384];
        let count = loop {
            match self.stream.read(&mut room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => break done?,
            }
        };
        match count {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the end within a response")),
            count => {
                self.ahead.extend_from_slice(&room[..count]);
                Ok(())
            }
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Sends a request and reads everything until the server closes.
pub fn exchange(port: u16, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut client = Client::connect(port)?;
    client.send(request)?;
    client.rest()
}
