//! Runs the proxy: starts the cores, handles signals, and prints the counts at the end.

use crate::arguments::Arguments;
use crate::backends::{self, Health};
use crate::certificates;
use crate::error::ProxyError;
use crate::event_loop::{Core, Limits, Order, Plan};
use crate::listeners;
use crate::placement;
use crate::sandbox;
use crate::tally::{Tally, Totals};
use megapipe::{
    Channel, Config, DriverChoice, Event, Repeat, Signals, WakeSource, Waker, wake_pair,
};
use rustix::process::{Resource, Signal, getrlimit};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;
use sys::output::{STDERR, STDOUT};
use sys::user::User;

/// Descriptors in addition to those of connections: files, rings, devices, signals.
const OTHER_DESCRIPTORS: u64 = 256;
/// The default of the most connections.
const USUAL_CONNECTIONS: u32 = 10_000;
/// The largest default of the most handshakes of a client address.
const USUAL_HANDSHAKES_PER_ADDRESS: u32 = 512;

/// Runs until a signal ends it.
///
/// # Errors
/// [`ProxyError`] with cause and remedy.
pub(crate) fn run(arguments: &Arguments) -> Result<(), ProxyError> {
    sys::random::check_tables().map_err(|source| ProxyError::System {
        what: "draw random numbers",
        source,
        remedy: "permit getrandom(2) in the sandbox",
    })?;
    let tls = certificates::settings(arguments, None)?;
    let user = find_user(arguments)?;
    if arguments.to.len() > backends::MOST {
        return Err(ProxyError::Backends(arguments.to.len()));
    }
    let is_wildcard = |address: &&SocketAddr| address.ip().is_unspecified();
    if let (Some(_), Some(address)) =
        (arguments.proxy_protocol, arguments.listen.iter().find(is_wildcard))
    {
        return Err(ProxyError::Wildcard(*address));
    }
    let connections = make_room(arguments.max_connections)?;
    // This must precede other threads, which inherit the blocked signals.
    let signals = [Signal::TERM, Signal::INT, Signal::USR1, Signal::HUP].map(Signal::as_raw);
    let signals = Signals::new(&signals).map_err(|source| ProxyError::System {
        what: "wait for signals",
        source,
        remedy: "raise the limit of open files (ulimit -n)",
    })?;
    let placement = placement::choose(arguments)?;
    let listeners = listeners::open(&arguments.listen, &placement)?;
    let cores = placement.cpus.len();
    let usual = (connections / 4).clamp(1, USUAL_HANDSHAKES_PER_ADDRESS);
    let handshakes = arguments.handshakes_per_address.unwrap_or(usual);
    let plan = Plan {
        tls,
        handshakes_per_address: (handshakes > 0).then(|| handshakes.div_ceil(cores as u32)),
        header: arguments.proxy_protocol,
        backends: arguments.to.clone(),
        health: Health::new(arguments.to.len()),
        limits: Limits {
            handshake: arguments.handshake_timeout,
            connect: arguments.connect_timeout,
            idle: arguments.idle_timeout,
        },
        connections: connections.div_ceil(cores as u32),
        changes_user: user.is_some(),
        placement,
    };
    let tallies: Vec<Tally> = (0..cores).map(|_| Tally::default()).collect();
    let outcome = serve(&plan, &tallies, listeners, signals, arguments, user.as_ref());
    if outcome.is_ok() {
        say(&Totals(&tallies).to_string());
    }
    outcome
}

/// Raises the limit of descriptors to the number that the connections need, two sockets each.
/// Returns the number of connections: the requested one, or a default that the limit permits.
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
    sys::limits::raise_open_files().map_err(|source| ProxyError::System {
        what: "raise the limit of open files",
        source,
        remedy: "raise it before (ulimit -n), or lower --max-connections",
    })?;
    Ok(connections)
}

/// Finds the user of `--user`.
fn find_user(arguments: &Arguments) -> Result<Option<User>, ProxyError> {
    let Some(name) = &arguments.user else { return Ok(None) };
    match sys::user::find(name) {
        Ok(Some(user)) => Ok(Some(user)),
        Ok(None) => Err(ProxyError::NoUser(name.clone())),
        Err(source) => Err(ProxyError::User { name: name.clone(), source }),
    }
}

/// Changes the user, or drops the capabilities of this thread, whichever applies. Then restricts
/// the system calls of all threads.
fn drop_rights(
    user: Option<&User>,
    arguments: &Arguments,
    has_stack: bool,
) -> Result<(), ProxyError> {
    match user {
        Some(user) => {
            let name = || user.name().to_string_lossy().into_owned();
            user.assume().map_err(|source| ProxyError::User { name: name(), source })?;
            warn_of_unreadable(arguments, &format!("user {}", name()));
        }
        None => {
            sandbox::drop_capabilities(has_stack)?;
            warn_of_unreadable(arguments, "this user, without capabilities,");
        }
    }
    if arguments.no_seccomp { Ok(()) } else { sandbox::enter(has_stack) }
}

/// Reports files that the process will not be able to read again.
fn warn_of_unreadable(arguments: &Arguments, user: &str) {
    for path in [&arguments.certificate, &arguments.key] {
        if let Err(error) = File::open(path) {
            STDERR.line(format_args!(
                "tls-proxy: {user} cannot read {}: {error}; SIGHUP will not reload it: permit \
                 a group of the user to read it (`chgrp`, `chmod 640`), or restart instead",
                path.display()
            ));
        }
    }
}

/// Writes a line to standard output, which may have no reader.
fn say(text: &str) {
    STDOUT.line(format_args!("tls-proxy: {text}"));
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> ProxyError {
    let remedy = "raise `ulimit -n` (descriptors) or `ulimit -u` (threads) if it is reached";
    move |source| ProxyError::System { what, source, remedy }
}

/// State with which the first thread controls the cores.
struct Control<'a> {
    plan: &'a Plan,
    tallies: &'a [Tally],
    /// For each core its queue of orders, and its waker.
    cores: Vec<(Sender<Order>, Waker)>,
    /// The number of cores that have not ended.
    alive: &'a AtomicUsize,
    arguments: &'a Arguments,
}

/// Wakes the first thread when a core has ended, in any way.
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
    user: Option<&User>,
) -> Result<(), ProxyError> {
    // This channel does not use the stack, whose engines belong to the cores.
    let config = Config { driver: DriverChoice::Epoll, ..Config::default() };
    let mut news: Channel<()> = Channel::with_config(config)?;
    let (farewells, ended) = wake_pair().map_err(system("make an eventfd(2)"))?;
    let signals = news.register(signals, ())?;
    news.watch(signals, Repeat::UntilCancelled)?;
    let ended = news.register(ended, ())?;
    news.watch(ended, Repeat::UntilCancelled)?;
    let alive = AtomicUsize::new(0);
    let listeners = Arc::new(listeners);
    let mut control = Control { plan, tallies, cores: Vec::new(), alive: &alive, arguments };
    // Cores serve when they can lock it for reading: after the change of the user.
    let begin = RwLock::new(());
    thread::scope(|scope| {
        let is_early = begin.write().unwrap_or_else(PoisonError::into_inner);
        let (ready, readiness) = channel();
        let mut threads = Vec::new();
        let mut started = Ok(());
        for (number, tally) in tallies.iter().enumerate() {
            let (waker, wake) = wake_pair().map_err(system("make an eventfd(2)"))?;
            let (sender, orders) = channel();
            control.cores.push((sender, waker));
            alive.fetch_add(1, Ordering::Release);
            let farewell = Farewell { alive: &alive, waker: farewells.clone() };
            let (listeners, ready) = (Arc::clone(&listeners), ready.clone());
            let begin = &begin;
            let work = move || {
                let _farewell = farewell;
                let mut core = prepare(plan, tally, number, listeners, orders, wake, ready)?;
                drop(begin.read().unwrap_or_else(PoisonError::into_inner));
                core.run()
            };
            let builder = thread::Builder::new().name(format!("core-{number}"));
            match builder.spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(error) => started = Err(system("start a thread")(error)),
            }
        }
        drop(ready);
        // A core that fails drops its end of the channel without a message.
        let drivers: Vec<String> = readiness.iter().collect();
        if drivers.len() == tallies.len() {
            started = drop_rights(user, arguments, plan.placement.has_stack());
        }
        drop(is_early);
        if drivers.len() == tallies.len() && started.is_ok() {
            announce(arguments, &listeners, &drivers);
            // The cores have their shares; the sockets that they do not use must no longer listen.
            drop(listeners);
            started = control.watch(&mut news);
        }
        control.order(&Order::Stop);
        started.and(join(threads))
    })
}

/// Creates a core on its thread, and reports that it is ready.
fn prepare<'a>(
    plan: &'a Plan,
    tally: &'a Tally,
    number: usize,
    listeners: Arc<Vec<TcpListener>>,
    orders: Receiver<Order>,
    wake: WakeSource,
    ready: Sender<String>,
) -> Result<Core<'a>, ProxyError> {
    if plan.placement.is_pinned {
        mtcp::pin(plan.placement.cpus[number]).map_err(|source| ProxyError::System {
            what: "pin a thread to its CPU",
            source,
            remedy: "permit this CPU in the process's cpuset(7), or lower --cores",
        })?;
    }
    let core = Core::new(plan, tally, number, &listeners, orders, wake)?;
    drop(listeners);
    if !plan.changes_user {
        sandbox::drop_capabilities(plan.placement.has_stack())?;
    }
    let report = core.driver();
    // The receiver is gone if another core could not start.
    let _ = ready.send(format!("{} ({})", report.kind, report.reason));
    Ok(core)
}

/// Joins all cores, and returns the first error, which is the cause of the others.
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
    fn order(&self, order: &Order) {
        for (orders, waker) in &self.cores {
            // It fails if the core has ended.
            let _ = orders.send(order.clone());
            waker.wake();
        }
    }

    /// Reads certificate and key again. If they cannot be used, the present ones stay.
    fn reload(&self) {
        match certificates::settings(self.arguments, Some(&self.plan.tls)) {
            Ok(settings) => {
                self.order(&Order::Reload(settings));
                let (certificate, key) = (&self.arguments.certificate, &self.arguments.key);
                let (certificate, key) = (certificate.display(), key.display());
                say(&format!("reloaded {certificate} and {key} for new connections"));
            }
            Err(error) => {
                let effect = "the certificate in use stays in use";
                STDERR.line(format_args!("tls-proxy: SIGHUP: {effect}: {error}"));
            }
        }
    }

    /// Handles signals until all cores have ended, or one of them has ended without an order.
    fn watch(&self, news: &mut Channel<()>) -> Result<(), ProxyError> {
        let mut until: Option<Instant> = None;
        let mut is_ending = false;
        while self.alive.load(Ordering::Acquire) > 0 {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let event = news.dispatch(left)?.map(|done| done.event);
            match event {
                Some(Event::Signal(Ok(info))) if info.signal == Signal::USR1.as_raw() => {
                    say(&Totals(self.tallies).to_string());
                }
                Some(Event::Signal(Ok(info))) if info.signal == Signal::HUP.as_raw() => {
                    self.reload();
                }
                Some(Event::Signal(Ok(_))) => {
                    if is_ending || self.arguments.drain.is_zero() {
                        self.order(&Order::Stop);
                    } else {
                        until = Instant::now().checked_add(self.arguments.drain);
                        self.order(&Order::Drain);
                    }
                    is_ending = true;
                }
                // If a core ends without an order, the others end too.
                Some(Event::Wake(_)) if !is_ending => return Ok(()),
                _ => {}
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                until = None;
                self.order(&Order::Stop);
            }
        }
        Ok(())
    }
}
