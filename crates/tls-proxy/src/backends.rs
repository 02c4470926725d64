//! Selects backends in turn, and tries last those that did not answer recently.

use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sys::output::STDERR;

/// How long a backend that did not answer is tried only after all others.
const REST: Duration = Duration::from_secs(1);
/// Most backends that are tried for a connection.
const MOST_TRIES: u32 = 4;
/// Most backends: the tried ones are bits of a number.
pub(crate) const MOST: usize = 64;

/// Which backends are known not to answer. All cores share it, so that each change is reported
/// once, not once for each connection and core.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<Vec<AtomicBool>>);

impl Health {
    pub(crate) fn new(backends: usize) -> Health {
        Health(Arc::new((0..backends).map(|_| AtomicBool::new(false)).collect()))
    }

    /// Records whether a backend answers. Returns true if that has changed.
    fn note(&self, backend: usize, is_silent: bool) -> bool {
        // The usual case writes nothing, so that all cores only read.
        self.0[backend].load(Ordering::Relaxed) != is_silent
            && self.0[backend].swap(is_silent, Ordering::Relaxed) != is_silent
    }
}

/// The backends, as one core uses them.
#[derive(Debug)]
pub(crate) struct Backends {
    addresses: Vec<SocketAddr>,
    rest_until: Vec<Option<Instant>>,
    turn: usize,
    health: Health,
}

/// The backends that a connection has tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tries {
    first: usize,
    tried: u64,
}

impl Backends {
    /// Creates the list of backends: at least one, at most [`MOST`]. Cores start with different
    /// ones.
    pub(crate) fn new(addresses: Vec<SocketAddr>, health: Health, core: usize) -> Backends {
        let rest_until = vec![None; addresses.len()];
        let turn = core % addresses.len().max(1);
        Backends { addresses, rest_until, turn, health }
    }

    /// Begins the tries of a connection with the next backend in turn.
    pub(crate) fn begin(&mut self) -> Tries {
        let first = self.turn;
        self.turn = (self.turn + 1) % self.addresses.len().max(1);
        Tries { first, tried: 0 }
    }

    /// Returns the index of the next backend to try; `None` once enough were tried. Backends that
    /// failed recently come last.
    pub(crate) fn next(&self, tries: &mut Tries, now: Instant) -> Option<usize> {
        if tries.tried.count_ones() >= MOST_TRIES {
            return None;
        }
        let count = self.addresses.len();
        let left = (0..count)
            .map(|at| (tries.first + at) % count)
            .filter(|backend| tries.tried & (1 << backend) == 0);
        let rests = |backend: &usize| self.rest_until[*backend].is_some_and(|until| now < until);
        let chosen =
            left.clone().find(|backend| !rests(backend)).or_else(|| left.clone().next())?;
        tries.tried |= 1 << chosen;
        Some(chosen)
    }

    pub(crate) fn address(&self, backend: usize) -> SocketAddr {
        self.addresses[backend]
    }

    /// Records that a backend has answered.
    pub(crate) fn answered(&mut self, backend: usize) {
        self.rest_until[backend] = None;
        if self.health.note(backend, false) {
            let address = self.addresses[backend];
            STDERR.line(format_args!("tls-proxy: backend {address} accepts connections again"));
        }
    }

    /// Records that a backend has not answered.
    pub(crate) fn failed(&mut self, backend: usize, error: &io::Error, now: Instant) {
        self.rest_until[backend] = Some(now + REST);
        if self.health.note(backend, true) {
            let (address, remedy) = (self.addresses[backend], remedy_for(error));
            STDERR.line(format_args!(
                "tls-proxy: cannot connect to backend {address}: {error}; {remedy}"
            ));
        }
    }
}

fn remedy_for(error: &io::Error) -> &'static str {
    let exhausted = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    if exhausted.contains(&error.raw_os_error()) {
        return "tls-proxy has no descriptor left: raise `ulimit -n`, or lower --max-connections";
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "no server listens there: start it, or correct --to",
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            "no route leads to it: add one (`ip route`), or a [[route]] in the file of --config"
        }
        io::ErrorKind::TimedOut => "check that it runs, and that no firewall drops packets to it",
        io::ErrorKind::AddrNotAvailable => {
            "no local port is left for it: name more addresses with --to, or widen the range of \
             ephemeral ports (sysctl net.ipv4.ip_local_port_range)"
        }
        _ => "check that it runs and that --to names it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(count: u16) -> Backends {
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        Backends::new((0..count).map(address).collect(), Health::new(count.into()), 0)
    }

    fn refused() -> io::Error {
        io::ErrorKind::ConnectionRefused.into()
    }

    #[test]
    fn they_take_turns() {
        let mut backends = backends(3);
        let now = Instant::now();
        let chosen: Vec<_> = (0..6)
            .map(|_| {
                let mut tries = backends.begin();
                backends.next(&mut tries, now)
            })
            .collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2].map(Some));
    }

    #[test]
    fn each_is_tried_once_and_four_at_most() {
        let now = Instant::now();
        for (count, expected) in [(1, 1), (3, 3), (64, 4)] {
            let mut backends = backends(count);
            let mut tries = backends.begin();
            let mut seen: Vec<usize> = Vec::new();
            while let Some(backend) = backends.next(&mut tries, now) {
                assert!(!seen.contains(&backend));
                seen.push(backend);
                backends.failed(backend, &refused(), now);
            }
            assert_eq!(seen.len(), expected);
        }
    }

    #[test]
    fn one_that_did_not_answer_is_the_last_for_a_second() {
        let mut backends = backends(3);
        let now = Instant::now();
        backends.failed(1, &refused(), now);
        let mut tries = Tries { first: 1, tried: 0 };
        let order: Vec<_> = std::iter::from_fn(|| backends.next(&mut tries, now)).collect();
        assert_eq!(order, [2, 0, 1]);
        let mut tries = Tries { first: 1, tried: 0 };
        assert_eq!(backends.next(&mut tries, now + REST), Some(1));
        backends.answered(1);
        let mut tries = Tries { first: 1, tried: 0 };
        assert_eq!(backends.next(&mut tries, now), Some(1));
    }

    #[test]
    fn changes_are_news_once() {
        let health = Health::new(2);
        let other = health.clone();
        assert!(!health.note(0, false));
        assert!(health.note(0, true));
        assert!(!other.note(0, true));
        assert!(other.note(0, false));
        assert!(!health.note(1, false));
    }
}
