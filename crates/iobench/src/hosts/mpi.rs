//! Messages between the processes over MPI.
//!
//! Uses only operations that can be tested for completion: MPI's own collective operations wait
//! without a time limit and keep a CPU busy meanwhile.

use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::{Communicator, Destination, MatchedReceiveVec, Source};

use super::control::{Control, check_length};
use crate::error::{Error, Result};
use crate::output;
use crate::{EXIT_ERROR, EXIT_INTERRUPTED};

/// Time-out of a wait for another process.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// How long a waiting process polls and yields its CPU: the other side of a ping-pong answers
/// within this time, and its round trip is measured.
const ATTENTIVE: Duration = Duration::from_millis(5);

/// Time between two polls after that.
const NAP: Duration = Duration::from_micros(200);

/// Runs `work` with messages to the other processes. An error or a panic in one process ends all of
/// them, because the others would wait for it forever. Without mpirun there is one process.
pub(crate) fn with_control<T>(work: impl FnOnce(&dyn Control) -> Result<T>) -> Result<T> {
    // Only the thread that initialises MPI uses it. A second use within a process is a bug.
    let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)
        .ok_or_else(|| Error::setup("MPI was initialised before", "report this as a bug"))?;
    let all = All { world: universe.world() };
    match work(&all) {
        Err(error) if all.size() > 1 => {
            output::note(&format!("rank {}: {error}", all.rank()));
            let interrupted = matches!(error, Error::Interrupted | Error::Partial(_));
            all.end(if interrupted { EXIT_INTERRUPTED } else { EXIT_ERROR })
        }
        outcome => outcome,
    }
}

/// All processes that mpirun started.
struct All {
    world: SimpleCommunicator,
}

impl All {
    fn process(&self, rank: usize) -> Result<Process<'_>> {
        let known = i32::try_from(rank).ok().filter(|&rank| rank < self.world.size());
        let unknown = || {
            let cause = format!("there is no rank {rank} among {}", self.world.size());
            Error::setup(cause, "report this as a bug")
        };
        known.map(|rank| self.world.process_at_rank(rank)).ok_or_else(unknown)
    }

    fn end(&self, status: u8) -> ! {
        self.world.abort(i32::from(status))
    }
}

impl Drop for All {
    /// Aborts during a panic: unwinding would end in MPI_Finalize, which waits for the others.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end(EXIT_ERROR);
        }
    }
}

impl Control for All {
    fn rank(&self) -> usize {
        usize::try_from(self.world.rank()).unwrap_or(0)
    }

    fn size(&self) -> usize {
        usize::try_from(self.world.size()).unwrap_or(1)
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        check_length(bytes.len())?;
        let process = self.process(to)?;
        mpi::request::scope(|scope| {
            let mut request = process.immediate_send(scope, bytes);
            let mut wait = Wait::begin();
            loop {
                match request.test() {
                    Ok(_) => return Ok(()),
                    Err(open) => request = open,
                }
                if !wait.goes_on() {
                    // MPI still uses the bytes, so they cannot be returned to the caller.
                    output::note(&format!("rank {}: {}", self.rank(), silent(to)));
                    self.end(EXIT_ERROR);
                }
            }
        })
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>> {
        let process = self.process(from)?;
        let mut wait = Wait::begin();
        loop {
            if let Some(message) = process.immediate_matched_probe() {
                return Ok(message.matched_receive_vec().0);
            }
            if !wait.goes_on() {
                return Err(silent(from));
            }
        }
    }
}

/// A wait with a deadline, which polls at first and then sleeps between polls.
struct Wait {
    begun: Instant,
}

impl Wait {
    fn begin() -> Wait {
        Wait { begun: Instant::now() }
    }

    /// Waits for a moment; false after the deadline.
    fn goes_on(&mut self) -> bool {
        let waited = self.begun.elapsed();
        if waited < ATTENTIVE {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
        waited < TIME_LIMIT
    }
}

fn silent(rank: usize) -> Error {
    Error::setup(
        format!("rank {rank} did not answer within {} s", TIME_LIMIT.as_secs()),
        "check that iobench still runs on its host, and that the hosts reach each other",
    )
}
