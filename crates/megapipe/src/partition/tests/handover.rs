//! Tests what happens to the queues of members that leave.

use super::super::ListenerError;
use super::super::socket::unsteer;
use super::support::*;
use crate::cpuset::CpuSet;
use std::net::TcpStream;
use std::os::fd::AsFd;
use testkit::two_cpus;

/// Returns a set; numbers from 900 on stand for CPUs that do not exist.
fn set(cpus: &[usize]) -> CpuSet {
    cpus.iter().copied().collect()
}

#[test]
fn a_queue_is_loaned_and_returned() {
    let Some([first, second]) = two_cpus("a_queue_is_loaned_and_returned") else { return };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut one = Seat::take(listener.as_fd(), &set(&[first])).unwrap();
    let two = Seat::take(listener.as_fd(), &set(&[second])).unwrap();
    let queue = two.queues[0].clone();
    let waiting = [connect(address, second), connect(address, second)];
    assert!(two.membership.leave().connections.is_empty());

    // The other member now has the CPU and the waiting connections.
    assert_eq!(one.queue_ids(), [one.queues[0].id, queue.id]);
    let later = connect(address, second);
    assert_eq!(length(&queue.descriptor), 3);
    one.accept_all().into_iter().for_each(serve);
    waiting.into_iter().chain([later]).for_each(expect_service);

    // The next member that claims the CPU gets the queue, with the waiting connection.
    let waiting = connect(address, second);
    let mut three = Seat::take(listener.as_fd(), &set(&[second])).unwrap();
    assert_eq!(three.queues[0].id, queue.id);
    assert_eq!(one.queue_ids(), [one.queues[0].id]);
    three.accept_all().into_iter().for_each(serve);
    expect_service(waiting);
}

#[test]
fn a_member_accepts_from_the_original_while_all_cpus_are_claimed() {
    let name = "a_member_accepts_from_the_original_while_all_cpus_are_claimed";
    let Some([first, _]) = two_cpus(name) else { return };
    let all: CpuSet = (0..CpuSet::CAPACITY).collect();
    let rest = all.difference(&CpuSet::one(first));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let before: Vec<TcpStream> = (0..20).map(|_| connect_here(address)).collect();
    let mut one = Seat::take(listener.as_fd(), &CpuSet::one(first)).unwrap();
    assert!(!one.holds_original());
    let mut two = Seat::take(listener.as_fd(), &rest).unwrap();
    assert_eq!([&mut one, &mut two].map(Seat::holds_original), [true, false]);
    let accepted = one.accept_all();
    assert_eq!(accepted.len(), 20);
    accepted.into_iter().for_each(serve);
    before.into_iter().for_each(expect_service);
    drop(one);
    assert!(two.holds_original());
    assert_eq!(two.queue_ids().len(), 2);
}

#[test]
fn a_member_claims_what_another_has_on_loan() {
    let Some([first, second]) = two_cpus("a_member_claims_what_another_has_on_loan") else {
        return;
    };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut one = Seat::take(listener.as_fd(), &set(&[first, 900])).unwrap();
    let two = Seat::take(listener.as_fd(), &set(&[second, 901])).unwrap();
    let loan = two.queues[0].id;
    drop(two);
    // Claiming a part of the loan's CPUs leaves the queue with its holder.
    let three = Seat::take(listener.as_fd(), &set(&[second])).unwrap();
    let main = three.queues[0].id;
    assert_ne!(main, loan);
    assert_eq!(one.queue_ids(), [one.queues[0].id, loan]);
    let client = connect(address, second);
    assert_eq!(three.waiting(), 1);
    drop(three);
    assert_eq!(one.queue_ids(), [one.queues[0].id, loan, main]);
    // Claiming all CPUs of both loans moves both queues, with the connection that waits.
    let mut four = Seat::take(listener.as_fd(), &set(&[second, 901])).unwrap();
    assert_eq!(one.queue_ids(), [one.queues[0].id]);
    assert_eq!(four.queue_ids(), [loan, main]);
    four.accept_all().into_iter().for_each(serve);
    expect_service(client);
    // The next member that claims a part uses the queue without CPUs.
    drop(four);
    let five = Seat::take(listener.as_fd(), &set(&[second])).unwrap();
    assert_eq!(five.queues[0].id, main);
    assert_eq!(one.queue_ids(), [one.queues[0].id, loan]);
    let six = Seat::take(listener.as_fd(), &set(&[first])).err().unwrap();
    assert!(matches!(six, ListenerError::Overlap { .. }));
}

#[test]
fn unread_mail_is_no_loss() {
    let Some([first, second]) = two_cpus("unread_mail_is_no_loss") else { return };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let one = Seat::take(listener.as_fd(), &set(&[first])).unwrap();
    let two = Seat::take(listener.as_fd(), &set(&[second])).unwrap();
    let clients = [connect(address, first), connect(address, second)];
    // The first member adopts the queue, but never reads the message; leaving finds the queue.
    drop(two);
    let orphans = one.membership.leave();
    assert_eq!((orphans.connections.len(), orphans.lost), (2, 0));
    orphans.connections.into_iter().for_each(serve);
    clients.into_iter().for_each(expect_service);
}

#[test]
fn the_last_leave_returns_what_waits() {
    let cpu = usable_cpus()[0];
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let seat = Seat::take(listener.as_fd(), &set(&[cpu])).unwrap();
    let clients: Vec<TcpStream> = (0..20).map(|_| connect(address, cpu)).collect();
    let orphans = seat.membership.leave();
    assert_eq!((orphans.connections.len(), orphans.lost), (20, 0));
    orphans.connections.into_iter().for_each(serve);
    clients.into_iter().for_each(expect_service);
    // The queue is closed, although a descriptor of it is open, and the original serves all CPUs.
    let no_program = unsteer(listener.as_fd()).unwrap_err();
    assert_eq!(no_program.raw_os_error(), Some(libc::ENOENT));
    let client = connect(address, cpu);
    assert_eq!(length(&listener), 1);
    serve(listener.accept().unwrap().0.into());
    expect_service(client);
}

#[test]
fn a_thread_that_panics_leaves() {
    let Some([first, second]) = two_cpus("a_thread_that_panics_leaves") else { return };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut one = Seat::take(listener.as_fd(), &set(&[first])).unwrap();
    let two = Seat::take(listener.as_fd(), &set(&[second])).unwrap();
    let client = connect(address, second);
    let died = std::thread::spawn(move || {
        let _two = two;
        std::panic::resume_unwind(Box::new("without a message"));
    });
    died.join().unwrap_err();
    one.wait(0);
    one.accept_all().into_iter().for_each(serve);
    expect_service(client);
}

#[test]
fn the_application_may_close_the_original() {
    let cpus = usable_cpus();
    let listener = listener();
    let address = listener.local_addr().unwrap();
    // An open connection keeps other sockets from the port.
    let _kept = (TcpStream::connect(address).unwrap(), listener.accept().unwrap());
    let first = Seat::take(listener.as_fd(), &set(&cpus[..1])).unwrap();
    drop(listener);
    let _client = connect(address, cpus[0]);
    assert_eq!(first.waiting(), 1);
    drop(first);
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn stealing_stops_at_the_watermark_and_the_limit() {
    let Some([first, second]) = two_cpus("stealing_stops_at_the_watermark_and_the_limit") else {
        return;
    };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let idle = Seat::take(listener.as_fd(), &set(&[first])).unwrap();
    let busy = Seat::take(listener.as_fd(), &set(&[second])).unwrap();
    let clients: Vec<TcpStream> = (0..10).map(|_| connect(address, second)).collect();
    let _own = connect(address, first);

    let mut stolen = Vec::new();
    assert_eq!(idle.membership.steal(8, 10, &mut stolen).unwrap(), 0);
    assert_eq!(idle.membership.steal(3, 4, &mut stolen).unwrap(), 3);
    assert_eq!(busy.waiting(), 7);
    assert_eq!(idle.membership.steal(8, 4, &mut stolen).unwrap(), 3);
    assert_eq!((busy.waiting(), idle.waiting(), stolen.len()), (4, 1, 6));
    assert_eq!(idle.membership.steal(8, 4, &mut stolen).unwrap(), 0);
    assert_eq!(busy.membership.steal(8, 1, &mut stolen).unwrap(), 0);
    stolen.into_iter().for_each(serve);
    clients.into_iter().take(6).for_each(expect_service);
}
