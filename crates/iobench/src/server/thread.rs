//! A thread per connection with blocking calls, the model without a state machine.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::net::{Shutdown, SocketFlags, shutdown};

use crate::error::Result;
use crate::server::limits;
use crate::server::listener::Listening;
use crate::server::response::Responder;
use crate::server::shared::{Counters, ThreadBlock};
use crate::server::stream::{Stream, accept};
use crate::server::{CONNECTION_BUFFER_BYTES, Server, ThreadContext};
use crate::sys::borrow;
use crate::sys::signals::wait_for_any;

/// Stack size: enough for the deepest calls of a debug build; the read buffer is elsewhere.
const STACK_BYTES: usize = 64 * 1024;

/// The server. Accepting threads are pinned; those of the connections stay on the same CPU.
pub(crate) struct ThreadServer;

impl Server for ThreadServer {
    fn name(&self) -> &'static str {
        "thread"
    }

    fn describe(&self) -> &'static str {
        "a thread per connection with blocking calls, on the CPU of the thread that accepted it"
    }

    fn limits(&self) -> &'static str {
        "stacks of 64 KiB; ulimit -u, pids.max, threads-max, pid_max and a quarter of \
         vm.max_map_count"
    }

    fn listening(&self) -> Listening {
        Listening::Shared
    }

    fn check_connections(&self, connections: usize) -> Result<()> {
        limits::check_files(connections)?;
        limits::check_tasks(connections, "threads")?;
        limits::check_stacks(connections)
    }

    fn works_in_its_threads(&self) -> bool {
        false
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        let open = OpenSockets::default();
        let (block, responder) = (context.block, context.responder);
        thread::scope(|scope| {
            context.ready();
            let result = 'serving: loop {
                context.publish();
                context.counters.system_calls += 1;
                let listener = context.shared_listener();
                if wait_for_any(&[context.stop(), listener]) == 0 {
                    break Ok(());
                }
                loop {
                    let stream = match accept(listener, SocketFlags::empty(), &mut context.counters)
                    {
                        Ok(Some(stream)) => stream,
                        Ok(None) => break,
                        Err(error) => break 'serving Err(error),
                    };
                    let fd = stream.raw();
                    open.lock().insert(fd);
                    context.counters.system_calls += 1;
                    let open = &open;
                    let started = thread::Builder::new()
                        .stack_size(STACK_BYTES)
                        .spawn_scoped(scope, move || serve(stream, responder, block, open));
                    if started.is_err() {
                        // The thread could not be started: the connection is closed with the
                        // dropped closure.
                        open.lock().remove(&fd);
                        context.counters.errors += 1;
                        context.counters.closed += 1;
                    }
                    context.publish();
                }
            };
            open.shut_down();
            result
        })
    }
}

/// Serves one connection to its end.
fn serve(mut stream: Stream, responder: &Responder, block: &ThreadBlock, open: &OpenSockets) {
    let mut buffer = vec![0; CONNECTION_BUFFER_BYTES];
    let mut shown = Counters::default();
    let mut counters = Counters::default();
    stream.serve(&mut buffer, responder, &mut counters, |counters| {
        block.add(&counters.since(&shown));
        shown = *counters;
    });
    open.close(stream, &mut counters);
    block.add(&counters.since(&shown));
}

/// The sockets of connections, whose threads may be blocked; to wake them up at the end.
#[derive(Default)]
pub(crate) struct OpenSockets(Mutex<BTreeSet<RawFd>>);

impl OpenSockets {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeSet<RawFd>> {
        // A set of numbers is valid even if a thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a connection under the lock, so that `shut_down` never uses a descriptor number that
    /// has been reused.
    pub(crate) fn close(&self, stream: Stream, counters: &mut Counters) {
        let mut open = self.lock();
        open.remove(&stream.raw());
        stream.close(counters);
    }

    /// Makes every blocked call return.
    pub(crate) fn shut_down(&self) {
        for &fd in self.lock().iter() {
            // It is open, because it leaves the set under the same lock.
            let _ = shutdown(borrow(fd), Shutdown::Both);
        }
    }
}
