//! Paths between two processes: they wake each other, and one of them dies.

mod common;

use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{await_message, create, is_filled, send};
use fable::transport::{self, Direction, Offer, Transport};
use fable::{Kind, TransportError};

/// A child process; killed if it has not been waited for.
struct Child(libc::pid_t);

impl Child {
    /// Runs `work` on the offered end in a child, which exits with 0 if that succeeds.
    fn with_offer(offer: Offer, work: fn(Box<dyn Transport>)) -> Child {
        // SAFETY: the child only works on its own copy of this process and leaves by `_exit`.
        let process = unsafe { libc::fork() };
        assert!(process >= 0, "there can be a child");
        if process > 0 {
            return Child(process);
        }
        // SAFETY: ends the child, whatever happens, even if the parent is gone.
        unsafe { libc::alarm(60) };
        close_all_but(&offer);
        let done = catch_unwind(AssertUnwindSafe(|| work(transport::open(offer).unwrap())));
        // SAFETY: leaves without the parent's destructors.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }

    fn succeeds(self) {
        let mut status = 0;
        // SAFETY: our child, and a status that outlives the call.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        std::mem::forget(self);
        assert_eq!(status, 0, "the child succeeds");
    }

    fn kill(self) {
        drop(self);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our child, which nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// The child has inherited the parent's end too: a pipe whose writer it is itself never ends.
fn close_all_but(offer: &Offer) {
    let kept: Vec<i32> = offer.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    for descriptor in 3..1024 {
        if !kept.contains(&descriptor) {
            // SAFETY: the child uses no descriptor but those of the offer and the standard ones.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// One test for all: another thread's fork would inherit what this one has open.
#[test]
fn two_processes_wake_each_other_and_notice_a_death() {
    for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Tls) {
        eprintln!("{kind}");
        echo(kind);
        if !matches!(kind, Kind::MempipeFutex(_) | Kind::MempipeSpin(_) | Kind::Cacheline) {
            death(kind);
        }
    }
}

const ROUNDS: u64 = 300;

fn echo(kind: Kind) {
    let (mut own, offer) = create(kind);
    let child = Child::with_offer(offer, |mut end| {
        for round in 0..ROUNDS {
            let slot = await_message(&mut *end);
            assert!(is_filled(&slot, round));
            end.release(slot);
            send(&mut *end, 40, round + 7);
        }
        // A socket must not be closed before the peer has read.
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
    child.succeeds();
}

/// The child sends until it is killed: what arrives is whole and in order, then the path is closed.
fn death(kind: Kind) {
    let (mut own, offer) = create(kind);
    let child = Child::with_offer(offer, |mut end| {
        for number in 0_u64.. {
            send(&mut *end, 1 + (number * 997 % 30_000) as usize, number);
        }
    });
    let mut child = Some(child);
    for number in 0_u64.. {
        if number == 200
            && let Some(child) = child.take()
        {
            child.kill();
        }
        let slot = loop {
            match own.acquire_read() {
                Ok(Some(slot)) => break slot,
                Ok(None) => assert!(own.wait(Direction::Read, Some(common::PATIENCE)).unwrap()),
                Err(TransportError::Closed) if number >= 200 => return,
                Err(error) => panic!("{kind}: {error}"),
            }
        };
        assert_eq!(slot.len(), 1 + (number * 997 % 30_000) as usize);
        assert!(is_filled(&slot, number));
        own.release(slot);
    }
}
