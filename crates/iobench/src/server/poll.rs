//! poll(2): every call passes the array of all connections, and every return has to search it, so
//! the cost of a wake-up grows with the number of connections.

use rustix::net::SocketFlags;

use crate::error::{Context, Result};
use crate::server::listener::Listening;
use crate::server::stream::{Next, Stream, accept};
use crate::server::{READ_BUFFER_BYTES, Server, ThreadContext};
use crate::sys::check;

/// The server: a dense array per thread; the last connection moves to the index of one that ends.
pub(crate) struct PollServer;

/// Index of the listener; the array starts with it and the descriptor that signals the end.
const LISTENER: usize = 0;
const STOP: usize = 1;
const CONNECTIONS: usize = 2;

impl Server for PollServer {
    fn name(&self) -> &'static str {
        "poll"
    }

    fn describe(&self) -> &'static str {
        "poll loop per thread over a dense array, one listening socket shared by all"
    }

    fn listening(&self) -> Listening {
        Listening::Shared
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        let polled = [context.shared_listener(), context.stop()].map(watched).to_vec();
        let buffer = vec![0; READ_BUFFER_BYTES];
        Loop { context, polled, streams: Vec::new(), buffer }.run()
    }
}

fn watched(fd: libc::c_int) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

struct Loop<'a, 'b> {
    context: &'a mut ThreadContext<'b>,
    polled: Vec<libc::pollfd>,
    /// `streams[i]` belongs to `polled[CONNECTIONS + i]`.
    streams: Vec<Stream>,
    buffer: Vec<u8>,
}

impl Loop<'_, '_> {
    fn run(&mut self) -> Result<()> {
        self.context.ready();
        loop {
            self.context.counters.system_calls += 1;
            self.context.publish();
            let count = self.polled.len() as libc::nfds_t;
            // SAFETY: the array is valid for its length; -1 waits without limit.
            match check(unsafe { libc::poll(self.polled.as_mut_ptr(), count, -1) }) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                result => result.context("poll", "raise the limit of open files (ulimit -n)")?,
            };
            if self.polled[STOP].revents != 0 {
                return Ok(());
            }
            // Backwards, so that the connection that moves into a free place was already handled.
            for index in (0..self.streams.len()).rev() {
                if self.polled[CONNECTIONS + index].revents != 0 {
                    self.serve(index);
                }
            }
            if self.polled[LISTENER].revents != 0 {
                self.accept_all()?;
            }
        }
    }

    fn accept_all(&mut self) -> Result<()> {
        let listener = self.context.shared_listener();
        let counters = &mut self.context.counters;
        while let Some(stream) = accept(listener, SocketFlags::NONBLOCK, counters)? {
            self.polled.push(watched(stream.raw()));
            self.streams.push(stream);
        }
        Ok(())
    }

    fn serve(&mut self, index: usize) {
        let (stream, counters) = (&mut self.streams[index], &mut self.context.counters);
        let responder = self.context.responder;
        let next = if stream.is_blocked() {
            stream.write(responder, counters)
        } else {
            stream.read(&mut self.buffer, responder, counters)
        };
        match next {
            Next::Read(_) => self.polled[CONNECTIONS + index].events = libc::POLLIN,
            Next::Write => self.polled[CONNECTIONS + index].events = libc::POLLOUT,
            Next::End => {
                self.polled.swap_remove(CONNECTIONS + index);
                self.streams.swap_remove(index).close(counters);
            }
        }
    }
}
