//! Clients that count how their requests end, instead of failing with the first error.

use super::counts::{Counts, End};
use crate::TIME_LIMIT;
use crate::http::{Client, Response};
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testkit::eventually;

/// Time-out of one request; only a request that hangs exceeds it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Number of concurrent clients while a server is disturbed.
pub(crate) const CLIENTS: usize = 4;

/// Failures after which a client stops.
const FAILURES_MAX: u64 = 1000;

/// Makes a short connection: one request, one answer, and the end.
pub(crate) fn short(port: u16, path: &str) -> End {
    let answer = || {
        let mut client = Client::connect_within(port, TIMEOUT)?;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"))?;
        let response = client.response()?;
        Ok(response.status == 200 && client.rest()?.is_empty())
    };
    End::of(answer())
}

/// Makes `count` short connections, one after the other.
pub(crate) fn shorts(port: u16, path: &str, count: u64) -> Counts {
    (0..count).map(|_| short(port, path)).collect()
}

/// Fails unless all of `count` short connections are served.
pub(crate) fn serves(port: u16, path: &str, count: u64) -> io::Result<()> {
    let counts = shorts(port, path, count);
    match counts.served() == count {
        true => Ok(()),
        false => Err(fault(format!("afterwards {}", counts.failures("of the requests failed")))),
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes short connections while `disturb` runs; its argument is the number of those served.
pub(crate) fn under_load(
    port: u16,
    disturb: impl FnOnce(&AtomicU64) -> io::Result<()>,
) -> io::Result<Counts> {
    let done = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    let client = || {
        let mut counts = Counts::default();
        while !done.load(Ordering::Relaxed) && counts.failed() < FAILURES_MAX {
            let end = short(port, "/who");
            served.fetch_add(u64::from(end == End::Served), Ordering::Relaxed);
            counts.add(end);
        }
        counts
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let disturbed = {
            // Stops the clients even if this function panics; they would never end otherwise.
            let _stop = Stop(&done);
            disturb(&served)
        };
        let mut total = Counts::default();
        for client in clients {
            total = total.with(client.join().map_err(|_| fault("a client panicked"))?);
        }
        disturbed.map(|()| total)
    })
}

/// Waits until the clients of [`under_load`] have been served some more requests.
pub(crate) fn await_more(served: &AtomicU64, more: u64) -> io::Result<()> {
    let target = served.load(Ordering::Relaxed) + more;
    until("no client is served any more", || served.load(Ordering::Relaxed) >= target)
}

/// Waits for a condition; fails after the time-out.
pub(crate) fn until(failure: &str, ready: impl FnMut() -> bool) -> io::Result<()> {
    if eventually(TIME_LIMIT, ready) { Ok(()) } else { Err(fault(failure)) }
}

/// Makes requests for one file by concurrent keep-alive clients, each with its share.
pub(crate) fn kept_alive(
    port: u16,
    path: &str,
    expected: &[u8],
    clients: usize,
    requests: u64,
) -> io::Result<Counts> {
    let each = requests / clients as u64;
    let client = || {
        let mut connection = None;
        let mut request = || {
            let mut client = match connection.take() {
                Some(client) => client,
                None => Client::connect_within(port, TIMEOUT)?,
            };
            let response = client.get(path)?;
            // Uses a connection again only if it had no error and the server keeps it open.
            let kept = response.header("Connection") != Some("close");
            connection = kept.then_some(client);
            Ok(response.status == 200 && response.body == expected)
        };
        (0..each).map(|_| End::of(request())).collect::<Counts>()
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let mut total = Counts::default();
        for client in clients {
            total = total.with(client.join().map_err(|_| fault("a client panicked"))?);
        }
        Ok(total)
    })
}

/// Connects all clients before any of them reads; all end within one time-out.
pub(crate) fn crowd(port: u16, request: &str, expected: &[u8], count: usize) -> Counts {
    crowd_with(port, request, count, |response| response.body == expected)
}

/// Does what `crowd` does for answers of which only a part is known.
pub(crate) fn crowd_with(
    port: u16,
    request: &str,
    count: usize,
    is_right: impl Fn(&Response) -> bool,
) -> Counts {
    let ask = |_| {
        let mut client = Client::connect_within(port, TIMEOUT)?;
        client.send(request)?;
        Ok(client)
    };
    let clients: Vec<io::Result<Client>> = (0..count).map(ask).collect();
    let deadline = Instant::now() + TIMEOUT;
    let read = |client: io::Result<Client>| {
        let mut client = client?;
        let left = deadline.saturating_duration_since(Instant::now());
        client.set_timeout(left.max(Duration::from_millis(1)))?;
        let response = client.response()?;
        Ok(response.status == 200 && is_right(&response))
    };
    clients.into_iter().map(|client| End::of(read(client))).collect()
}

/// Closes the connection with a reset.
pub(crate) fn reset(stream: TcpStream) -> io::Result<()> {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

/// Returns an error with this text.
pub(crate) fn fault(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn each_end_is_counted_as_what_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no",
        ];
        let server = thread::spawn(move || {
            for answer in answers {
                let mut stream = listener.accept().unwrap().0;
                let mut room = [0; 1000];
                assert!(stream.read(&mut room).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
            reset(listener.accept().unwrap().0).unwrap();
        });
        let ends = [(); 4].map(|()| short(port, "/"));
        assert_eq!(ends, [End::Served, End::Wrong, End::Closed, End::Reset]);
        server.join().unwrap();
        assert_eq!(short(port, "/"), End::Refused);
        let figures = Counts::from_iter(ends).figures();
        assert_eq!(figures[0].to_string(), "1 served");
        assert_eq!(figures[1].to_string(), "3 failed (1 reset, 1 closed, 1 wrong)");
        assert!(serves(port, "/", 1).unwrap_err().to_string().contains("1 refused"));
    }
}
