//! Tests that thousands of connections are all accepted while members join and leave.

use super::super::ListenerError;
use super::support::*;
use crate::cpuset::CpuSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::pin;

/// Connections per client thread, of which there is one per CPU.
const CONNECTIONS: usize = 3000;

/// A random number generator without a crate (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn cpus(&mut self, usable: &[usize]) -> CpuSet {
        let pick = self.below(usable.len() as u64 + 1) as usize;
        usable.get(pick).map_or(usable.iter().copied().collect(), |cpu| CpuSet::one(*cpu))
    }
}

#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    joined: AtomicUsize,
    stolen: AtomicUsize,
    orphans: AtomicUsize,
}

fn count(counter: &AtomicUsize, more: usize) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Accepts from the original, as the application would.
fn serve_original(listener: &TcpListener, tally: &Tally) {
    while !tally.stop.load(Ordering::Relaxed) {
        wait_for([listener.as_fd()].into_iter(), 5);
        while let Ok((connection, _)) = listener.accept() {
            serve(connection.into());
        }
    }
}

/// Joins and leaves repeatedly, with another set each time.
fn come_and_go(listener: &TcpListener, tally: &Tally, seed: u64) {
    let mut dice = Dice(seed);
    let usable = usable_cpus();
    while !tally.stop.load(Ordering::Relaxed) {
        let mut seat = match Seat::take(listener.as_fd(), &dice.cpus(&usable)) {
            Ok(seat) => seat,
            Err(ListenerError::Overlap { .. }) => {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        count(&tally.joined, 1);
        let end = Instant::now() + Duration::from_micros(dice.below(6000));
        while Instant::now() < end {
            seat.wait(1);
            seat.accept_all().into_iter().for_each(serve);
            if dice.below(8) == 0 {
                let mut stolen = Vec::new();
                count(&tally.stolen, seat.membership.steal(4, 0, &mut stolen).unwrap());
                stolen.into_iter().for_each(serve);
            }
        }
        let orphans = seat.membership.leave();
        assert_eq!(orphans.lost, 0);
        count(&tally.orphans, orphans.connections.len());
        orphans.connections.into_iter().for_each(serve);
    }
}

/// Runs a member that stays.
fn stay(mut seat: Seat, tally: &Tally) {
    while !tally.stop.load(Ordering::Relaxed) {
        seat.wait(1);
        seat.accept_all().into_iter().for_each(serve);
    }
    // There are no clients any more, so only members that left since can have left connections.
    let orphans = seat.membership.leave();
    assert_eq!((orphans.connections.len(), orphans.lost), (0, 0));
}

/// Connects until there were enough connections, and enough joins.
fn hammer(address: SocketAddr, cpu: usize, tally: &Tally, joins: usize) {
    pin(cpu);
    let mut connections = 0;
    while connections < CONNECTIONS || tally.joined.load(Ordering::Relaxed) < joins {
        expect_service(connect_here(address));
        connections += 1;
    }
}

fn run(somebody_stays: bool, others: u64) -> Tally {
    // With one CPU, no member can join one that stays.
    let joins = if somebody_stays && usable_cpus().len() == 1 { 0 } else { 30 };
    let listener = listener();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let tally = Tally::default();
    let first = CpuSet::one(usable_cpus()[0]);
    let stayer = somebody_stays.then(|| Seat::take(listener.as_fd(), &first).unwrap());
    std::thread::scope(|scope| {
        let servers = (1..=others).map(|seed: u64| {
            let (listener, tally) = (&listener, &tally);
            scope.spawn(move || come_and_go(listener, tally, seed << 40 | seed))
        });
        let servers: Vec<_> = servers.collect();
        scope.spawn(|| serve_original(&listener, &tally));
        if let Some(seat) = stayer {
            scope.spawn(|| stay(seat, &tally));
        }
        let clients: Vec<_> = usable_cpus()
            .into_iter()
            .map(|cpu| {
                scope.spawn({
                    let tally = &tally;
                    move || hammer(address, cpu, tally, joins)
                })
            })
            .collect();
        let results: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        tally.stop.store(true, Ordering::Relaxed);
        servers.into_iter().for_each(|server| server.join().unwrap());
        results.into_iter().for_each(|result| result.unwrap());
    });
    eprintln!(
        "{} joins, {} stolen, {} orphans",
        tally.joined.load(Ordering::Relaxed),
        tally.stolen.load(Ordering::Relaxed),
        tally.orphans.load(Ordering::Relaxed),
    );
    tally
}

#[test]
fn no_connection_is_lost_while_members_come_and_go() {
    assert_eq!(run(true, 3).orphans.into_inner(), 0);
}

#[test]
fn no_connection_is_lost_while_the_sharing_begins_and_ends() {
    run(false, 1);
}

#[test]
fn no_connection_is_lost_when_anyone_may_be_the_last_to_leave() {
    run(false, 3);
}
