//! Threads in place of hosts, so that agreements can be tested without MPI.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::control::{Control, check_length};
use crate::error::{Error, Result};

/// Time-out of the tests' waits, long enough for a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// One of several threads, with a channel to and from each.
struct Thread {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl Control for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        check_length(bytes.len())?;
        let gone = |_| Error::setup(format!("rank {to} has ended"), "see its error message");
        self.to[to].send(bytes.to_vec()).map_err(gone)
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>> {
        let silent =
            |_| Error::setup(format!("rank {from} did not answer"), "see its error message");
        self.from[from].recv_timeout(TIME_LIMIT).map_err(silent)
    }
}

/// Runs the same function as each of `size` ranks; returns the results by rank.
pub(crate) fn on_threads<T: Send>(
    size: usize,
    work: impl Fn(&dyn Control) -> T + Send + Sync,
) -> Vec<T> {
    let mut senders: Vec<Vec<_>> = (0..size).map(|_| Vec::new()).collect();
    let mut receivers: Vec<Vec<_>> = (0..size).map(|_| Vec::new()).collect();
    for to in &mut receivers {
        for from in &mut senders {
            let (sender, receiver) = channel();
            from.push(sender);
            to.push(receiver);
        }
    }
    let ends = senders.into_iter().zip(receivers).enumerate();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends
            .map(|(rank, (to, from))| {
                let work = &work;
                scope.spawn(move || work(&Thread { rank, to, from }))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("the work ends")).collect()
    })
}
