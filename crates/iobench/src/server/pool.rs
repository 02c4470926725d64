//! A pool of threads with blocking calls over one queue of readable connections.
//!
//! The pinned threads accept and watch. A connection that becomes readable is no longer watched
//! (EPOLLONESHOT) and is queued; a worker takes it, reads once, answers, and rearms it. So no
//! worker waits for a request, but one blocks while a peer does not read.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::net::SocketFlags;

use crate::error::{Context, Result};
use crate::server::listener::Listening;
use crate::server::response::Responder;
use crate::server::shared::{Counters, ThreadBlock};
use crate::server::stream::{Next, Stream, Table, accept};
use crate::server::thread::OpenSockets;
use crate::server::{CONNECTION_BUFFER_BYTES, Server, ThreadContext, limits};
use crate::sys::epoll::{Epoll, event_buffer};

/// Number of workers that each pinned thread starts on its CPU.
const WORKERS: usize = 16;
const EVENTS_PER_WAIT: usize = 512;
const LISTENER_TOKEN: u64 = u64::MAX;
const STOP_TOKEN: u64 = u64::MAX - 1;
const ONCE: libc::c_int = libc::EPOLLIN | libc::EPOLLONESHOT;

/// The server: blocking workers behind a queue of readable connections.
pub(crate) struct PoolServer;

impl Server for PoolServer {
    fn name(&self) -> &'static str {
        "blocking-pool"
    }

    fn describe(&self) -> &'static str {
        "16 threads for each CPU with blocking calls over one queue of readable connections"
    }

    fn limits(&self) -> &'static str {
        "ulimit -n; 16 requests at work for each CPU, and as many peers that do not read stop it"
    }

    fn listening(&self) -> Listening {
        Listening::Shared
    }

    fn check_connections(&self, connections: usize) -> Result<()> {
        limits::check_files(connections)?;
        limits::check_tasks(WORKERS, "threads")
    }

    fn works_in_its_threads(&self) -> bool {
        false
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        let queue = context.queue;
        let station = AcceptorConnections {
            epoll: Epoll::new()?,
            idle: Mutex::default(),
            open: OpenSockets::default(),
        };
        let (station, block, responder) = (Arc::new(station), context.block, context.responder);
        thread::scope(|scope| {
            let started = (0..WORKERS).try_for_each(|_| {
                let worker = thread::Builder::new().name("worker".to_owned());
                worker.spawn_scoped(scope, || work(queue, responder, block)).map(|_| ())
            });
            let result = started
                .context("start a worker thread", "raise `ulimit -u`")
                .and_then(|()| accept_and_watch(context, &station));
            queue.end();
            station.open.shut_down();
            result
        })
    }
}

/// The connections that one pinned thread has accepted.
struct AcceptorConnections {
    epoll: Epoll,
    /// The watched connections, by token.
    idle: Mutex<Table>,
    open: OpenSockets,
}

impl AcceptorConnections {
    fn idle(&self) -> MutexGuard<'_, Table> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A readable connection in the queue.
struct Job {
    station: Arc<AcceptorConnections>,
    index: usize,
    stream: Stream,
}

/// The queue of one server, shared by all its threads.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    waiting: usize,
    ended: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job, counters: &mut Counters) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        if state.waiting > 0 {
            drop(state);
            counters.system_calls += 1;
            self.filled.notify_one();
        }
    }

    /// Waits for a connection; `None` at the end. `report` is called before sleeping.
    fn pop(&self, counters: &mut Counters, mut report: impl FnMut(&Counters)) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            counters.system_calls += 1;
            report(counters);
            state.waiting += 1;
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }

    fn end(&self) {
        self.lock().ended = true;
        self.filled.notify_all();
    }
}

/// Returns the pinned thread's loop.
fn accept_and_watch(
    context: &mut ThreadContext<'_>,
    station: &Arc<AcceptorConnections>,
) -> Result<()> {
    let (listener, stop) = (context.shared_listener(), context.stop());
    for (fd, token) in [(listener, LISTENER_TOKEN), (stop, STOP_TOKEN)] {
        station
            .epoll
            .add(fd, token, libc::EPOLLIN)
            .context("watch a descriptor", "raise fs.epoll.max_user_watches")?;
    }
    let mut events = event_buffer(EVENTS_PER_WAIT);
    context.ready();
    loop {
        context.counters.system_calls += 1;
        context.publish();
        let count = station.epoll.wait(&mut events, -1);
        for event in &events[..count] {
            match event.u64 {
                STOP_TOKEN => return Ok(()),
                LISTENER_TOKEN => accept_all(context, station)?,
                token => {
                    let index = token as usize;
                    let Some(stream) = station.idle().lend(index) else { continue };
                    let job = Job { station: Arc::clone(station), index, stream };
                    context.queue.push(job, &mut context.counters);
                }
            }
        }
    }
}

fn accept_all(context: &mut ThreadContext<'_>, station: &AcceptorConnections) -> Result<()> {
    let listener = context.shared_listener();
    let counters = &mut context.counters;
    while let Some(stream) = accept(listener, SocketFlags::empty(), counters)? {
        let fd = stream.raw();
        station.open.lock().insert(fd);
        let index = station.idle().insert(stream);
        counters.system_calls += 1;
        if station.epoll.add(fd, index as u64, ONCE).is_err() {
            counters.errors += 1;
            let stream = station.idle().take(index);
            stream.into_iter().for_each(|stream| station.open.close(stream, counters));
        }
    }
    Ok(())
}

/// A worker's loop.
fn work(queue: &Queue, responder: &Responder, block: &ThreadBlock) {
    let mut buffer = vec![0; CONNECTION_BUFFER_BYTES];
    let (mut counters, mut shown) = (Counters::default(), Counters::default());
    let mut report = |counters: &Counters| {
        block.add(&counters.since(&shown));
        shown = *counters;
    };
    while let Some(job) = queue.pop(&mut counters, &mut report) {
        job.serve(&mut buffer, responder, &mut counters);
        report(&counters);
    }
    report(&counters);
}

impl Job {
    /// Reads once and answers.
    fn serve(mut self, buffer: &mut [u8], responder: &Responder, counters: &mut Counters) {
        if let Next::Read(_) = self.stream.read(buffer, responder, counters) {
            self.give_back(counters);
        } else {
            self.station.idle().release(self.index);
            self.station.open.close(self.stream, counters);
        }
    }

    /// Rearms the connection. It must be in the table before that, because another thread may take
    /// it at once.
    fn give_back(self, counters: &mut Counters) {
        let Job { station, index, stream } = self;
        let fd = stream.raw();
        station.idle().give_back(index, stream);
        counters.system_calls += 1;
        if station.epoll.modify(fd, index as u64, ONCE).is_err() {
            counters.errors += 1;
            let stream = station.idle().take(index);
            stream.into_iter().for_each(|stream| station.open.close(stream, counters));
        }
    }
}
