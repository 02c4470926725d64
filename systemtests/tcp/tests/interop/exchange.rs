//! Defines the protocol between two programs over any sockets, with every byte checked and hashed.
//!
//! The client sends a header, then its content, then the end of its direction. The server sends its
//! content at the same time. After the client's end it sends two hashes: of what it has sent and of
//! what has arrived.

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use std::io::{self, ErrorKind};
use std::sync::OnceLock;

const HEADER_BYTES: usize = 24;
const TRAILER_BYTES: usize = 2 * SHA256_OUTPUT_LEN;
/// The content repeats after a prime number of bytes, so that a piece at an offset that is wrong by
/// a power of two is detected.
const PERIOD_BYTES: usize = 1_000_003;
const PIECE_BYTES: usize = 1 << 16;

/// The calls of one connected socket, none of which waits.
pub(crate) trait Stream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize>;
    fn write(&mut self, data: &[u8]) -> io::Result<usize>;
    /// Ends the sending direction.
    fn end(&mut self) -> io::Result<()>;
}

/// Number of bytes in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) up_bytes: u64,
    pub(crate) down_bytes: u64,
    pub(crate) seed: u64,
}

impl Plan {
    /// The same number of bytes in both directions.
    pub(crate) fn both(bytes: u64, seed: u64) -> Plan {
        Plan { up_bytes: bytes, down_bytes: bytes, seed }
    }

    pub(crate) fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&self.up_bytes.to_be_bytes());
        header[8..16].copy_from_slice(&self.down_bytes.to_be_bytes());
        header[16..].copy_from_slice(&self.seed.to_be_bytes());
        header
    }

    fn parse(header: &[u8; HEADER_BYTES]) -> Plan {
        let number = |at: usize| {
            u64::from_be_bytes(header[at..at + 8].try_into().expect("eight bytes of the header"))
        };
        Plan { up_bytes: number(0), down_bytes: number(8), seed: number(16) }
    }
}

/// A piece of the content of one direction from a position on.
pub(crate) fn content(seed: u64, at: u64, bytes: u64) -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    let all = CONTENT.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let mut all: Vec<u8> = (0..PERIOD_BYTES).map(next).collect();
        all.extend_from_within(..PIECE_BYTES);
        all
    });
    let period = PERIOD_BYTES as u64;
    let begin = ((seed % period + at % period) % period) as usize;
    &all[begin..begin + bytes.min(PIECE_BYTES as u64) as usize]
}

/// The state of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It waits for the socket.
    Pending,
    /// Everything was sent, received and checked.
    Done,
}

/// One end of an exchange.
pub(crate) struct Exchange {
    is_client: bool,
    plan: Option<Plan>,
    header: [u8; HEADER_BYTES],
    trailer: [u8; TRAILER_BYTES],
    read_bytes: u64,
    written_bytes: u64,
    hash_read: Context,
    hash_written: Context,
    has_ended: bool,
    peer_has_ended: bool,
}

impl Exchange {
    pub(crate) fn client(plan: Plan) -> Exchange {
        Exchange { plan: Some(plan), header: plan.header(), ..Exchange::new(true) }
    }

    pub(crate) fn server() -> Exchange {
        Exchange::new(false)
    }

    fn new(is_client: bool) -> Exchange {
        Exchange {
            is_client,
            plan: None,
            header: [0; HEADER_BYTES],
            trailer: [0; TRAILER_BYTES],
            read_bytes: 0,
            written_bytes: 0,
            hash_read: Context::new(&SHA256),
            hash_written: Context::new(&SHA256),
            has_ended: false,
            peer_has_ended: false,
        }
    }

    /// The number of bytes received and sent, for messages.
    pub(crate) fn state(&self) -> String {
        let (read, written) = (self.read_bytes, self.written_bytes);
        let (ended, peer_ended) = (self.has_ended, self.peer_has_ended);
        format!("read {read}, written {written}, ended {ended}, peer ended {peer_ended}")
    }

    /// Whether it has something to write now.
    pub(crate) fn wants_to_write(&self) -> bool {
        !self.has_ended && (self.is_client || !self.outgoing().is_empty() || self.is_answered())
    }

    /// Writes and reads a piece.
    pub(crate) fn advance(&mut self, stream: &mut impl Stream) -> io::Result<Progress> {
        self.write(stream)?;
        self.read(stream)?;
        // The server may have waited for the end that was just read.
        self.write(stream)?;
        let is_done = self.has_ended && self.peer_has_ended;
        Ok(if is_done { Progress::Done } else { Progress::Pending })
    }

    fn total(&self) -> u64 {
        match self.plan {
            None => 0,
            Some(plan) if self.is_client => HEADER_BYTES as u64 + plan.up_bytes,
            Some(plan) => plan.down_bytes + TRAILER_BYTES as u64,
        }
    }

    fn is_answered(&self) -> bool {
        self.peer_has_ended && self.written_bytes == self.total()
    }

    fn outgoing(&self) -> &[u8] {
        let Some(plan) = self.plan else { return &[] };
        let at = self.written_bytes;
        if self.is_client {
            return match self.header.get(at as usize..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => {
                    let at = at - HEADER_BYTES as u64;
                    content(plan.seed, at, plan.up_bytes - at)
                }
            };
        }
        if at < plan.down_bytes {
            return content(!plan.seed, at, plan.down_bytes - at);
        }
        if self.peer_has_ended { &self.trailer[(at - plan.down_bytes) as usize..] } else { &[] }
    }

    fn write(&mut self, stream: &mut impl Stream) -> io::Result<()> {
        let data = self.outgoing();
        if !data.is_empty() {
            let bytes = match stream.write(data) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let done = data[..bytes].to_vec();
            if self.is_hashed() {
                self.hash_written.update(&done);
            }
            self.written_bytes += bytes as u64;
            if !self.is_client && self.plan.is_some_and(|p| self.written_bytes <= p.down_bytes) {
                return Ok(());
            }
        }
        let may_end = self.is_client || self.peer_has_ended;
        if !self.has_ended && may_end && self.written_bytes == self.total() {
            stream.end()?;
            self.has_ended = true;
        }
        Ok(())
    }

    /// Whether the data that is written now is content, and not a header or hashes.
    fn is_hashed(&self) -> bool {
        match self.plan {
            Some(plan) if !self.is_client => self.written_bytes < plan.down_bytes,
            _ => self.written_bytes >= HEADER_BYTES as u64,
        }
    }

    fn read(&mut self, stream: &mut impl Stream) -> io::Result<()> {
        if self.peer_has_ended {
            return Ok(());
        }
        let mut room = [0; PIECE_BYTES];
        let bytes = match stream.read(&mut room) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        if bytes == 0 {
            self.peer_has_ended = true;
            return self.check_end();
        }
        let mut data = &room[..bytes];
        while !data.is_empty() {
            let taken = self.take(data)?;
            self.read_bytes += taken as u64;
            data = &data[taken..];
        }
        Ok(())
    }

    /// Processes the first complete unit of the received data.
    fn take(&mut self, data: &[u8]) -> io::Result<usize> {
        let at = self.read_bytes;
        let (begin, end, seed) = match self.plan {
            Some(plan) if self.is_client => (0, plan.down_bytes, !plan.seed),
            Some(plan) => (HEADER_BYTES as u64, HEADER_BYTES as u64 + plan.up_bytes, plan.seed),
            None => {
                let taken = data.len().min(HEADER_BYTES - at as usize);
                self.header[at as usize..][..taken].copy_from_slice(&data[..taken]);
                if at as usize + taken == HEADER_BYTES {
                    self.plan = Some(Plan::parse(&self.header));
                }
                return Ok(taken);
            }
        };
        if at < end {
            let expected = content(seed, at - begin, (end - at).min(data.len() as u64));
            let came = &data[..expected.len()];
            if came != expected {
                let wrong = came.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
                return Err(wrong_data(format!("a wrong byte at {}", at + wrong as u64)));
            }
            self.hash_read.update(came);
            return Ok(expected.len());
        }
        let place = (at - end) as usize;
        let room = if self.is_client { TRAILER_BYTES } else { 0 };
        if place >= room {
            return Err(wrong_data(format!("data beyond the end, at {at}")));
        }
        let taken = data.len().min(room - place);
        self.trailer[place..place + taken].copy_from_slice(&data[..taken]);
        Ok(taken)
    }

    /// Checks that everything has arrived when the peer has ended its direction.
    fn check_end(&mut self) -> io::Result<()> {
        let expected = match self.plan {
            Some(plan) if self.is_client => plan.down_bytes + TRAILER_BYTES as u64,
            Some(plan) => HEADER_BYTES as u64 + plan.up_bytes,
            None => HEADER_BYTES as u64,
        };
        if self.read_bytes != expected {
            return Err(wrong_data(format!("{} bytes came, not {expected}", self.read_bytes)));
        }
        let read = self.hash_read.clone().finish();
        if !self.is_client {
            let plan = self.plan.expect("the header has come");
            self.trailer[..SHA256_OUTPUT_LEN]
                .copy_from_slice(&hash_of(!plan.seed, plan.down_bytes));
            self.trailer[SHA256_OUTPUT_LEN..].copy_from_slice(read.as_ref());
            return Ok(());
        }
        let written = self.hash_written.clone().finish();
        if self.trailer[..SHA256_OUTPUT_LEN] != *read.as_ref() {
            return Err(wrong_data("another hash than that of what was sent to us".into()));
        }
        if self.trailer[SHA256_OUTPUT_LEN..] != *written.as_ref() {
            return Err(wrong_data("another hash than that of what we have sent".into()));
        }
        Ok(())
    }
}

/// The complete answer of a server.
pub(crate) fn expected_answer(plan: &Plan) -> Vec<u8> {
    let mut answer = Vec::new();
    while answer.len() < plan.down_bytes as usize {
        let at = answer.len() as u64;
        answer.extend_from_slice(content(!plan.seed, at, plan.down_bytes - at));
    }
    answer.extend_from_slice(&hash_of(!plan.seed, plan.down_bytes));
    answer.extend_from_slice(&hash_of(plan.seed, plan.up_bytes));
    answer
}

fn hash_of(seed: u64, bytes: u64) -> [u8; SHA256_OUTPUT_LEN] {
    let (mut hash, mut at) = (Context::new(&SHA256), 0);
    while at < bytes {
        let piece = content(seed, at, bytes - at);
        hash.update(piece);
        at += piece.len() as u64;
    }
    hash.finish().as_ref().try_into().expect("the length of SHA-256")
}

fn wrong_data(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
