//! Generates the closed-loop load: client threads, each pinned to a CPU and with its share of the
//! connections.
//!
//! Threads live as long as the group and take one order per slot. During a slot they share only the
//! start of the measurement, a stop flag, and each thread's count of warm connections.

pub(crate) mod connections;
pub(crate) mod faults;
pub(crate) mod mix;
pub(crate) mod protocol;
pub(crate) mod slices;
pub(crate) mod sockets;
pub(crate) mod warm_up;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::ValueEnum;

use crate::client::connections::Connections;
use crate::client::protocol::Protocol;
use crate::client::protocol::echo::Echo;
use crate::client::protocol::filler::Filler;
use crate::client::slices::{Slicing, Tally};
use crate::client::sockets::kernel::{KernelSockets, Options};
use crate::client::sockets::stack::on_stacks;
use crate::client::sockets::{Ending, Sockets};
use crate::error::{Context, Error, Result};
use crate::exchange::Exchange;
use crate::stack::Site;
use crate::sys::affinity;
use crate::sys::clock::now_ns;
use crate::sys::socket::CongestionControl;

/// TCP implementation of a client's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ClientKind {
    /// The kernel's sockets
    #[default]
    Kernel,
    /// User-level TCP (`mtcp`) over AF_XDP, with as many threads as the server
    Mtcp,
}

impl ClientKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ClientKind::Kernel => "kernel",
            ClientKind::Mtcp => "mtcp",
        }
    }

    /// Splits `SERVER/CLIENT`; the client of `SERVER` alone is `usual`.
    pub(crate) fn split(text: &str, usual: ClientKind) -> Result<(&str, ClientKind)> {
        let Some((server, client)) = text.split_once('/') else { return Ok((text, usual)) };
        let client = ClientKind::from_str(client, false).map_err(|_| {
            Error::setup(
                format!("unknown client `{client}`"),
                format!("write `{server}/kernel` or `{server}/mtcp`"),
            )
        })?;
        Ok((server, client))
    }

    /// Returns the label of a server with these clients.
    pub(crate) fn label(self, server: &str) -> String {
        match self {
            ClientKind::Kernel => server.to_owned(),
            ClientKind::Mtcp => format!("{server}/{}", self.name()),
        }
    }
}

/// The work of every connection: exchanges of one size.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// Transactions per connection; 0 keeps connections for the whole slot.
    pub(crate) transactions: u32,
    pub(crate) exchange: Exchange,
    pub(crate) congestion: CongestionControl,
    pub(crate) slicing: Slicing,
}

/// The parameters of one slot for the client threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) address: SocketAddr,
    /// The server answers as iobench's own do: with known filler where it does not echo.
    pub(crate) is_ours: bool,
    /// How long after the slot the answers to requests without progress for long are awaited, in
    /// nanoseconds.
    pub(crate) drain_limit_ns: u64,
}

impl Order {
    /// Returns an order for a server on a path without packet loss.
    pub(crate) fn new(address: SocketAddr, is_ours: bool) -> Order {
        Order { address, is_ours, drain_limit_ns: TIME_LIMIT_NS }
    }
}

/// A message that fits into one segment on any path is never delayed by Nagle's algorithm, because
/// nothing is in flight when it is sent. Only longer messages get TCP_NODELAY.
const SINGLE_SEGMENT_BYTES: usize = 512;
/// A request that is still unanswered this long after a slot is lost: by then any working server
/// has had CPU time, also on a machine that is busy with other programs.
const TIME_LIMIT_NS: u64 = 1_000_000_000;
/// Longest wait of a thread before it reads the stop flag and the clock.
const WAIT_MS: i32 = 10;
/// Time-out after which a thread that does not answer counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Value of `measure_from_ns` before the coordinator has set it.
const UNDECIDED: u64 = u64::MAX;

/// State that the coordinator writes and the threads read once per wait.
struct Control {
    measure_from_ns: AtomicU64,
    /// When the slot ends, if that is before its last slice.
    end_ns: AtomicU64,
    stop: AtomicBool,
}

/// A thread's count of warm connections, on a cache line of its own.
#[repr(align(128))]
struct Warm(AtomicUsize);

/// The connections of one client thread in closed loops, with what is recorded of them.
pub(crate) trait ClosedLoops {
    /// Prepares a new slot.
    fn reset(&mut self, order: &Order);
    fn open_all(&mut self);
    fn close_all(&mut self);
    /// Connections that have completed a transaction in this slot.
    fn warm(&self) -> usize;
    /// Starts the first slice at `start_ns`.
    fn begin_measuring(&mut self, start_ns: u64);
    /// Ends the last slice: records the ages of the open requests and makes no more requests.
    fn end_measuring(&mut self, end_ns: u64);
    /// Returns the number of open requests that made no progress for long before the measured time
    /// ended.
    fn overdue(&self) -> usize;
    /// Counts these requests as lost.
    fn count_unanswered(&mut self, now_ns: u64);
    /// Waits for events; returns their number.
    fn wait(&mut self, timeout_ms: i32) -> usize;
    /// Handles the events of the last wait.
    fn handle(&mut self, count: usize, now_ns: u64);
    fn tally(&self) -> &Tally;
    /// Continues closing connections for a moment after the tally was taken, so that the server
    /// receives the FINs; for sockets whose stack runs in the calling thread. True if it is to be
    /// called again.
    fn progress_closes(&mut self) -> bool {
        false
    }
}

struct ClientThread {
    orders: Option<Sender<Order>>,
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
    /// Starts one thread on each CPU over the kernel's sockets and divides the connections among
    /// them.
    pub(crate) fn start(cpus: &[usize], connections: usize, workload: &Workload) -> Result<Self> {
        let options = Options {
            ending: Ending::Reset,
            congestion: workload.congestion.clone(),
            no_delay: workload.exchange.request_bytes > SINGLE_SEGMENT_BYTES,
        };
        let sockets = move |_| KernelSockets::new(options.clone());
        Self::start_exchanging(cpus, connections, workload, sockets)
    }

    /// Starts the same threads over stacks at `site`, one stack for each. Their device is in the
    /// network namespace of the calling thread.
    pub(crate) fn start_on_stacks(
        cpus: &[usize],
        connections: usize,
        workload: &Workload,
        site: &Site,
    ) -> Result<Self> {
        let sockets = on_stacks(site, cpus, Ending::Reset)?;
        Self::start_exchanging(cpus, connections, workload, sockets)
    }

    fn start_exchanging<S: Sockets>(
        cpus: &[usize],
        connections: usize,
        workload: &Workload,
        sockets: impl Fn(usize) -> Result<S> + Clone + Send + 'static,
    ) -> Result<Self> {
        let Workload { transactions, exchange, slicing, .. } = *workload;
        if exchange.is_echo() {
            let echo = move |index| Echo::new(exchange.request_bytes, transactions, index);
            Self::start_speaking(cpus, connections, slicing, sockets, echo)
        } else {
            let filler = move |_| Filler::new(exchange, transactions);
            Self::start_speaking(cpus, connections, slicing, sockets, filler)
        }
    }

    /// Starts the same threads with sockets and a protocol that each thread makes from its number.
    pub(crate) fn start_speaking<S: Sockets, P: Protocol>(
        cpus: &[usize],
        connections: usize,
        slicing: Slicing,
        sockets: impl Fn(usize) -> Result<S> + Clone + Send + 'static,
        protocol: impl Fn(usize) -> P + Clone + Send + 'static,
    ) -> Result<Self> {
        Self::start_with(cpus, connections, move |index, share| {
            Ok(Connections::new(sockets(index)?, protocol(index), share, slicing))
        })
    }

    /// Starts the same threads with loops of any kind, which each thread makes from its number and
    /// its share of the connections.
    pub(crate) fn start_with<L: ClosedLoops>(
        cpus: &[usize],
        connections: usize,
        make: impl Fn(usize, usize) -> Result<L> + Clone + Send + 'static,
    ) -> Result<Self> {
        let control = Arc::new(Control {
            measure_from_ns: AtomicU64::new(UNDECIDED),
            end_ns: AtomicU64::new(UNDECIDED),
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
                while let Some(order) = next.take().or_else(|| incoming.recv().ok()) {
                    connections.reset(&order);
                    run_slot(&mut connections, &order, &control, &thread_warm);
                    // Copied after the measurement; the next slot clears the tally in any case.
                    if outgoing.send(connections.tally().clone()).is_err() {
                        return;
                    }
                    next = progress_closes(&mut connections, &incoming);
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

    /// Returns the kernel ids of the threads.
    pub(crate) fn thread_ids(&self) -> Vec<i32> {
        self.threads.iter().map(|thread| thread.thread_id).collect()
    }

    /// Lets all connections open and run; the measurement does not start yet.
    pub(crate) fn begin_slot(&self, order: Order) {
        self.control.measure_from_ns.store(UNDECIDED, Ordering::Release);
        for thread in &self.threads {
            thread.warm.0.store(0, Ordering::Relaxed);
            if let Some(orders) = &thread.orders {
                // If a thread has ended, its tally will be missing, which is reported.
                let _ = orders.send(order);
            }
        }
    }

    /// Returns the number of connections that have not completed a transaction in this slot yet.
    pub(crate) fn cold(&self) -> usize {
        let warm: usize = self.threads.iter().map(|t| t.warm.0.load(Ordering::Relaxed)).sum();
        self.connections.saturating_sub(warm)
    }

    /// Sets the start of the first slice, a little in the future. The slot ends by itself after the
    /// last slice.
    pub(crate) fn measure_from(&self, start_ns: u64) {
        self.control.measure_from_ns.store(start_ns, Ordering::Release);
    }

    /// Ends this slot early, and all later ones.
    pub(crate) fn end_early(&self, end_ns: u64) {
        self.control.end_ns.store(end_ns, Ordering::Relaxed);
    }

    /// Waits for the threads' tallies of the slot.
    pub(crate) fn finish_slot(&self) -> Result<Vec<Tally>> {
        self.threads
            .iter()
            .map(|thread| {
                thread.tallies.recv_timeout(ANSWER_TIMEOUT).map_err(|_| {
                    Error::setup("a client thread has ended", "run again; report it if it recurs")
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

/// Continues closing connections until the next order arrives, which it returns, or the group is
/// dropped (`None`) or all are closed (`None`).
fn progress_closes(connections: &mut impl ClosedLoops, orders: &Receiver<Order>) -> Option<Order> {
    loop {
        match orders.try_recv() {
            Ok(order) => return Some(order),
            Err(TryRecvError::Empty) if connections.progress_closes() => {}
            Err(_) => return None,
        }
    }
}

/// Runs a slot, from the first connect to the last close.
fn run_slot(connections: &mut impl ClosedLoops, order: &Order, control: &Control, warm: &Warm) {
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
        if control.stop.load(Ordering::Relaxed) {
            break;
        }
        end_ns = end_ns.min(control.end_ns.load(Ordering::Relaxed));
        if now_ns >= end_ns {
            end_slot(connections, end_ns, (count, now_ns), order.drain_limit_ns, control);
            break;
        }
        connections.handle(count, now_ns);
    }
    connections.close_all();
}

/// Ends the measurement and, if requests made no progress for long, waits for their answers: only
/// then is it known whether the server was late or lost them. `pending` is the number of events and
/// the time of the last wait.
fn end_slot(
    connections: &mut impl ClosedLoops,
    end_ns: u64,
    pending: (usize, u64),
    drain_limit_ns: u64,
    control: &Control,
) {
    connections.end_measuring(end_ns);
    let (mut count, mut at_ns) = pending;
    loop {
        connections.handle(count, at_ns);
        let waits = connections.overdue() > 0 && at_ns < end_ns + drain_limit_ns;
        if !waits || control.stop.load(Ordering::Relaxed) {
            break;
        }
        count = connections.wait(WAIT_MS);
        at_ns = now_ns();
    }
    connections.count_unanswered(at_ns);
}
