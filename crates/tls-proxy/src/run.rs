//! The proxy as a whole: it starts the cores, hears signals, and counts at the end.

use crate::arguments::Arguments;
use crate::backends::{self, Health};
use crate::certificates;
use crate::error::ProxyError;
use crate::event_loop::{Core, Limits, Plan};
use crate::listeners;
use crate::orders::{Order, Orders};
use crate::placement;
use crate::tally::{Tally, Totals};
use megapipe::{
    Channel, Config, DriverChoice, Event, Repeat, Signals, WakeSource, Waker, wake_pair,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Descriptors beside those of connections: of files, rings, devices, signals.
const OTHER_DESCRIPTORS: u64 = 256;
/// Connections where nobody says how many.
const USUAL_CONNECTIONS: u32 = 10_000;

/// Runs until a signal ends it.
///
/// # Errors
/// [`ProxyError`] names cause and remedy.
pub(crate) fn run(arguments: &Arguments) -> Result<(), ProxyError> {
    let tls = certificates::settings(&arguments.certificate, &arguments.key)?;
    if arguments.to.len() > backends::MOST {
        return Err(ProxyError::Backends(arguments.to.len()));
    }
    let connections = make_room(arguments.max_connections)?;
    // Before there are other threads, which inherit that these signals are blocked.
    let signals = [Signal::TERM, Signal::INT, Signal::USR1].map(Signal::as_raw);
    let signals = Signals::new(&signals).map_err(|source| ProxyError::System {
        what: "wait for signals",
        source,
        remedy: "raise the limit of open files (ulimit -n)",
    })?;
    let placement = placement::choose(arguments)?;
    let listeners = listeners::open(&arguments.listen, &placement)?;
    let cores = placement.cpus.len();
    let plan = Plan {
        tls,
        backends: arguments.to.clone(),
        health: Health::new(arguments.to.len()),
        limits: Limits {
            handshake: arguments.handshake_timeout,
            connect: arguments.connect_timeout,
            idle: arguments.idle_timeout,
        },
        connections: connections.div_ceil(cores as u32),
        orders: Orders::default(),
        placement,
    };
    let tallies: Vec<Tally> = (0..cores).map(|_| Tally::default()).collect();
    let outcome = serve(&plan, &tallies, listeners, signals, arguments);
    if outcome.is_ok() {
        say(&totals(&tallies).to_string());
    }
    outcome
}

/// Raises the limit of descriptors to what the connections need, of which each has two sockets;
/// without a wish, gives as many connections as there can be within reason.
fn make_room(wish: Option<u32>) -> Result<u32, ProxyError> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(u64::MAX, |most| most.saturating_sub(OTHER_DESCRIPTORS) / 2);
    let usual = u32::try_from(most).map_or(USUAL_CONNECTIONS, |most| most.min(USUAL_CONNECTIONS));
    let connections = wish.unwrap_or(usual).max(1);
    let needed = 2 * u64::from(connections) + OTHER_DESCRIPTORS;
    if let Some(limit) = limit.maximum.filter(|maximum| *maximum < needed) {
        return Err(ProxyError::Descriptors { connections, needed, limit });
    }
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(connections);
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|errno| ProxyError::System {
        what: "raise the limit of open files",
        source: errno.into(),
        remedy: "raise it before (ulimit -n), or lower --max-connections",
    })?;
    Ok(connections)
}

fn totals(tallies: &[Tally]) -> Totals {
    tallies.iter().map(Tally::read).sum()
}

/// Tells whoever reads the standard output; if nobody does, nobody.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "tls-proxy: {text}").and_then(|()| out.flush());
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> ProxyError {
    let remedy = "raise `ulimit -n` or `ulimit -u` if it is a limit";
    move |source| ProxyError::System { what, source, remedy }
}

/// What the first thread has to deal with the cores.
struct Control<'a> {
    plan: &'a Plan,
    tallies: &'a [Tally],
    /// Those of the cores.
    wakers: Vec<Waker>,
    /// Cores that have not ended.
    alive: &'a AtomicUsize,
    drain: Duration,
}

/// Tells the first thread that a core has ended, in whatever way.
struct Farewell<'a> {
    alive: &'a AtomicUsize,
    waker: Waker,
}

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Release);
        self.waker.wake();
    }
}

fn serve(
    plan: &Plan,
    tallies: &[Tally],
    listeners: Vec<TcpListener>,
    signals: Signals,
    arguments: &Arguments,
) -> Result<(), ProxyError> {
    // Not on the stack, whose engines are the cores'.
    let config = Config { driver: DriverChoice::Epoll, ..Config::default() };
    let mut news: Channel<()> = Channel::with_config(config)?;
    let (farewells, ended) = wake_pair().map_err(system("eventfd(2)"))?;
    let signals = news.register(signals, ())?;
    news.watch(signals, Repeat::UntilCancelled)?;
    let ended = news.register(ended, ())?;
    news.watch(ended, Repeat::UntilCancelled)?;
    let alive = AtomicUsize::new(0);
    let listeners = Arc::new(listeners);
    let mut control =
        Control { plan, tallies, wakers: Vec::new(), alive: &alive, drain: arguments.drain };
    thread::scope(|scope| {
        let (ready, readiness) = channel();
        let mut threads = Vec::new();
        let mut started = Ok(());
        for (number, tally) in tallies.iter().enumerate() {
            let (waker, wake) = wake_pair().map_err(system("eventfd(2)"))?;
            control.wakers.push(waker);
            alive.fetch_add(1, Ordering::Release);
            let farewell = Farewell { alive: &alive, waker: farewells.clone() };
            let (listeners, ready) = (Arc::clone(&listeners), ready.clone());
            let work = move || {
                let _farewell = farewell;
                work(plan, tally, number, listeners, wake, ready)
            };
            let builder = thread::Builder::new().name(format!("core-{number}"));
            match builder.spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(error) => started = Err(system("start a thread")(error)),
            }
        }
        drop(ready);
        // A core that fails lets go of its end without a word.
        let drivers: Vec<String> = readiness.iter().collect();
        if drivers.len() == tallies.len() {
            announce(arguments, &listeners, &drivers);
            // The cores have their shares, and what they leave must not be listened on any more.
            drop(listeners);
            started = control.watch(&mut news);
        }
        control.order(Order::Stop);
        started.and(join(threads))
    })
}

/// A core, in its thread.
fn work(
    plan: &Plan,
    tally: &Tally,
    number: usize,
    listeners: Arc<Vec<TcpListener>>,
    wake: WakeSource,
    ready: Sender<String>,
) -> Result<(), ProxyError> {
    if plan.placement.is_pinned {
        mtcp::pin(plan.placement.cpus[number]).map_err(|source| ProxyError::System {
            what: "keep a thread on its CPU",
            source,
            remedy: "see taskset(1) and the cpuset of this process",
        })?;
    }
    let mut core = Core::new(plan, tally, number, &listeners, wake)?;
    drop(listeners);
    let report = core.driver();
    // Nobody listens any more if another core could not start.
    let _ = ready.send(format!("{} ({})", report.kind, report.reason));
    drop(ready);
    core.run()
}

/// Joins all cores; the first error is the cause of the others.
fn join(threads: Vec<ScopedJoinHandle<'_, Result<(), ProxyError>>>) -> Result<(), ProxyError> {
    let outcomes: Vec<_> = threads
        .into_iter()
        .enumerate()
        .map(|(core, thread)| thread.join().unwrap_or(Err(ProxyError::Panicked(core))))
        .collect();
    outcomes.into_iter().collect()
}

fn announce(arguments: &Arguments, listeners: &[TcpListener], drivers: &[String]) {
    let name = |listener: &TcpListener| {
        listener.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string())
    };
    let from: Vec<String> = listeners.iter().map(name).collect();
    let to: Vec<String> = arguments.to.iter().map(ToString::to_string).collect();
    let driver = drivers.first().map_or("", String::as_str);
    let (from, to, cores) = (from.join(" "), to.join(" "), drivers.len());
    say(&format!("listening on {from}, for {to}; cores: {cores}; driver {driver}"));
}

impl Control<'_> {
    fn order(&self, order: Order) {
        self.plan.orders.give(order);
        self.wakers.iter().for_each(Waker::wake);
    }

    /// Hears signals until all cores have ended, or one of them has without an order.
    fn watch(&self, news: &mut Channel<()>) -> Result<(), ProxyError> {
        let mut until: Option<Instant> = None;
        while self.alive.load(Ordering::Acquire) > 0 {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let event = news.dispatch(left)?.map(|done| done.event);
            let order = self.plan.orders.present();
            match event {
                Some(Event::Signal(Ok(info))) if info.signal == Signal::USR1.as_raw() => {
                    say(&totals(self.tallies).to_string());
                }
                Some(Event::Signal(Ok(_))) if order == Order::Serve && !self.drain.is_zero() => {
                    until = Instant::now().checked_add(self.drain);
                    self.order(Order::Drain);
                }
                Some(Event::Signal(Ok(_))) => self.order(Order::Stop),
                // A core that ends unasked takes the others with it.
                Some(Event::Wake(_)) if order == Order::Serve => return Ok(()),
                _ => {}
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                until = None;
                self.order(Order::Stop);
            }
        }
        Ok(())
    }
}
