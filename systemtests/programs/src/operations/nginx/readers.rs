//! Scenarios with clients that read slowly or not at all, beside other clients.

use super::super::Extent;
use super::super::content::content;
use super::super::load::{TIMEOUT, fault, kept_alive};
use super::super::outcome::Figures;
use super::no_complaints;
use crate::http::Client;
use crate::nginx::{Nginx, Setup};
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Number of clients of each kind.
const READERS: usize = 50;

/// Size of a file, far more than the buffers of a connection hold.
const LARGE: usize = 10_000_000;

/// Makes a client with a small receive window, so that it reads from the server and not from its
/// own buffer. Returns it with its first bytes.
fn slow(port: u16) -> io::Result<(TcpStream, Vec<u8>)> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.set_recv_buffer_size(4096)?;
    socket.connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)).into(), TIMEOUT)?;
    let mut stream = TcpStream::from(socket);
    io::Write::write_all(&mut stream, b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n")?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut first = vec![0; 1024];
    stream.read_exact(&mut first)?;
    stream.set_nonblocking(true)?;
    Ok((stream, first))
}

/// Reads 1 KB from each client, once a second until the end; returns what they received.
fn read_slowly(
    mut clients: Vec<(TcpStream, Vec<u8>)>,
    over: &AtomicBool,
) -> io::Result<Vec<Vec<u8>>> {
    while !over.load(Ordering::Relaxed) {
        for (stream, got) in &mut clients {
            let mut room = [0; 1024];
            match stream.read(&mut room) {
                Ok(0) => return Err(fault("the end of a slow reader's answer")),
                Ok(bytes) => got.extend_from_slice(&room[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        for _ in 0..100 {
            if !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
    Ok(clients.into_iter().map(|(_, got)| got).collect())
}

/// Other clients are served meanwhile, and at the end each stalled reader gets its whole file.
pub(super) fn readers(setup: Setup, extent: Extent) -> Figures {
    let nginx = Nginx::start(&setup)?;
    let (large, small) = (content(LARGE), content(20_000));
    nginx.place("large", &large)?;
    nginx.place("small", &small)?;
    let ask = |_| {
        let mut client = Client::connect_within(nginx.port(), TIMEOUT)?;
        client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n")?;
        client.head()?;
        Ok(client)
    };
    let stalled = (0..READERS).map(ask).collect::<io::Result<Vec<Client>>>()?;
    let slow = (0..READERS).map(|_| slow(nginx.port())).collect::<io::Result<_>>()?;
    let over = AtomicBool::new(false);
    let (counts, got) = thread::scope(|scope| {
        let reader = scope.spawn(|| read_slowly(slow, &over));
        let counts = kept_alive(nginx.port(), "/small", &small, 4, extent.pick(400, 40_000));
        over.store(true, Ordering::Relaxed);
        let got = reader.join().map_err(|_| fault("the slow readers panicked"));
        Ok::<_, io::Error>((counts?, got??))
    })?;
    for got in &got {
        let body = got.windows(4).position(|four| four == b"\r\n\r\n").map(|at| &got[at + 4..]);
        if !body.is_some_and(|body| large.starts_with(body)) {
            return Err(fault(format!("a slow reader's {} bytes are wrong", got.len())));
        }
    }
    for mut client in stalled.into_iter().take(extent.pick(5, READERS)) {
        if client.bytes(LARGE)? != large {
            return Err(fault("a stalled reader got wrong bytes"));
        }
    }
    no_complaints(&nginx)?;
    Ok(counts.figures())
}
