//! Tests in which queue connections land when the CPUs distribute them unequally.

use super::support::*;
use crate::cpuset::CpuSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use testkit::two_cpus;

/// Returns two members that accept.
fn pair(listener: &TcpListener, cpus: [usize; 2]) -> Vec<Seat> {
    let seat = |cpu: usize| {
        let mut seat = Seat::take(listener.as_fd(), &CpuSet::one(cpu)).unwrap();
        seat.membership.set_accepting(true);
        seat
    };
    cpus.map(seat).into()
}

/// Lets a member count accepts until it changes the steering; returns how many that took.
fn count_up(seat: &mut Seat) -> Option<u32> {
    let queue = seat.queues[0].id;
    (1..=100).find(|_| seat.membership.accepted(queue))
}

/// Connects from a CPU; returns how many connections wait in each first queue, and accepts them.
fn shares(seats: &mut [Seat], address: SocketAddr, cpu: usize, count: usize) -> Vec<u32> {
    let _clients: Vec<TcpStream> = (0..count).map(|_| connect(address, cpu)).collect();
    let waiting = seats.iter().map(Seat::waiting).collect();
    seats.iter_mut().for_each(|seat| drop(seat.accept_all()));
    waiting
}

#[test]
fn connections_are_spread_until_a_member_leaves() {
    let Some(cpus) = two_cpus("connections_are_spread_until_a_member_leaves") else { return };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut seats = pair(&listener, cpus);
    assert_eq!(shares(&mut seats, address, cpus[0], 8), [8, 0]);
    assert_eq!(count_up(&mut seats[0]), Some(16));
    let spread = shares(&mut seats, address, cpus[0], 100);
    assert!(spread.iter().all(|share| *share >= 20), "{spread:?}");
    assert_eq!(length(&listener), 0);
    drop(seats.pop());
    assert_eq!(shares(&mut seats, address, cpus[0], 8), [8]);
}

#[test]
fn a_member_that_does_not_accept_gets_nothing_of_others() {
    let Some([cpu, other]) = two_cpus("a_member_that_does_not_accept_gets_nothing_of_others")
    else {
        return;
    };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut seats = pair(&listener, [cpu, other]);
    seats[1].membership.set_accepting(false);
    assert_eq!(count_up(&mut seats[0]), None);
    assert_eq!(shares(&mut seats, address, cpu, 8), [8, 0]);
    // The other member accepts until connections are distributed at random, and then stops: the
    // CPU decides again after the next window.
    seats[1].membership.set_accepting(true);
    assert!(count_up(&mut seats[0]).is_some());
    seats[1].membership.set_accepting(false);
    assert_eq!(count_up(&mut seats[0]), None);
    assert_eq!(shares(&mut seats, address, cpu, 8), [8, 0]);
}

#[test]
fn a_member_whose_connections_wait_is_busy_and_gets_no_more() {
    let Some([first, second]) =
        two_cpus("a_member_whose_connections_wait_is_busy_and_gets_no_more")
    else {
        return;
    };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut seats = pair(&listener, [first, second]);
    let _waiting: Vec<TcpStream> = (0..9).map(|_| connect(address, second)).collect();
    assert_eq!(count_up(&mut seats[0]), None);
    assert_eq!(shares(&mut seats, address, first, 8), [8, 9]);
}

#[test]
fn connections_of_the_original_do_not_count() {
    let Some(cpus) = two_cpus("connections_of_the_original_do_not_count") else { return };
    let listener = listener();
    let mut seats = pair(&listener, cpus);
    let member = &mut seats[0].membership;
    let original = (0..).find(|queue| member.is_original(*queue)).unwrap();
    assert!((1..=100).all(|_| !member.accepted(original)));
    assert_eq!(count_up(&mut seats[0]), Some(16));
}
