//! Threads in place of hosts: what the processes agree on can be tested without MPI.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::control::{Control, check_length};
use crate::error::{Error, Result};

/// Nothing that the tests wait for takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

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
        let gone = |_| Error::setup(format!("rank {to} has ended"), "look at its error");
        self.to[to].send(bytes.to_vec()).map_err(gone)
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>> {
        let silent = |_| Error::setup(format!("rank {from} is silent"), "look at its error");
        self.from[from].recv_timeout(PATIENCE).map_err(silent)
    }
}

/// Runs the same work as each of `size` ranks, and returns what they return, by rank.
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
