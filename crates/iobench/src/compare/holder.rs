//! A thread that keeps the idle connections of one server open.
//!
//! It has a descriptor table of its own, so that the limit of open files bounds the idle
//! connections of each server and not the sum over all servers. It sleeps unless it opens, checks
//! or closes connections, so that idle connections take no CPU time from the measurement.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::error::{Context, Error, Result};
use crate::open::connect::{Connecting, Opening, Route};
use crate::sys::descriptors::spawn_with_own_table;
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::signals::Signals;
use crate::sys::socket::CongestionControl;

/// Most connections that a check uses for another exchange.
pub(crate) const ASKED: usize = 100;
const EVENTS_PER_WAIT: usize = 1_024;

/// Open connections without traffic. Dropping it closes them by RST.
pub(crate) struct Holder {
    /// Each message orders a check of the connections; dropping the sender ends the thread.
    orders: Option<Sender<()>>,
    /// The first message is the result of opening, the others are the results of checks.
    answers: Receiver<Result<Option<String>>>,
    handle: Option<JoinHandle<()>>,
}

impl Holder {
    /// Opens `count` connections and makes one exchange on each.
    pub(crate) fn open(route: Route, count: usize, opening: Opening) -> Result<Holder> {
        let (orders, incoming) = channel();
        let (outgoing, answers) = channel();
        let thread = move |table: Result<()>| {
            let opened = table.and_then(|()| Connections::open(route, count, opening));
            let (connections, answer) = match opened {
                Ok(connections) => (Some(connections), Ok(None)),
                Err(error) => (None, Err(error)),
            };
            // After an interruption no thread waits for the answer.
            let mut is_awaited = outgoing.send(answer).is_ok();
            while let (Some(connections), Ok(()), true) =
                (&connections, incoming.recv(), is_awaited)
            {
                is_awaited = outgoing.send(connections.check()).is_ok();
            }
        };
        let handle = Some(spawn_with_own_table("idle connections", thread)?);
        let holder = Holder { orders: Some(orders), answers, handle };
        holder.answer()?;
        Ok(holder)
    }

    /// Checks that all connections are open and answer; returns what is wrong.
    pub(crate) fn check(&self) -> Result<Option<String>> {
        if let Some(orders) = &self.orders {
            // If the thread has ended, its answer will be missing, which is reported.
            let _ = orders.send(());
        }
        self.answer()
    }

    fn answer(&self) -> Result<Option<String>> {
        self.answers.recv().unwrap_or_else(|_| {
            Err(Error::setup("the thread of idle connections has ended", "report this as a bug"))
        })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// The state of the holder thread.
struct Connections {
    sockets: Vec<OwnedFd>,
    route: Route,
    opening: Opening,
    /// The signals that end the run also end opening and checking.
    signals: Signals,
}

impl Connections {
    fn open(route: Route, count: usize, opening: Opening) -> Result<Connections> {
        let signals = Signals::block();
        let mut connections = Connections { sockets: Vec::new(), route, opening, signals };
        connections.sockets =
            connections.connecting(|connecting| connecting.establish(count, |_| ()))?;
        Ok(connections)
    }

    fn connecting<T>(&self, action: impl FnOnce(&Connecting<'_>) -> Result<T>) -> Result<T> {
        action(&Connecting {
            route: &self.route,
            opening: self.opening,
            request: &self.opening.request(),
            congestion: &CongestionControl::pick(),
            signals: &self.signals,
        })
    }

    fn check(&self) -> Result<Option<String>> {
        let idle = self.still_idle()?;
        let all = self.sockets.len();
        if idle.len() < all {
            return Ok(Some(format!(
                "{} of {all} idle connections had ended, or received what they had not asked for",
                all - idle.len()
            )));
        }
        let asked: Vec<&OwnedFd> =
            idle.iter().step_by(all.div_ceil(ASKED).max(1)).copied().collect();
        match self.connecting(|connecting| connecting.check(&asked)) {
            Ok(()) => Ok(None),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => Ok(Some(format!(
                "of {} idle connections that were asked again not all answered: {error}",
                asked.len()
            ))),
        }
    }

    /// Returns the connections without an event since they were last used.
    fn still_idle(&self) -> Result<Vec<&OwnedFd>> {
        let epoll = Epoll::new()?;
        for (number, socket) in self.sockets.iter().enumerate() {
            let interest = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
            epoll
                .add(socket.as_raw_fd(), number as u64, interest)
                .context("watch a connection", "raise fs.epoll.max_user_watches")?;
        }
        let mut events = event_buffer(EVENTS_PER_WAIT);
        let mut is_idle = vec![true; self.sockets.len()];
        loop {
            let count = epoll.wait(&mut events, 0);
            if count == 0 {
                let idle = self.sockets.iter().zip(is_idle).filter(|(_, is_idle)| *is_idle);
                return Ok(idle.map(|(socket, _)| socket).collect());
            }
            for event in &events[..count] {
                is_idle[event.u64 as usize] = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::exchange::Exchange;

    const EXCHANGE: Exchange = Exchange { request_bytes: 8, response_bytes: 8 };

    /// Opens connections to a test server that has answered each of them once; returns them with
    /// the server's ends.
    fn held(count: usize) -> (Holder, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sources = vec![[127, 0, 0, 2].into(), [127, 0, 0, 3].into()];
        let route = Route { target: listener.local_addr().unwrap(), sources };
        let server = std::thread::spawn(move || {
            let accepted: Vec<TcpStream> = (0..count)
                .map(|_| {
                    let mut stream = listener.accept().unwrap().0;
                    answer(&mut stream);
                    stream
                })
                .collect();
            accepted
        });
        let holder = Holder::open(route, count, Opening::Exchange(EXCHANGE)).unwrap();
        (holder, server.join().unwrap())
    }

    fn answer(stream: &mut TcpStream) {
        let mut request = [0; EXCHANGE.request_bytes];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(&request).unwrap();
    }

    #[test]
    fn connections_that_answer_again_are_in_order_and_are_closed_in_the_end() {
        let (holder, mut streams) = held(7);
        let mut sources: Vec<String> =
            streams.iter().map(|stream| stream.peer_addr().unwrap().ip().to_string()).collect();
        sources.sort_unstable();
        sources.dedup();
        assert_eq!(sources, ["127.0.0.2", "127.0.0.3"]);
        for _ in 0..2 {
            std::thread::scope(|scope| {
                scope.spawn(|| streams.iter_mut().for_each(answer));
                assert_eq!(holder.check().unwrap(), None);
            });
        }
        drop(holder);
        let ended = |stream: &mut TcpStream| !stream.read(&mut [0]).is_ok_and(|count| count > 0);
        assert!(streams.iter_mut().all(ended));
    }

    #[test]
    fn connections_that_ended_or_received_something_are_counted() {
        let (holder, mut streams) = held(5);
        streams.truncate(4);
        streams[0].write_all(b"x").unwrap();
        let problem = holder.check().unwrap().unwrap();
        assert!(problem.starts_with("2 of 5 idle connections had ended"), "{problem}");
    }

    #[test]
    fn a_connection_that_ends_instead_of_answering_is_named() {
        let (holder, mut streams) = held(3);
        let mut ending = streams.remove(1);
        std::thread::scope(|scope| {
            // Reads the request first, because closing with unread bytes would send a RST.
            scope.spawn(move || ending.read_exact(&mut [0; EXCHANGE.request_bytes]).unwrap());
            let problem = holder.check().unwrap().unwrap();
            assert!(problem.starts_with("of 3 idle connections that were asked"), "{problem}");
        });
    }

    #[test]
    fn a_server_that_ends_a_connection_at_once_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let route = Route { target: listener.local_addr().unwrap(), sources: Vec::new() };
        let server = std::thread::spawn(move || drop(listener.accept()));
        let error = Holder::open(route, 1, Opening::Exchange(EXCHANGE)).err().unwrap().to_string();
        assert!(error.contains("exchange on connection 0"), "{error}");
        server.join().unwrap();
    }
}
