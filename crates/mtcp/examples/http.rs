//! Implements a small HTTP/1.1 server over user-level TCP, one thread per core.
//!
//! `MTCP_CONFIG=docs/mtcp.toml cargo run -p mtcp --release --example http -- 10.0.0.2:80` serves,
//! at `/N`, a document of N bytes. It shows what an application does: wait, read until there is no
//! more data, write until there is no more room, and only then wait for writability.

use mtcp::{Config, Context, Descriptor, EpollControl, EpollEvent, Events, Family, Mtcp};
use std::collections::HashMap;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// Most bytes of a request's head.
const HEAD_BYTES: usize = 8192;
/// The bytes of a document count up to this prime and start again.
const PERIOD: usize = 251;
const PIECE_BYTES: usize = PERIOD * 256;
const BACKLOG: u32 = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(address) = std::env::args().nth(1) else {
        return Err("usage: MTCP_CONFIG=FILE http ADDRESS:PORT".into());
    };
    let address: SocketAddr = address.parse()?;
    let mtcp = Mtcp::start(Config::from_environment()?)?;
    std::thread::scope(|scope| {
        let serve = |core| -> io::Result<()> {
            let context = mtcp.context(core).map_err(io::Error::other)?;
            Server::new(context, address)?.run()
        };
        let threads: Vec<_> =
            (0..mtcp.cores()).map(|core| scope.spawn(move || serve(core))).collect();
        for thread in threads {
            thread.join().map_err(|_| "a core has panicked")??;
        }
        Ok(())
    })
}

/// A connection and the data that it has still to send.
#[derive(Default)]
struct Connection {
    request: Vec<u8>,
    head: Vec<u8>,
    sent: usize,
    /// The rest of the document: start and end.
    body: (usize, usize),
    closes: bool,
    waits_for_room: bool,
}

struct Server {
    context: Context,
    epoll: Descriptor,
    listener: Descriptor,
    connections: HashMap<Descriptor, Connection>,
    document: Vec<u8>,
}

impl Server {
    fn new(mut context: Context, address: SocketAddr) -> io::Result<Server> {
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        let listener = context.socket(family)?;
        context.set_nonblocking(listener, true)?;
        context.bind(listener, address)?;
        context.listen(listener, BACKLOG)?;
        let epoll = context.epoll_create()?;
        let watch = EpollControl::Add(EpollEvent::of(listener, Events::IN));
        context.epoll_ctl(epoll, listener, watch)?;
        println!("serving {address}");
        let document = (0..PIECE_BYTES + PERIOD).map(|at| (at % PERIOD) as u8).collect();
        Ok(Server { context, epoll, listener, connections: HashMap::new(), document })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::default(); 64];
        loop {
            let count = self.context.epoll_wait(self.epoll, &mut events, None)?;
            for event in &events[..count] {
                let socket = event.descriptor();
                if socket == self.listener {
                    self.accept()?;
                } else if !self.serve(socket).unwrap_or(false) {
                    self.connections.remove(&socket);
                    self.context.close(socket)?;
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let socket = match self.context.accept(self.listener) {
                Ok(socket) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            self.context.set_nonblocking(socket, true)?;
            let watch = EpollControl::Add(EpollEvent::of(socket, Events::IN));
            self.context.epoll_ctl(self.epoll, socket, watch)?;
            self.connections.insert(socket, Connection::default());
        }
    }

    /// Performs all operations that are possible now; false if the connection is over.
    fn serve(&mut self, socket: Descriptor) -> io::Result<bool> {
        let Some(connection) = self.connections.get_mut(&socket) else { return Ok(true) };
        let mut room = [0; HEAD_BYTES];
        loop {
            if !connection.send(&mut self.context, socket, &self.document)? {
                break;
            }
            if connection.closes {
                return Ok(false);
            }
            if connection.take_request()? {
                continue;
            }
            match self.context.read(socket, &mut room) {
                Ok(0) => return Ok(false),
                Ok(bytes) => connection.request.extend_from_slice(&room[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let waits_for_room = connection.is_sending();
        if waits_for_room != connection.waits_for_room {
            connection.waits_for_room = waits_for_room;
            // A client that does not read its answers gets no further requests processed.
            let events = if waits_for_room { Events::OUT } else { Events::IN };
            let watch = EpollControl::Modify(EpollEvent::of(socket, events));
            self.context.epoll_ctl(self.epoll, socket, watch)?;
        }
        Ok(true)
    }
}

impl Connection {
    fn is_sending(&self) -> bool {
        self.sent < self.head.len() || self.body.0 < self.body.1
    }

    /// Sends as much as there is room for; true if all was sent.
    fn send(&mut self, context: &mut Context, socket: Descriptor, all: &[u8]) -> io::Result<bool> {
        while self.is_sending() {
            let in_head = self.sent < self.head.len();
            let (at, end) = self.body;
            let piece = if in_head {
                &self.head[self.sent..]
            } else {
                &all[at % PERIOD..][..(end - at).min(PIECE_BYTES)]
            };
            match context.write(socket, piece) {
                Ok(bytes) if in_head => self.sent += bytes,
                Ok(bytes) => self.body.0 += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes the first request, if its head is complete, and prepares the answer.
    fn take_request(&mut self) -> io::Result<bool> {
        const END: &[u8] = b"\r\n\r\n";
        let Some(end) = self.request.windows(END.len()).position(|bytes| bytes == END) else {
            if self.request.len() > HEAD_BYTES {
                return Err(ErrorKind::InvalidData.into());
            }
            return Ok(false);
        };
        let head = String::from_utf8_lossy(&self.request[..end]).to_ascii_lowercase();
        self.request.drain(..end + END.len());
        self.closes = head.contains("\r\nconnection: close");
        let path = head.strip_prefix("get /").and_then(|rest| rest.split(' ').next());
        let (status, bytes) = match path.map(str::parse::<usize>) {
            Some(Ok(bytes)) => ("200 OK", bytes),
            Some(Err(_)) => ("404 Not Found", 0),
            None => ("501 Not Implemented", 0),
        };
        self.head = format!("HTTP/1.1 {status}\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
        (self.sent, self.body) = (0, (0, bytes));
        Ok(true)
    }
}
