//! Tracks which member of a partitioned listener holds which accept queue.

use super::balance::{Board, Finding, Pacing, Steering, Tally};
use super::error::ListenerError;
use super::mailbox::{Mailbox, Queue, QueueChange};
use super::program;
use super::socket::{self, Orphans};
use crate::cpuset::CpuSet;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{debug, info, warn};

/// The member with the fewest accepts of all counts as busy, not idle, if its queue has more
/// connections than this.
const BUSY_QUEUE: u32 = 8;

/// A listener with its siblings and members.
///
/// Invariant: the shares are in the kernel's order, from index 1 on; their CPUs are disjoint; each
/// has a holder that is a member; each member holds its main share, whose CPUs are those of its
/// claim. A share that is not the main share of a member is a loan. A member holds the original,
/// too, exactly while the shares have all online CPUs.
#[derive(Debug)]
pub(super) struct Group {
    /// The partition's own descriptor, so that index 0 stays the original's even if the application
    /// closes it.
    original: Queue,
    original_holder: Option<u64>,
    /// The CPUs that were online when the group began.
    online: CpuSet,
    shares: Vec<Share>,
    members: Vec<Member>,
    board: Arc<Board>,
    pacing: Pacing,
    /// The process that created the sockets. A forked child must not stop them.
    process: u32,
}

#[derive(Clone, Debug)]
struct Share {
    queue: Queue,
    cpus: CpuSet,
    holder: u64,
}

#[derive(Debug)]
struct Member {
    id: u64,
    /// The id of the member's main queue.
    main: u64,
    mailbox: Arc<Mailbox>,
    /// The member's slot on the board.
    slot: usize,
    /// Whether the member agrees to rebalancing.
    rebalances: bool,
}

/// What a member gets when it joins.
pub(super) struct Seat {
    pub(super) id: u64,
    pub(super) queue: Queue,
    pub(super) tally: Tally,
    /// The id of the original's queue.
    pub(super) original: u64,
}

/// The shares that would result from a new member's claim.
struct Claim {
    shares: Vec<Share>,
    /// Positions of the loans that would lose their last CPU to the claim.
    emptied: Vec<usize>,
}

/// A new id for a queue or a member.
fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Group {
    /// Prepares a listening TCP socket for sharing. The group has no members yet.
    pub(super) fn found(listener: BorrowedFd<'_>) -> Result<Group, ListenerError> {
        if socket::is_reuseport(listener)? {
            return Err(ListenerError::AlreadyShared);
        }
        let original = listener.try_clone_to_owned().map_err(ListenerError::setup(
            "fcntl(F_DUPFD_CLOEXEC)",
            "raise the limit on open files (ulimit -n)",
        ))?;
        socket::set_reuseport(listener, true)?;
        let original = Queue { id: fresh_id(), descriptor: Arc::new(original) };
        let online = socket::online_cpus().unwrap_or((0..CpuSet::CAPACITY).collect());
        let process = std::process::id();
        // Each member claims at least one CPU of its own that may exist.
        let members = socket::possible_cpus().map_or(CpuSet::CAPACITY, |cpus| cpus.iter().count());
        Ok(Group {
            original,
            original_holder: None,
            online,
            shares: Vec::new(),
            members: Vec::new(),
            board: Board::new(members),
            pacing: Pacing::default(),
            process,
        })
    }

    /// Returns whether this process created the group.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns whether the group has no members.
    pub(super) fn is_deserted(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a member, and returns its id, main queue and tally. The set contains a CPU that may
    /// exist. Other loans that the claim took over arrive in the member's mailbox.
    pub(super) fn join(
        &mut self,
        cpus: &CpuSet,
        mailbox: &Arc<Mailbox>,
        rebalances: bool,
    ) -> Result<Seat, ListenerError> {
        let id = fresh_id();
        let Claim { mut shares, emptied } = self.claim(id, cpus)?;
        let spare = || {
            let unused = |share: &Share| share.cpus.is_empty() && !self.is_main(share.queue.id);
            shares.iter().position(unused)
        };
        // A loan with the member's CPUs may hold connections for the member, so it comes first.
        if let Some(position) = emptied.first().copied().or_else(spare) {
            shares[position].holder = id;
            shares[position].cpus = *cpus;
            self.steer(&shares)?;
            let queue = shares[position].queue.clone();
            let seat = self.admit(id, queue.clone(), mailbox, rebalances);
            self.commit(shares, Some(queue.id));
            return Ok(seat);
        }
        let owned = shares.iter().map(|share| share.cpus).chain([*cpus]);
        let program = program::generate(&owned.collect::<Vec<_>>());
        // A new socket gets connections at once if the group is new, so it must not fail later.
        let original = self.original.descriptor.as_fd();
        socket::rehearse(original, &program)?;
        let descriptor = Arc::new(socket::sibling(original)?);
        if let Err(error) = socket::steer(original, &program) {
            socket::stop(descriptor.as_fd());
            return Err(error);
        }
        let queue = Queue { id: fresh_id(), descriptor };
        shares.push(Share { queue: queue.clone(), cpus: *cpus, holder: id });
        let seat = self.admit(id, queue.clone(), mailbox, rebalances);
        self.commit(shares, Some(queue.id));
        Ok(seat)
    }

    /// Returns the queues that other members hold, without the original.
    pub(super) fn queues_of_others(&self, member: u64) -> Vec<Queue> {
        let others = self.shares.iter().filter(|share| share.holder != member);
        others.map(|share| share.queue.clone()).collect()
    }

    /// Removes a member; its queues, with their CPUs, go to the members that hold the fewest. If
    /// there is no other member, the caller has to [dissolve](Group::dissolve) the group.
    pub(super) fn leave(&mut self, member: u64) {
        let Some(position) = self.members.iter().position(|other| other.id == member) else {
            return;
        };
        let leaver = self.members.remove(position);
        leaver.mailbox.forget(member);
        self.board.free_slot(leaver.slot);
        let mut shares = self.shares.clone();
        let mut loads = self.loads(&shares);
        for share in shares.iter_mut().filter(|share| share.holder == member) {
            let Some((successor, held)) = loads.iter_mut().min_by_key(|(_, held)| *held) else {
                break;
            };
            share.holder = *successor;
            *held += 1;
        }
        self.commit(shares, None);
        let was_spread = self.board.steering() == Steering::Spread;
        if was_spread && let Err(error) = self.steer(&self.shares) {
            warn!(%error, "connections may still come to the queue of a member that left");
        }
        self.board.begin(Steering::ByCpu);
        info!(member, remaining = self.members.len(), "a member left a shared listener");
    }

    /// Changes the steering as a member's finding requires; returns true if rebalancing starts.
    pub(super) fn rebalance(&mut self, finding: &Finding) -> bool {
        if finding.epoch != self.board.epoch() {
            return false;
        }
        let now = self.board.now();
        if !self.members.iter().all(|member| member.rebalances) {
            self.board.hold(self.pacing.keep_by_cpu(now));
            return false;
        }
        let is_busy = finding.last.is_some_and(|slot| self.is_busy(slot));
        let result = match self.board.steering() {
            Steering::ByCpu if is_busy => {
                self.board.hold(self.pacing.keep_by_cpu(now));
                return false;
            }
            Steering::ByCpu => self.spread(),
            // A member got its share of connections and did not accept them.
            Steering::Spread if is_busy || finding.is_target_paused => {
                self.board.hold(self.pacing.keep_by_cpu(now));
                self.steer(&self.shares)
            }
            Steering::Spread if self.board.holds(now) => return false,
            Steering::Spread => {
                self.pacing.restore(now);
                self.steer(&self.shares)
            }
        };
        if let Err(error) = &result {
            warn!(%error, "the steering of a shared listener stays as it is");
            self.board.hold(self.pacing.keep_by_cpu(now));
            return false;
        }
        let is_spread = self.board.steering() == Steering::Spread;
        if is_spread {
            self.board.hold(self.pacing.spread(now));
        }
        info!(is_spread, "changed the steering of a shared listener");
        is_spread
    }

    /// Returns the listener to the application in its original state, and the connections in the
    /// other queues to the caller.
    pub(super) fn dissolve(self) -> Orphans {
        let mut orphans = Orphans::default();
        let original = self.original.descriptor.as_fd();
        if !self.shares.is_empty() {
            if let Err(error) = socket::steer(original, &program::generate(&[])) {
                warn!(%error, "queues are closed while connections may still arrive in them");
            }
            socket::await_grace_period();
            finish_handshakes(original);
        }
        for share in &self.shares {
            if let Err(error) = socket::deafen(share.queue.descriptor.as_fd()) {
                warn!(%error, "a connection that begins while a queue is closed may be reset");
            }
            empty(share.queue.descriptor.as_fd(), &mut orphans);
            socket::stop(share.queue.descriptor.as_fd());
        }
        if !self.shares.is_empty()
            && let Err(error) = socket::unsteer(original)
        {
            warn!(%error, "the program that steers stays on the listener");
        }
        if let Err(error) = socket::set_reuseport(original, false) {
            warn!(%error, "the listener cannot be shared again");
        }
        let connections = orphans.connections.len();
        if connections > 0 || orphans.lost > 0 {
            warn!(connections, lost = orphans.lost, "the last member left connections waiting");
        }
        orphans
    }

    /// Returns the CPUs of all shares.
    fn claimed(&self) -> CpuSet {
        self.shares.iter().fold(CpuSet::empty(), |all, share| all.union(&share.cpus))
    }

    /// Returns the members with the numbers of these shares that they hold.
    fn loads(&self, shares: &[Share]) -> Vec<(u64, usize)> {
        let mut held: BTreeMap<u64, usize> = BTreeMap::new();
        for share in shares {
            *held.entry(share.holder).or_default() += 1;
        }
        let load = |member: &Member| (member.id, held.get(&member.id).copied().unwrap_or(0));
        self.members.iter().map(load).collect()
    }

    fn is_main(&self, queue: u64) -> bool {
        self.members.iter().any(|member| member.main == queue)
    }

    fn admit(&mut self, id: u64, queue: Queue, mailbox: &Arc<Mailbox>, rebalances: bool) -> Seat {
        // There is a free slot: sets are disjoint, and each contains a CPU that may exist.
        let slot = self.board.take_slot().unwrap_or_default();
        let mailbox = Arc::clone(mailbox);
        self.members.push(Member { id, main: queue.id, mailbox, slot, rebalances });
        self.board.begin(Steering::ByCpu);
        let tally = Tally::new(Arc::clone(&self.board), slot);
        Seat { id, queue, tally, original: self.original.id }
    }

    /// Removes the CPUs from all loans; loans without CPUs then belong to the claimer.
    fn claim(&self, claimer: u64, cpus: &CpuSet) -> Result<Claim, ListenerError> {
        let mut overlap = CpuSet::empty();
        let mut shares = self.shares.clone();
        let mut emptied = Vec::new();
        for (position, share) in shares.iter_mut().enumerate() {
            let wanted = share.cpus.intersection(cpus);
            if wanted.is_empty() {
                continue;
            }
            if !self.is_main(share.queue.id) {
                share.cpus = share.cpus.difference(cpus);
                if share.cpus.is_empty() {
                    share.holder = claimer;
                    emptied.push(position);
                }
            } else {
                overlap = overlap.union(&wanted);
            }
        }
        if overlap.is_empty() {
            Ok(Claim { shares, emptied })
        } else {
            Err(ListenerError::Overlap { cpus: overlap.into() })
        }
    }

    fn steer(&self, shares: &[Share]) -> Result<(), ListenerError> {
        let owned: Vec<CpuSet> = shares.iter().map(|share| share.cpus).collect();
        socket::steer(self.original.descriptor.as_fd(), &program::generate(&owned))?;
        self.board.begin(Steering::ByCpu);
        Ok(())
    }

    /// Distributes the connections of claimed CPUs to the members that accept, at random.
    fn spread(&self) -> Result<(), ListenerError> {
        self.board.choose_targets();
        let claimed = self.claimed();
        let accepts = |queue| {
            let mut members = self.members.iter();
            members.any(|member| member.main == queue && self.board.is_target(member.slot))
        };
        let numbered = self.shares.iter().zip(1..);
        let targets: Vec<u32> = numbered
            .filter_map(|(share, index)| accepts(share.queue.id).then_some(index))
            .collect();
        let program = program::generate_spread(&claimed, &targets);
        socket::steer(self.original.descriptor.as_fd(), &program)?;
        self.board.begin(Steering::Spread);
        Ok(())
    }

    /// Returns whether many connections are queued for the member with this slot.
    fn is_busy(&self, slot: usize) -> bool {
        let main = self.members.iter().find(|member| member.slot == slot).map(|member| member.main);
        let share = self.shares.iter().find(|share| Some(share.queue.id) == main);
        share.is_some_and(|share| {
            socket::queue_length(share.queue.descriptor.as_fd()).is_ok_and(|it| it > BUSY_QUEUE)
        })
    }

    /// Commits the shares and notifies the members whose queues changed. `direct` is left out,
    /// because its holder gets it as a return value.
    fn commit(&mut self, shares: Vec<Share>, direct: Option<u64>) {
        let former = std::mem::replace(&mut self.shares, shares);
        for (position, share) in self.shares.iter().enumerate() {
            let before = former.get(position).map(|share| share.holder);
            let is_direct = direct == Some(share.queue.id);
            self.hand_over(&share.queue, before, Some(share.holder), is_direct);
        }
        let before = self.original_holder;
        self.original_holder = self.choose_original_holder();
        self.hand_over(&self.original, before, self.original_holder, false);
    }

    /// Returns the member that accepts from the original, if the application need not: connections
    /// are in its queue that began earlier, or while the program did not match the sockets.
    fn choose_original_holder(&self) -> Option<u64> {
        if !self.online.difference(&self.claimed()).is_empty() {
            return None;
        }
        let stays = |id: &u64| self.members.iter().any(|member| member.id == *id);
        self.original_holder.filter(stays).or_else(|| {
            let loads = self.loads(&self.shares).into_iter();
            loads.min_by_key(|(_, held)| *held).map(|(id, _)| id)
        })
    }

    /// Notifies the former and the new holder of a queue; `is_direct` if the new one gets it as a
    /// return value.
    fn hand_over(&self, queue: &Queue, from: Option<u64>, to: Option<u64>, is_direct: bool) {
        if from == to {
            return;
        }
        let find = |id| self.members.iter().find(|member| Some(member.id) == id);
        if let Some(lender) = find(from) {
            lender.mailbox.post(QueueChange::Return { member: lender.id, queue: queue.id });
        }
        if let (false, Some(member)) = (is_direct, find(to)) {
            let queue = queue.clone();
            debug!(queue = queue.id, from, to, "a queue changes hands");
            member.mailbox.post(QueueChange::Adopt { member: member.id, queue });
        }
    }
}

/// Accepts all connections of a queue.
fn empty(queue: BorrowedFd<'_>, orphans: &mut Orphans) {
    loop {
        match socket::accept(queue) {
            Ok(Some(connection)) => orphans.connections.push(connection),
            Ok(None) => return,
            Err(error) => {
                let lost = socket::queue_length(queue).unwrap_or(0);
                warn!(lost, %error, "connections waiting in a queue are reset");
                orphans.lost += lost;
                return;
            }
        }
    }
}

/// Gives half-open handshakes time to end. On a busy machine the kernel answers even its own
/// packets late, in a thread that waits for the CPU.
#[cfg(not(test))]
fn finish_handshakes(_original: BorrowedFd<'_>) {
    std::thread::sleep(std::time::Duration::from_millis(50));
}

/// Waits for as long as it takes: the tests of this crate count every connection.
#[cfg(test)]
fn finish_handshakes(original: BorrowedFd<'_>) {
    let original = std::net::TcpListener::from(original.try_clone_to_owned().unwrap());
    testkit::await_handshakes(original.local_addr().unwrap().port());
}

#[cfg(test)]
mod tests;
