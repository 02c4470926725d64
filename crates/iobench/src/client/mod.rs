//! The load: client threads, each pinned and with its share of the connections.
//!
//! Threads live as long as the group and take one order per slot. While a slot runs the only
//! things that they share with anybody are the start of the measurement, a stop flag, and their
//! own count of warm connections.

pub(crate) mod connection;
mod kernel;
pub(crate) mod message;
pub(crate) mod slices;
pub(crate) mod sockets;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::ValueEnum;

use crate::client::connection::{Connections, Workload};
use crate::client::kernel::KernelSockets;
use crate::client::slices::Tally;
use crate::client::sockets::{Closing, StackSockets};
use crate::error::{Context, Error, Result};
use crate::stack::{self, Kind, Site};
use crate::sys::affinity;
use crate::sys::clock::now_ns;

/// Whose TCP a client's connections use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ClientKind {
    /// The kernel's sockets
    #[default]
    Kernel,
    /// A stack of mTCP over AF_XDP, with as many threads as the server
    Mtcp,
}

impl ClientKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ClientKind::Kernel => "kernel",
            ClientKind::Mtcp => "mtcp",
        }
    }
}

/// A waiting thread looks at the stop flag and the clock at least this often.
const WAIT_MS: i32 = 10;
/// A thread that does not answer for so long is taken for lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// `measure_from` before the coordinator has decided.
const UNDECIDED: u64 = u64::MAX;

/// Written by the coordinator, read by the threads once per wait.
struct Control {
    measure_from_ns: AtomicU64,
    stop: AtomicBool,
}

/// A thread's count of warm connections, on a cache line of its own.
#[repr(align(128))]
struct Warm(AtomicUsize);

/// What a client thread drives: connections in closed loops, and the books about them.
pub(crate) trait ClosedLoops {
    /// Prepares a new slot against a server.
    fn reset(&mut self, address: SocketAddr);
    fn open_all(&mut self);
    fn close_all(&mut self);
    /// Connections that have completed a transaction in this slot.
    fn warm(&self) -> usize;
    /// Starts the first slice at `start_ns`.
    fn begin_measuring(&mut self, start_ns: u64);
    /// Counts the connections that were open but received nothing while it was measured.
    fn count_stalled(&mut self);
    /// Waits for events; returns how many there are to be handled.
    fn wait(&mut self, timeout_ms: i32) -> usize;
    /// Handles the events of the last wait.
    fn handle(&mut self, count: usize, now_ns: u64);
    fn tally(&self) -> &Tally;
    /// Goes on for a moment with what was closed, after the tally was taken, so that the server
    /// hears of it; for who moves the packets himself. True if it is to be called again.
    fn settle(&mut self) -> bool {
        false
    }
}

struct ClientThread {
    orders: Option<Sender<SocketAddr>>,
    tallies: Receiver<Tally>,
    thread_id: i32,
    warm: Arc<Warm>,
    handle: Option<JoinHandle<()>>,
}

/// The client threads for one workload.
pub(crate) struct ClientGroup {
    threads: Vec<ClientThread>,
    control: Arc<Control>,
    connections: usize,
}

impl ClientGroup {
    /// Starts one thread on each CPU, with the connections divided among them.
    pub(crate) fn start(cpus: &[usize], connections: usize, workload: &Workload) -> Result<Self> {
        let workload = workload.clone();
        Self::start_with(cpus, connections, move |index, share| {
            let sockets = KernelSockets::new(&workload)?;
            Ok(Connections::new(sockets, workload.clone(), share, index))
        })
    }

    /// The same over stacks at `site`, one for each thread. Their device is in the network namespace
    /// of the calling thread.
    pub(crate) fn start_on_stacks(
        cpus: &[usize],
        connections: usize,
        workload: &Workload,
        site: &Site,
    ) -> Result<Self> {
        let workload = workload.clone();
        let stacks = Arc::new(stack::start(Kind::USUAL, site, cpus)?);
        Self::start_with(cpus, connections, move |index, share| {
            let sockets = stack::context(&stacks, index)?;
            let sockets = StackSockets::new(sockets, Closing::Reset)?;
            Ok(Connections::new(sockets, workload.clone(), share, index))
        })
    }

    /// The same with loops of any kind, which each thread makes for its number and its share of the
    /// connections.
    pub(crate) fn start_with<L: ClosedLoops>(
        cpus: &[usize],
        connections: usize,
        make: impl Fn(usize, usize) -> Result<L> + Clone + Send + 'static,
    ) -> Result<Self> {
        let control = Arc::new(Control {
            measure_from_ns: AtomicU64::new(UNDECIDED),
            stop: AtomicBool::new(false),
        });
        let mut group = ClientGroup { threads: Vec::new(), control, connections };
        for (index, &cpu) in cpus.iter().enumerate() {
            let share = connections / cpus.len() + usize::from(index < connections % cpus.len());
            group.spawn(index, cpu, share, make.clone())?;
        }
        Ok(group)
    }

    fn spawn<L: ClosedLoops>(
        &mut self,
        index: usize,
        cpu: usize,
        share: usize,
        make: impl Fn(usize, usize) -> Result<L> + Send + 'static,
    ) -> Result<()> {
        let (orders, incoming) = channel();
        let (outgoing, tallies) = channel();
        let (started, starting) = channel();
        let warm = Arc::new(Warm(AtomicUsize::new(0)));
        let (control, thread_warm) = (Arc::clone(&self.control), Arc::clone(&warm));
        let handle = thread::Builder::new()
            .name(format!("client-{index}"))
            .spawn(move || {
                let prepared = affinity::pin_to(cpu).and_then(|()| make(index, share));
                let mut connections = match prepared {
                    Ok(connections) => connections,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let _ = started.send(Ok(affinity::thread_id()));
                let mut next = None;
                while let Some(address) = next.take().or_else(|| incoming.recv().ok()) {
                    connections.reset(address);
                    run_slot(&mut connections, &control, &thread_warm);
                    // The copy is made after the measurement; the next slot starts afresh anyway.
                    if outgoing.send(connections.tally().clone()).is_err() {
                        return;
                    }
                    next = settle(&mut connections, &incoming);
                }
            })
            .context("start a client thread", "raise `ulimit -u`")?;
        let thread_id = starting.recv().unwrap_or_else(|_| {
            Err(Error::setup("a client thread ended at its start", "report this as a bug"))
        })?;
        let (orders, handle) = (Some(orders), Some(handle));
        self.threads.push(ClientThread { orders, tallies, thread_id, warm, handle });
        Ok(())
    }

    /// The kernel's numbers of the threads.
    pub(crate) fn thread_ids(&self) -> Vec<i32> {
        self.threads.iter().map(|thread| thread.thread_id).collect()
    }

    /// Lets all connections open towards a server and run; nothing is measured yet.
    pub(crate) fn begin_slot(&self, address: SocketAddr) {
        self.control.measure_from_ns.store(UNDECIDED, Ordering::Release);
        for thread in &self.threads {
            thread.warm.0.store(0, Ordering::Relaxed);
            if let Some(orders) = &thread.orders {
                // A thread that is gone is noticed when its tally is missing.
                let _ = orders.send(address);
            }
        }
    }

    /// How many connections have not completed a transaction yet in this slot.
    pub(crate) fn cold(&self) -> usize {
        let warm: usize = self.threads.iter().map(|t| t.warm.0.load(Ordering::Relaxed)).sum();
        self.connections.saturating_sub(warm)
    }

    /// Sets the beginning of the first slice, a little in the future. The slot then ends by itself
    /// after the last one.
    pub(crate) fn measure_from(&self, start_ns: u64) {
        self.control.measure_from_ns.store(start_ns, Ordering::Release);
    }

    /// Waits for what the threads recorded in the slot.
    pub(crate) fn finish_slot(&self) -> Result<Vec<Tally>> {
        self.threads
            .iter()
            .map(|thread| {
                thread.tallies.recv_timeout(ANSWER_TIMEOUT).map_err(|_| {
                    Error::setup("a client thread is lost", "run again; report it if it recurs")
                })
            })
            .collect()
    }
}

impl Drop for ClientGroup {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        for thread in &mut self.threads {
            thread.orders = None;
        }
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            let _ = handle.join();
        }
    }
}

/// Lets the loops finish what was closed until there is another order, which it gives, or no group
/// any more.
fn settle(connections: &mut impl ClosedLoops, orders: &Receiver<SocketAddr>) -> Option<SocketAddr> {
    loop {
        match orders.try_recv() {
            Ok(address) => return Some(address),
            Err(TryRecvError::Empty) if connections.settle() => {}
            Err(_) => return None,
        }
    }
}

/// From the first connect to the last close.
fn run_slot(connections: &mut impl ClosedLoops, control: &Control, warm: &Warm) {
    let total_ns = connections.tally().total_ns();
    let (mut start_ns, mut end_ns) = (UNDECIDED, UNDECIDED);
    connections.open_all();
    loop {
        let count = connections.wait(WAIT_MS);
        let now_ns = now_ns();
        if start_ns == UNDECIDED {
            warm.0.store(connections.warm(), Ordering::Relaxed);
            start_ns = control.measure_from_ns.load(Ordering::Acquire);
            if start_ns != UNDECIDED {
                connections.begin_measuring(start_ns);
                end_ns = start_ns + total_ns;
            }
        }
        if now_ns >= end_ns || control.stop.load(Ordering::Relaxed) {
            break;
        }
        connections.handle(count, now_ns);
    }
    if start_ns != UNDECIDED && now_ns() >= end_ns {
        connections.count_stalled();
    }
    connections.close_all();
}
