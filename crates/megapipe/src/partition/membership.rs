//! A channel's share of a listener, and the registry where the shares of one listener meet.

use super::balance::Tally;
use super::error::ListenerError;
use super::group::{Group, Seat};
use super::office::{Office, Queue};
use super::socket::{self, Orphans};
use crate::cpuset::CpuSet;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use tracing::{debug, info};

/// The shared listeners of the process by the kernel's name for them, so that all descriptors of
/// one find the same.
static REGISTRY: Mutex<BTreeMap<u64, Weak<Partition>>> = Mutex::new(BTreeMap::new());

/// A listener and, while it has members, its group. The lock is taken after the registry's and
/// before those of the offices; only joining, changing, leaving and stealing take it.
#[derive(Debug, Default)]
struct Partition {
    group: Mutex<Option<Group>>,
}

impl Partition {
    /// The one of this listener, maybe new.
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
        // A group is changed only by steps that leave it whole.
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One channel's share of one listener. Dropping it is leaving, with the connections that no
/// other can take closed.
#[derive(Debug)]
pub(crate) struct Membership {
    partition: Arc<Partition>,
    id: u64,
    tally: Tally,
    has_left: bool,
}

impl Membership {
    /// Claims CPUs of a listening TCP socket, and gives the queue to accept their connections from.
    ///
    /// Any descriptor of the listener will do. The queue may hold connections already, if it was
    /// on loan; further loans that the claim took over come by mail, as does what changes later.
    /// Members get equal shares of the connections if the CPUs' are grossly unequal and all of
    /// them `rebalance`.
    pub(crate) fn join(
        listener: BorrowedFd<'_>,
        cpus: &CpuSet,
        office: &Arc<Office>,
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
        let result = group.join(cpus, office, rebalance);
        if group.is_deserted()
            && let Some(group) = state.take()
        {
            group.dissolve();
        }
        let Seat { id, queue, tally } = result?;
        info!(listener = cookie, member = id, queue = queue.id, %cpus, "joined a shared listener");
        drop(state);
        Ok((Membership { partition, id, tally, has_left: false }, queue))
    }

    /// What mail for this membership bears; unique in the process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Claims these CPUs instead of the present ones, which become the original's unless others
    /// claim them. Connections that wait already stay where they are. On error nothing changes.
    pub(crate) fn set_cpus(&self, cpus: &CpuSet) -> Result<(), ListenerError> {
        require_usable(cpus)?;
        if let Some(group) = &mut *self.partition.lock() {
            group.set_cpus(self.id, cpus)?;
            info!(member = self.id, %cpus, "changed the CPUs of a member");
        }
        Ok(())
    }

    /// The CPUs that are claimed; those of loans are not among them.
    pub(crate) fn cpus(&self) -> CpuSet {
        self.partition.lock().as_ref().map_or(CpuSet::empty(), |group| group.cpus(self.id))
    }

    /// Tells the other members whether this one takes connections, which it does not at first.
    pub(crate) fn set_accepting(&mut self, is_accepting: bool) {
        self.tally.set_accepting(is_accepting);
    }

    /// Counts a connection that came through one of its queues: a store, and now and then a
    /// comparison with the other members. True if that made the connections be spread over them.
    pub(crate) fn accepted(&mut self) -> bool {
        let Some(finding) = self.tally.accepted() else { return false };
        // Who joins, changes or leaves at this moment begins a new epoch anyway.
        let mut state = match self.partition.group.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        state.as_mut().is_some_and(|group| group.rebalance(&finding))
    }

    /// Ends the membership. All its queues, mail about them read or not, go to other members; only
    /// if there is none are they closed, and their connections given to the caller, which takes
    /// some milliseconds.
    ///
    /// First cancel the accepts on the queues and see their completions: what they still take
    /// after this is out of the partition's hands.
    pub(crate) fn leave(mut self) -> Orphans {
        self.depart()
    }

    /// Accepts up to `limit` connections from other members' queues that hold more than
    /// `watermark`, the longest first, and leaves each that many; never blocks. Tells how many it
    /// took. On error `into` has what was taken before.
    ///
    /// This is Affinity-Accept's stealing (section 3.3.1 there): short-term balance, by a
    /// channel that has nothing else to do.
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

/// A set may name CPUs that are offline now, but not only ones that can never be.
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
