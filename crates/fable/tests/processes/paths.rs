//! Tests of paths between two processes: they wake each other, and one of them dies.

use std::os::fd::AsRawFd;

use crate::child::{Child, fork};
use crate::common::{TIME_LIMIT, await_message, create, is_filled, send};
use fable::transport::{self, Direction, Offer, Transport};
use fable::{Kind, TransportError};

/// Runs `work` on the offered end in a child.
fn with_offer(offer: Offer, work: fn(Box<dyn Transport>)) -> Child {
    fork(move || {
        // SAFETY: ends the child in any case, even if the parent is dead.
        unsafe { libc::alarm(600) };
        close_all_but(&offer);
        work(transport::open(offer).unwrap());
    })
}

/// Closes the parent's end, which the child has inherited: a pipe has no end of file while the
/// child itself has its writing end.
fn close_all_but(offer: &Offer) {
    let kept: Vec<i32> = offer.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    for descriptor in 3..1024 {
        if !kept.contains(&descriptor) {
            // SAFETY: the child uses no descriptor but those of the offer and the standard ones.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// One test for all: a fork of another thread would inherit this one's descriptors.
#[test]
fn two_processes_wake_each_other_and_notice_a_death() {
    let _alone = crate::child::alone();
    for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Tls) {
        eprintln!("{kind}");
        echo(kind);
        if !matches!(kind, Kind::MempipeFutex(_)) {
            death(kind);
        }
    }
}

const ROUNDS: u64 = 300;

fn echo(kind: Kind) {
    let (mut own, offer) = create(kind);
    let mut child = with_offer(offer, |mut end| {
        for round in 0..ROUNDS {
            let slot = await_message(&mut *end);
            assert!(is_filled(&slot, round));
            end.release(slot);
            send(&mut *end, 40, round + 7);
        }
        // A socket must not be closed before the peer has read everything.
        let slot = await_message(&mut *end);
        end.release(slot);
    });
    for round in 0..ROUNDS {
        send(&mut *own, (round % 57) as usize, round);
        let slot = await_message(&mut *own);
        assert!(slot.len() == 40 && is_filled(&slot, round + 7));
        own.release(slot);
    }
    send(&mut *own, 0, 0);
    assert_eq!(child.wait(TIME_LIMIT), Some(0), "{kind}: the child succeeds");
}

/// The child sends until it is killed: every message that arrives is whole and in order, then the
/// path is closed.
fn death(kind: Kind) {
    let (mut own, offer) = create(kind);
    let child = with_offer(offer, |mut end| {
        for number in 0_u64.. {
            send(&mut *end, 1 + (number * 997 % 30_000) as usize, number);
        }
    });
    let mut child = Some(child);
    for number in 0_u64.. {
        if number == 200 {
            drop(child.take());
        }
        let slot = loop {
            match own.acquire_read() {
                Ok(Some(slot)) => break slot,
                Ok(None) => assert!(own.wait(Direction::Read, Some(TIME_LIMIT)).unwrap()),
                Err(TransportError::Closed) if number >= 200 => return,
                Err(error) => panic!("{kind}: {error}"),
            }
        };
        assert_eq!(slot.len(), 1 + (number * 997 % 30_000) as usize);
        assert!(is_filled(&slot, number));
        own.release(slot);
    }
}
