//! The server's end of the memory device: in the clients' thread, or in a thread of its own.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use mtcp::Mtcp;

use crate::ceiling::{PORT, SERVER};
use crate::client::slices::Tally;
use crate::client::{ClosedLoops, Order};
use crate::error::{Context, Error, Result};
use crate::exchange::Service;
use crate::server::mtcp::EchoLoop;
use crate::server::response::Responder;
use crate::server::shared::{Counters, Page};
use crate::stack;
use crate::sys::affinity;
use crate::sys::clock::now_ns;
use crate::sys::signals::Event;

/// How long both ends continue after the last connection was closed, so that all can finish.
const SETTLING_NS: u64 = 100_000_000;

fn echo_loop(mtcp: &Mtcp) -> Result<EchoLoop> {
    EchoLoop::new(stack::context(mtcp, 0)?, (SERVER, PORT).into())
}

/// Clients whose thread also runs the server: both ends run alternately.
pub(super) struct BothEnds<L> {
    near: L,
    far: EchoLoop,
    responder: Responder,
    counters: Counters,
    page: Arc<Page>,
    /// Set when the far end's device has failed.
    failure: Option<String>,
}

impl<L: ClosedLoops> BothEnds<L> {
    pub(super) fn new(near: L, server: &Mtcp, page: Arc<Page>) -> Result<BothEnds<L>> {
        Ok(BothEnds {
            near,
            far: echo_loop(server)?,
            responder: Responder::new(Service::default()),
            counters: Counters::default(),
            page,
            failure: None,
        })
    }

    fn serve(&mut self) -> usize {
        match self.far.turn(&self.responder, &mut self.counters) {
            Ok(count) => count,
            Err(error) => {
                self.failure = Some(error.to_string());
                0
            }
        }
    }
}

impl<L: ClosedLoops> ClosedLoops for BothEnds<L> {
    fn reset(&mut self, order: &Order) {
        self.near.reset(order);
    }

    fn open_all(&mut self) {
        self.near.open_all();
    }

    fn close_all(&mut self) {
        self.near.close_all();
    }

    fn warm(&self) -> usize {
        self.near.warm()
    }

    fn begin_measuring(&mut self, start_ns: u64) {
        self.near.begin_measuring(start_ns);
    }

    fn end_measuring(&mut self, end_ns: u64) {
        self.near.end_measuring(end_ns);
    }

    fn overdue(&self) -> usize {
        self.near.overdue()
    }

    fn count_unanswered(&mut self, now_ns: u64) {
        self.near.count_unanswered(now_ns);
    }

    /// Never sleeps: only this thread can produce the next event.
    fn wait(&mut self, _timeout_ms: i32) -> usize {
        self.serve();
        self.near.wait(0)
    }

    fn handle(&mut self, count: usize, now_ns: u64) {
        self.near.handle(count, now_ns);
    }

    fn tally(&self) -> &Tally {
        self.near.tally()
    }

    fn progress_closes(&mut self) -> bool {
        let end_ns = now_ns() + SETTLING_NS;
        while self.failure.is_none() && now_ns() < end_ns {
            self.serve();
            // The connections of these events no longer exist.
            self.near.wait(0);
        }
        self.counters.errors += u64::from(self.failure.is_some());
        self.page.block(0).publish(&self.counters);
        false
    }
}

/// The server in a thread of its own. It ends when dropped.
pub(super) struct ServerThread {
    stop: Arc<Event>,
    id: i32,
    handle: Option<JoinHandle<Result<()>>>,
}

impl ServerThread {
    /// Starts the thread on a CPU and waits until it serves.
    pub(super) fn start(mtcp: Arc<Mtcp>, cpu: usize, page: Arc<Page>) -> Result<ServerThread> {
        let stop = Arc::new(Event::new()?);
        let ending = Arc::clone(&stop);
        let (started, starting) = channel();
        let handle = thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || {
                let ready = affinity::pin_to(cpu).and_then(|()| echo_loop(&mtcp));
                let mut server = match ready {
                    Ok(server) => server,
                    Err(error) => {
                        let _ = started.send(Err(error));
                        return Ok(());
                    }
                };
                let _ = started.send(Ok(affinity::thread_id()));
                let responder = Responder::new(Service::default());
                let mut counters = Counters::default();
                let publish = |counters: &Counters| page.block(0).publish(counters);
                server.run(ending.raw(), &responder, &mut counters, publish)
            })
            .context("start the server's thread", "raise `ulimit -u`")?;
        let id = starting.recv().unwrap_or_else(|_| {
            Err(Error::setup("the server's thread ended at its start", "report this as a bug"))
        })?;
        Ok(ServerThread { stop, id, handle: Some(handle) })
    }

    /// Returns the thread's kernel id.
    pub(super) fn id(&self) -> i32 {
        self.id
    }

    /// Stops the thread; returns its error, if there was one.
    pub(super) fn end(mut self) -> Option<String> {
        self.stop.raise();
        match self.handle.take()?.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the server's thread panicked".to_owned()),
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}
