//! Attackers of one server: they hold connections in several ways, and reset others.

use socket2::{Domain, SockRef, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use testkit::retried;

/// Time-out of each call of an honest client and of each connect.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The address of all attackers. Honest clients have 127.0.0.1, as a server may limit what one
/// address holds.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

const SILENT: usize = 200;
const SLOW: usize = 50;
const GREEDY: usize = 50;
const HALF: usize = 100;
const RESETS: usize = 2000;

/// Resets between two turns of the attackers that hold connections.
const RESETS_AT_ONCE: usize = 20;

/// Time between two bytes of a slow attacker.
const SLOW_PACE: Duration = Duration::from_millis(100);

/// Bytes of a slow attacker's request that are sent at least.
const SLOW_BYTES_MIN: usize = 3;

/// Most bytes that a greedy attacker sends. The answers to them are more than the server may hold.
const GREEDY_BYTES: usize = 1 << 20;

/// Receive buffer of a greedy attacker: the kernel holds little of the answers.
const GREEDY_RECEIVE_BYTES: usize = 4096;

/// A connection that can send requests.
pub(crate) type Requests = Box<dyn Write + Send>;

/// What the attackers of a server send.
pub(crate) struct Attack {
    pub(crate) port: u16,
    /// A request that the slow attackers send byte by byte.
    pub(crate) slow: &'static [u8],
    /// A request with a large answer, which greedy attackers repeat without reading.
    pub(crate) greedy: Vec<u8>,
    /// The first part of a handshake or a request, whose rest never comes.
    pub(crate) half: Vec<u8>,
    /// Prepares the connection of a greedy attacker, such as by a TLS handshake.
    pub(crate) prepare: Box<dyn Fn(TcpStream) -> io::Result<Requests> + Send>,
}

/// All attackers of one server; dropping them closes their connections.
pub(crate) struct Attackers {
    attack: Attack,
    _held: Vec<TcpStream>,
    slow: Vec<TcpStream>,
    /// The greedy ones, with the bytes that each has sent.
    greedy: Vec<(Requests, usize)>,
    slow_bytes: usize,
    last_byte: Instant,
    resets: usize,
}

impl Attackers {
    /// Makes the connections that last.
    pub(crate) fn start(attack: Attack) -> Attackers {
        let connect = |_| connect(attack.port);
        let greedy = (0..GREEDY).filter_map(|_| {
            let stream = connect(0)?;
            let socket = stream.try_clone().expect("a descriptor");
            let requests = (attack.prepare)(stream).ok()?;
            // Only now: a handshake through so small a buffer waits for the kernel's timers.
            let small = SockRef::from(&socket).set_recv_buffer_size(GREEDY_RECEIVE_BYTES);
            small.expect("a socket");
            Some((requests, 0))
        });
        let greedy: Vec<_> = greedy.collect();
        assert!(!greedy.is_empty(), "no greedy attacker got as far as a request");
        let silent: Vec<TcpStream> = (0..SILENT).filter_map(connect).collect();
        let half: Vec<TcpStream> = (0..HALF).filter_map(connect).collect();
        for mut stream in &half {
            // The server may have closed it already.
            let _ = stream.write_all(&attack.half);
        }
        let _held = silent.into_iter().chain(half).collect();
        let slow = (0..SLOW).filter_map(connect).collect();
        let (slow_bytes, last_byte, resets) = (0, Instant::now(), 0);
        Attackers { attack, _held, slow, greedy, slow_bytes, last_byte, resets }
    }

    /// Attacks until every attacker has done its part and `honest` has returned.
    pub(crate) fn run(mut self, honest: impl FnOnce(u16) + Send) {
        let port = self.attack.port;
        thread::scope(|scope| {
            let honest = scope.spawn(move || honest(port));
            while !honest.is_finished() || self.resets < RESETS || self.slow_bytes < SLOW_BYTES_MIN
            {
                self.turn();
            }
            if let Err(panic) = honest.join() {
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// What the attackers do in one turn. They ignore errors: a server may end them.
    fn turn(&mut self) {
        for (greedy, sent) in &mut self.greedy {
            while *sent < GREEDY_BYTES {
                match greedy.write(&self.attack.greedy) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => *sent += count,
                }
            }
        }
        if self.last_byte.elapsed() >= SLOW_PACE {
            self.last_byte = Instant::now();
            let byte = &self.attack.slow[self.slow_bytes % self.attack.slow.len()..][..1];
            for mut stream in &self.slow {
                let _ = stream.write(byte);
            }
            self.slow_bytes += 1;
        }
        let resets = RESETS_AT_ONCE.min(RESETS - self.resets);
        for index in self.resets..self.resets + resets {
            let Some(mut stream) = connect(self.attack.port) else { continue };
            let part = [&b""[..], &self.attack.half, &self.attack.greedy][index % 3];
            let _ = stream.write(part);
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
        }
        self.resets += resets;
        if resets == 0 {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Connects an attacker; `None` if the server ends it at once, as tls-proxy does above its share of
/// an address. Panics if the server's kernel accepts no more connections.
fn connect(port: u16) -> Option<TcpStream> {
    match connection(port) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
        connected => Some(connected.expect("a connection of an attacker")),
    }
}

/// Connects from the attackers' address. Its writes do not wait, so that one attacker does not hold
/// up the others.
fn connection(port: u16) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((ATTACKER, 0)).into())?;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.connect_timeout(&server.into(), TIME_LIMIT)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Connects an honest client.
pub(crate) fn honest(port: u16) -> TcpStream {
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&server, TIME_LIMIT).expect("an honest connection");
    stream.set_read_timeout(Some(TIME_LIMIT)).expect("a socket");
    stream.set_write_timeout(Some(TIME_LIMIT)).expect("a socket");
    stream
}

/// Sends messages to an echo server and checks that each comes back.
pub(crate) fn echo(mut stream: impl Read + Write) {
    for length in [1, 64, 1000, 16_000] {
        let sent = testkit::content(length);
        retried(|| stream.write_all(&sent)).expect("a message is taken");
        let mut received = vec![0; length];
        match stream.read_exact(&mut received) {
            Ok(()) => assert!(received == sent, "{length} bytes came back changed"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("an honest client waited {TIME_LIMIT:?} for an answer of {length} bytes")
            }
            Err(error) => panic!("an honest client got no answer of {length} bytes: {error}"),
        }
    }
}
