//! Messages between the processes of a run. Collective operations are made of messages, so that
//! each wait has a deadline, and everything above can be tested without MPI.

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Error, Result};

/// The rank of the process that serves, coordinates, and gathers the results.
pub(crate) const ROOT: usize = 0;

/// Longest message. The largest are histograms, of at most some 400 KiB each.
#[cfg(any(feature = "mpi", test))]
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Messages between the processes of a run, numbered from 0. Messages between two processes arrive
/// whole and in order. Must not be called while measuring, because it takes CPU time and sends
/// packets.
pub(crate) trait Control {
    /// This process's number.
    fn rank(&self) -> usize;

    /// Returns how many processes there are.
    fn size(&self) -> usize;

    /// Sends a message of at most `MESSAGE_BYTES_MAX`.
    fn send(&self, to: usize, bytes: &[u8]) -> Result<()>;

    /// Returns the next message from another process. The deadline is two minutes: a process that
    /// measures for longer sleeps until the agreed end before it waits for the others.
    fn receive(&self, from: usize) -> Result<Vec<u8>>;

    /// Sends the root's bytes to every process; what the others pass is ignored.
    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        if self.rank() != ROOT {
            return self.receive(ROOT);
        }
        (1..self.size()).try_for_each(|rank| self.send(rank, bytes))?;
        Ok(bytes.to_vec())
    }

    /// Collects the bytes of all processes at the root, by rank, its own included; the others get
    /// nothing.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.rank() != ROOT {
            self.send(ROOT, bytes)?;
            return Ok(Vec::new());
        }
        let others = (1..self.size()).map(|rank| self.receive(rank));
        std::iter::once(Ok(bytes.to_vec())).chain(others).collect()
    }
}

/// Sends the root's value to every process; the others pass `None`.
pub(crate) fn broadcast_value<T>(control: &dyn Control, value: Option<&T>) -> Result<T>
where
    T: Serialize + DeserializeOwned,
{
    let bytes = value.map(to_bytes).transpose()?.unwrap_or_default();
    from_bytes(&control.broadcast(&bytes)?, ROOT)
}

/// Collects the values of all processes at the root, by rank; the others get nothing.
pub(crate) fn gather_values<T>(control: &dyn Control, value: &T) -> Result<Vec<T>>
where
    T: Serialize + DeserializeOwned,
{
    let all = control.gather(&to_bytes(value)?)?;
    all.iter().enumerate().map(|(rank, bytes)| from_bytes(bytes, rank)).collect()
}

fn to_bytes<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| {
        Error::setup(format!("cannot encode a message: {error}"), "report this as a bug")
    })
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8], from: usize) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::setup(
            format!("cannot read a message from rank {from}: {error}"),
            "install the same iobench on every host; `iobench agent --check` shows the versions",
        )
    })
}

/// Fails for a length above the limit; for implementations of [`Control`].
#[cfg(any(feature = "mpi", test))]
pub(super) fn check_length(bytes: usize) -> Result<()> {
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::setup(
        format!("a message of {bytes} bytes exceeds the bound of {MESSAGE_BYTES_MAX}"),
        "run fewer points at a time",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::threads::on_threads;
    use super::*;

    #[test]
    fn all_receive_what_the_root_sends() {
        let got = on_threads(4, |control| {
            let own = format!("from {}", control.rank());
            control.broadcast(own.as_bytes())
        });
        assert!(got.into_iter().all(|bytes| bytes.unwrap() == b"from 0"));
    }

    #[test]
    fn the_root_gathers_by_rank_and_without_loss() {
        let buffer = |rank: usize| vec![rank as u8; 100_000 + rank];
        let mut got = on_threads(5, |control| control.gather(&buffer(control.rank())));
        let at_root = got.remove(ROOT).unwrap();
        assert_eq!(at_root, (0..5).map(buffer).collect::<Vec<_>>());
        assert!(got.into_iter().all(|others| others.unwrap().is_empty()));
    }

    #[test]
    fn nobody_hears_a_verdict_before_all_have_given_theirs() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let come = AtomicUsize::new(0);
        let seen = on_threads(4, |control| {
            for _ in 0..control.rank() {
                std::thread::yield_now();
            }
            come.fetch_add(1, Ordering::SeqCst);
            control.gather(&[]).unwrap();
            control.broadcast(&[]).unwrap();
            come.load(Ordering::SeqCst)
        });
        assert_eq!(seen, [4; 4]);
    }

    #[test]
    fn values_travel_and_strangers_are_refused() {
        let got = on_threads(3, |control| {
            let value = (control.rank() == ROOT).then_some(&42_u64);
            let broadcast: u64 = broadcast_value(control, value)?;
            gather_values(control, &(broadcast + control.rank() as u64))
        });
        assert_eq!(got[0].as_ref().unwrap(), &[42, 43, 44]);
        let error = from_bytes::<u64>(b"{\"other\": 1}", 2).unwrap_err().to_string();
        assert!(error.contains("rank 2") && error.contains("same iobench"), "{error}");
        assert!(check_length(MESSAGE_BYTES_MAX).is_ok());
        assert!(check_length(MESSAGE_BYTES_MAX + 1).is_err());
    }
}
