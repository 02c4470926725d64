//! Counts the objects that this process keeps for each peer, and limits them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the objects kept for each peer.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    held: Mutex<BTreeMap<Arc<str>, usize>>,
}

impl Quota {
    /// Counts one more object of this peer, or returns `None` if there are `max` already. Dropping
    /// the share counts it down.
    pub(crate) fn take(&'static self, peer: &str, max: usize) -> Option<Share> {
        let mut held = self.lock();
        let known = held.get_key_value(peer).map(|(peer, count)| (Arc::clone(peer), *count));
        let (peer, count) = known.unwrap_or_else(|| (Arc::from(peer), 0));
        if count >= max {
            return None;
        }
        held.insert(Arc::clone(&peer), count + 1);
        Some(Share { quota: self, peer })
    }

    /// Returns how many objects are counted for all peers.
    pub(crate) fn total(&self) -> usize {
        self.lock().values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One counted object; dropping it counts it down.
#[derive(Debug)]
pub(crate) struct Share {
    quota: &'static Quota,
    peer: Arc<str>,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.quota.lock();
        match held.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(held.remove(&self.peer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_its_own_bound_and_nothing_is_kept_of_those_that_have_none() {
        let quota: &'static Quota = Box::leak(Box::default());
        let mut shares: Vec<_> = (0..3).filter_map(|_| quota.take("a", 2)).collect();
        assert_eq!((shares.len(), quota.total()), (2, 2));
        let other = quota.take("b", 2);
        assert!(other.is_some() && quota.total() == 3);
        shares.pop();
        shares.extend(quota.take("a", 2));
        assert!(quota.take("a", 2).is_none());
        drop((shares, other));
        assert!(quota.lock().is_empty());
    }
}
