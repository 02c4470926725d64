//! Implements a channel's membership in a partitioned listener, and the registry of the process's
//! partitioned listeners.

use super::balance::Tally;
use super::error::ListenerError;
use super::group::{Group, Seat};
use super::mailbox::{Mailbox, Queue};
use super::socket::{self, Orphans};
use crate::cpuset::CpuSet;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use tracing::{debug, info};

/// The partitioned listeners of the process by socket cookie, so that all descriptors of one
/// listener lead to the same entry.
static REGISTRY: Mutex<BTreeMap<u64, Weak<Partition>>> = Mutex::new(BTreeMap::new());

/// A listener and, while it has members, its group. The lock is taken after that of the registry
/// and before those of the mailboxes; only joining, leaving, rebalancing and stealing take it.
#[derive(Debug, Default)]
struct Partition {
    group: Mutex<Option<Group>>,
}

impl Partition {
    /// Returns the partition of this listener; creates it if there is none.
    fn of(cookie: u64) -> Arc<Partition> {
        let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(partition) = registry.get(&cookie).and_then(Weak::upgrade) {
            return partition;
        }
        registry.retain(|_, partition| partition.strong_count() > 0);
        let partition = Arc::new(Partition::default());
        registry.insert(cookie, Arc::downgrade(&partition));
        partition
    }

    fn lock(&self) -> MutexGuard<'_, Option<Group>> {
        // Each step that changes a group leaves it consistent.
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The membership of one channel in one listener. Dropping it leaves the listener, and closes
/// connections that no other member can take over.
#[derive(Debug)]
pub(crate) struct Membership {
    partition: Arc<Partition>,
    id: u64,
    tally: Tally,
    /// The id of the original's queue.
    original: u64,
    has_left: bool,
}

impl Membership {
    /// Claims CPUs of a listening TCP socket, and returns the queue of their connections.
    ///
    /// Any descriptor of the listener can be used. The queue may already have connections, if it
    /// was on loan. Further loans that the claim took over, and loans of members that leave later,
    /// arrive in the mailbox. If the CPUs distribute the connections very unequally, members get
    /// equal shares of them, provided that all members have `rebalance` set.
    pub(crate) fn join(
        listener: BorrowedFd<'_>,
        cpus: &CpuSet,
        mailbox: &Arc<Mailbox>,
        rebalance: bool,
    ) -> Result<(Membership, Queue), ListenerError> {
        let cookie = socket::cookie(listener)?;
        require_usable(cpus)?;
        let partition = Partition::of(cookie);
        let mut state = partition.lock();
        // A child process has its parent's state after a fork, but not its channels.
        state.take_if(|group| !group.is_ours());
        let group = match &mut *state {
            Some(group) => group,
            none => none.insert(Group::found(listener)?),
        };
        let result = group.join(cpus, mailbox, rebalance);
        if group.is_deserted()
            && let Some(group) = state.take()
        {
            group.dissolve();
        }
        let Seat { id, queue, tally, original } = result?;
        info!(listener = cookie, member = id, queue = queue.id, %cpus, "joined a shared listener");
        drop(state);
        Ok((Membership { partition, id, tally, original, has_left: false }, queue))
    }

    /// Returns the id of this membership in messages; unique in the process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Publishes whether this member accepts connections; at first it does not.
    pub(crate) fn set_accepting(&mut self, is_accepting: bool) {
        self.tally.set_accepting(is_accepting);
    }

    /// Returns whether a queue is the original's.
    pub(crate) fn is_original(&self, queue: u64) -> bool {
        queue == self.original
    }

    /// Counts a connection from one of its queues: a store, and occasionally a comparison with the
    /// other members. Returns true if that started rebalancing. The original does not count,
    /// because the steering did not choose its connections.
    pub(crate) fn accepted(&mut self, queue: u64) -> bool {
        if self.is_original(queue) {
            return false;
        }
        let Some(finding) = self.tally.accepted() else { return false };
        // A member that joins or leaves at this moment begins a new epoch anyway.
        let mut state = match self.partition.group.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        state.as_mut().is_some_and(|group| group.rebalance(&finding))
    }

    /// Ends the membership. All its queues, whether messages about them were read or not, go to
    /// other members. If there is no other member, the queues are closed and their connections
    /// returned to the caller, which takes some milliseconds.
    ///
    /// Before the call, cancel the accepts on the queues and await their completions: the partition
    /// loses connections that they take later.
    pub(crate) fn leave(mut self) -> Orphans {
        self.depart()
    }

    /// Accepts up to `limit` connections from other members' queues that hold more than `watermark`
    /// connections, the longest queue first, and leaves that many in each; never blocks. Returns
    /// the number of connections. On error `into` has those accepted before.
    ///
    /// This is Affinity-Accept's stealing (section 3.3.1 there): short-term balance by an idle
    /// channel.
    pub(crate) fn steal(
        &self,
        limit: usize,
        watermark: u32,
        into: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let queues = match &*self.partition.lock() {
            Some(group) => group.queues_of_others(self.id),
            None => return Ok(0),
        };
        let mut busy = Vec::new();
        for queue in queues {
            // A queue that was closed meanwhile has no length.
            let length = socket::queue_length(queue.descriptor.as_fd()).unwrap_or(0);
            if length > watermark {
                busy.push((length - watermark, queue));
            }
        }
        busy.sort_by_key(|(surplus, _)| std::cmp::Reverse(*surplus));
        let before = into.len();
        for (surplus, queue) in busy {
            for _ in 0..surplus {
                if into.len() - before == limit {
                    break;
                }
                match socket::accept(queue.descriptor.as_fd())? {
                    Some(connection) => into.push(connection),
                    None => break,
                }
            }
        }
        let stolen = into.len() - before;
        if stolen > 0 {
            debug!(member = self.id, stolen, "took connections from busy members");
        }
        Ok(stolen)
    }

    fn depart(&mut self) -> Orphans {
        if std::mem::replace(&mut self.has_left, true) {
            return Orphans::default();
        }
        let mut state = self.partition.lock();
        let Some(group) = state.as_mut().filter(|group| group.is_ours()) else {
            return Orphans::default();
        };
        group.leave(self.id);
        match state.take_if(|group| group.is_deserted()) {
            Some(group) => group.dissolve(),
            None => Orphans::default(),
        }
    }
}

/// Fails for a set without any CPU that may exist. A set may name CPUs that are offline now.
fn require_usable(cpus: &CpuSet) -> Result<(), ListenerError> {
    if cpus.is_empty() {
        return Err(ListenerError::NoCpu);
    }
    match socket::possible_cpus() {
        Some(possible) if possible.intersection(cpus).is_empty() => {
            Err(ListenerError::ImpossibleCpus { cpus: (*cpus).into(), possible: possible.into() })
        }
        _ => Ok(()),
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.depart();
    }
}
