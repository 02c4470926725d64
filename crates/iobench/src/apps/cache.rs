//! Fills a cache under test over its own protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::client::protocol::answer::Answer;
use crate::client::protocol::memcache::{Cache, Operation};
use crate::client::protocol::{Complaint, Protocol};
use crate::error::{Context, Result};

/// Values that one batch of set commands stores.
const STORED_AT_ONCE: u32 = 64;
/// Longest wait for an answer while the server is filled.
const FILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Stores every key and requires an acknowledgement for each.
pub(super) fn fill(address: SocketAddr, cache: &mut Cache, keys: u32) -> Result<()> {
    const REMEDY: &str = "check that the program serves the protocol of its name";
    let mut stream = TcpStream::connect_timeout(&address, FILL_TIMEOUT)
        .and_then(|stream| {
            stream.set_read_timeout(Some(FILL_TIMEOUT))?;
            stream.set_write_timeout(Some(FILL_TIMEOUT))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
        .context(format!("connect to the server at {address}"), REMEDY)?;
    let mut first = 0;
    while first < keys {
        let last = keys.min(first + STORED_AT_ONCE);
        store(&mut stream, cache, first..last).context("fill a server", REMEDY)?;
        first = last;
    }
    Ok(())
}

/// Sends several set commands in one write and reads their answers.
fn store(
    stream: &mut TcpStream,
    cache: &mut Cache,
    keys: std::ops::Range<u32>,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    for key in keys.clone() {
        bytes.extend_from_slice(cache.render(Operation { key, sets: true }));
    }
    stream.write_all(&bytes)?;
    let mut buffer = [0; 4096];
    let (mut answer, mut waiting) = (Answer::default(), keys);
    while !waiting.is_empty() {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let operation = Operation { key: waiting.start, sets: true };
            let fed = cache
                .feed(&mut answer, operation, rest)
                .map_err(|Complaint(what)| std::io::Error::other(format!("an answer {what}")))?;
            rest = &rest[fed.used..];
            if fed.complete {
                answer.reset();
                waiting.start += 1;
            }
        }
    }
    Ok(())
}
