//! Clients that send requests and read no answers, and the memory that a server holds for them.

use crate::process::TIME_LIMIT;
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Size of a client's buffers, so that the server's limits are reached soon.
const BUFFER_BYTES: usize = 4096;

/// Number of passes over all clients in which none can send, until the server is taken to have
/// stopped reading, and the time between two passes.
const QUIET_PASSES: usize = 8;
const PASS_TIME: Duration = Duration::from_millis(20);

/// Memory of a channel's receive buffers, which are used first when many clients send at once:
/// 1,024 of 4,160 bytes, and 64 of up to 32 KiB.
const POOLS_BYTES: u64 = 1024 * 4160 + 64 * 32_768;

/// Clients that have sent as many requests as the server reads. Dropping this resets them.
#[derive(Debug)]
pub struct Stalled {
    clients: Vec<TcpStream>,
}

impl Stalled {
    /// Connects clients to a port of 127.0.0.1, each of which repeats the requests until the server
    /// reads no more of them.
    ///
    /// # Errors
    /// If a client is closed, or the server reads for [`TIME_LIMIT`].
    pub fn connect(port: u16, count: usize, requests: &[u8]) -> io::Result<Stalled> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_recv_buffer_size(BUFFER_BYTES)?;
            socket.set_send_buffer_size(BUFFER_BYTES)?;
            socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
            socket.set_nonblocking(true)?;
            clients.push(TcpStream::from(socket));
        }
        let mut sent = vec![0; count];
        let (mut quiet, began) = (0, Instant::now());
        while quiet < QUIET_PASSES {
            quiet += 1;
            for (client, sent) in clients.iter_mut().zip(&mut sent) {
                match client.write(&requests[*sent % requests.len()..]) {
                    Ok(bytes) => (*sent, quiet) = (*sent + bytes, 0),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            if began.elapsed() > TIME_LIMIT {
                return Err(io::Error::other(format!("the server reads on: {sent:?} bytes")));
            }
            if quiet > 0 {
                thread::sleep(PASS_TIME);
            }
        }
        Ok(Stalled { clients })
    }

    /// Returns the number of clients.
    pub fn count(&self) -> usize {
        self.clients.len()
    }
}

/// Returns how much memory a server on a channel may hold for each of `count` stalled clients:
/// twice that of the unmodified server and 64 KiB, and a part of what all clients share.
pub fn allowed_for_each(unmodified: u64, count: usize) -> u64 {
    2 * unmodified + 65_536 + POOLS_BYTES / count as u64
}

/// Returns the memory of processes that no file backs, in bytes.
///
/// # Errors
/// If a process has ended.
pub fn anonymous_bytes(processes: &[u32]) -> io::Result<u64> {
    let mut kib = 0;
    for process in processes {
        let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib += number.ok_or_else(|| io::Error::other("smaps_rollup without Anonymous"))?;
    }
    Ok(kib * 1024)
}

/// Returns the memory that a server's processes hold for each of `count` stalled clients, in bytes.
///
/// A quarter as many come before: the server's own buffers and tables then have their memory.
///
/// # Errors
/// Those of [`Stalled::connect`] and [`anonymous_bytes`].
pub fn held_for_each(
    port: u16,
    count: usize,
    requests: &[u8],
    processes: &[u32],
) -> io::Result<u64> {
    drop(Stalled::connect(port, count.div_ceil(4), requests)?);
    let before = anonymous_bytes(processes)?;
    let stalled = Stalled::connect(port, count, requests)?;
    let after = anonymous_bytes(processes)?;
    Ok(after.saturating_sub(before) / stalled.count() as u64)
}
