//! Implements a client and a server of [`Exchange`]s, over any sockets.

use crate::exchange::{Exchange, Plan, Progress, Stream};
use crate::sockets::Sockets;
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The time without any event after which the test counts as hanging.
const SILENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);
/// Most failures that are printed.
const TOLD: usize = 5;

/// The results of a program.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) done: usize,
    /// The largest number of simultaneous exchanges.
    pub(crate) most: usize,
    pub(crate) failures: Vec<String>,
}

impl Outcome {
    fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    /// # Panics
    /// If an exchange failed, or another number of exchanges was completed.
    #[track_caller]
    pub(crate) fn expect(&self, done: usize, what: &str) {
        let told = &self.failures[..self.failures.len().min(TOLD)];
        assert!(told.is_empty(), "{what}: {} failures: {told:#?}", self.failures.len());
        assert_eq!(self.done, done, "{what}");
    }
}

struct One<'a, S>(&'a mut S, u32);

impl<S: Sockets> Stream for One<'_, S> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(self.1, room)
    }

    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(self.1, data)
    }

    fn end(&mut self) -> io::Result<()> {
        self.0.end(self.1)
    }
}

/// The running exchanges.
struct Running<'a, S> {
    sockets: &'a mut S,
    exchanges: HashMap<u32, (Exchange, bool)>,
    outcome: Outcome,
    news: Instant,
}

impl<'a, S: Sockets> Running<'a, S> {
    fn new(sockets: &'a mut S) -> Running<'a, S> {
        let (exchanges, outcome) = (HashMap::new(), Outcome::default());
        Running { sockets, exchanges, outcome, news: Instant::now() }
    }

    fn add(&mut self, socket: u32, exchange: Exchange, watched: bool) {
        self.exchanges.insert(socket, (exchange, watched));
        self.outcome.most = self.outcome.most.max(self.exchanges.len());
        self.news = Instant::now();
    }

    fn advance(&mut self, socket: u32) {
        let Some((exchange, watched)) = self.exchanges.get_mut(&socket) else { return };
        let before = exchange.state();
        let progress = exchange.advance(&mut One(self.sockets, socket));
        if exchange.state() != before {
            self.news = Instant::now();
        }
        let writing = exchange.wants_to_write();
        let watch = match &progress {
            Ok(Progress::Pending) if writing != *watched => {
                *watched = writing;
                self.sockets.watch(socket, writing)
            }
            _ => Ok(()),
        };
        match (progress, watch) {
            (Ok(Progress::Pending), Ok(())) => return,
            (Ok(Progress::Done), _) => self.outcome.done += 1,
            (Err(error), _) | (_, Err(error)) => {
                let text = format!("{error} ({:?}); {}", error.kind(), exchange.state());
                self.outcome.fail(text);
            }
        }
        self.exchanges.remove(&socket);
        if let Err(error) = self.sockets.close(socket) {
            self.outcome.fail(format!("close: {error}"));
        }
    }

    fn is_stuck(&mut self) -> bool {
        if self.exchanges.is_empty() || self.news.elapsed() < SILENCE {
            return false;
        }
        for (socket, (exchange, watched)) in &self.exchanges {
            let state = exchange.state();
            let text = format!("{socket} is stuck: {state}, watched for writing: {watched}");
            self.outcome.failures.push(text);
        }
        true
    }
}

/// Executes the plans with a server, at most `at_once` at a time.
pub(crate) fn client<S: Sockets>(
    sockets: &mut S,
    to: SocketAddr,
    plans: &[Plan],
    at_once: usize,
) -> Outcome {
    let mut running = Running::new(sockets);
    let mut plans = plans.iter();
    loop {
        while running.exchanges.len() < at_once
            && let Some(plan) = plans.next()
        {
            match running.sockets.connect(to) {
                Ok(socket) => running.add(socket, Exchange::client(*plan), true),
                Err(error) => running.outcome.fail(format!("connect: {error}")),
            }
        }
        if running.exchanges.is_empty() || running.is_stuck() {
            return running.outcome;
        }
        match running.sockets.wait(LOOK) {
            Ok(ready) => ready.into_iter().for_each(|socket| running.advance(socket)),
            Err(error) => {
                running.outcome.fail(format!("wait: {error}"));
                return running.outcome;
            }
        }
    }
}

/// Like [`client`], with all at once; none sends before all are connected and `between` has
/// returned.
pub(crate) fn crowd<S: Sockets>(
    sockets: &mut S,
    to: SocketAddr,
    plans: &[Plan],
    between: impl FnOnce(),
) -> Outcome {
    let mut running = Running::new(sockets);
    for plan in plans {
        match running.sockets.connect(to) {
            Ok(socket) => running.add(socket, Exchange::client(*plan), false),
            Err(error) => running.outcome.fail(format!("connect: {error}")),
        }
    }
    let mut connected = HashSet::new();
    while connected.len() < running.exchanges.len() && !running.is_stuck() {
        for socket in running.sockets.wait(LOOK).expect("to wait") {
            running.sockets.watch(socket, false).expect("it is watched");
            connected.insert(socket);
            running.news = Instant::now();
        }
    }
    between();
    running.news = Instant::now();
    connected.into_iter().for_each(|socket| running.advance(socket));
    while !running.exchanges.is_empty() && !running.is_stuck() {
        let ready = running.sockets.wait(LOOK).expect("to wait");
        ready.into_iter().for_each(|socket| running.advance(socket));
    }
    running.outcome
}

/// Serves until `stop` is set and no exchange is running; calls `look` from time to time.
pub(crate) fn server<S: Sockets>(
    sockets: &mut S,
    at: &[SocketAddr],
    stop: &AtomicBool,
    mut look: impl FnMut(&mut S),
) -> Outcome {
    let mut running = Running::new(sockets);
    let listen = |address: &SocketAddr| running.sockets.listen(*address).expect("to listen");
    let listeners: Vec<u32> = at.iter().map(listen).collect();
    look(running.sockets);
    while !(stop.load(Relaxed) && running.exchanges.is_empty()) {
        let ready = match running.sockets.wait(LOOK) {
            Ok(ready) => ready,
            Err(error) => {
                running.outcome.fail(format!("wait: {error}"));
                break;
            }
        };
        for socket in ready {
            if !listeners.contains(&socket) {
                running.advance(socket);
                continue;
            }
            loop {
                match running.sockets.accept(socket) {
                    Ok(new) => running.add(new, Exchange::server(), false),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => {
                        running.outcome.fail(format!("accept: {error}"));
                        break;
                    }
                }
            }
        }
        look(running.sockets);
        if running.is_stuck() {
            break;
        }
    }
    for listener in listeners {
        running.sockets.close(listener).expect("it listens");
    }
    running.outcome
}
