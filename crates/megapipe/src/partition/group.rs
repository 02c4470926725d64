//! Who holds which accept queue of a listener that is being shared.

use super::balance::{Board, Finding, Pacing, Steering, Tally};
use super::error::ListenerError;
use super::office::{Mail, Office, Queue};
use super::program;
use super::socket::{self, Orphans};
use crate::cpuset::CpuSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tracing::{debug, info, warn};

/// Time that the last to leave gives to handshakes that are half done. On a busy machine the
/// kernel answers even its own packets late, by a thread that waits for its turn.
const HALF_DONE: Duration = Duration::from_millis(50);

/// A member with the fewest accepts of all is busy, not idle, if more connections than this wait in
/// its queue.
const BUSY_QUEUE: u32 = 8;

/// A listener with its siblings and members.
///
/// Law: the shares stand in the kernel's order, that of index 1 on; their CPUs are disjoint; each
/// has a holder that is a member; each member holds its main share, whose CPUs are the ones it
/// claims. A share that is no member's main one is a loan.
#[derive(Debug)]
pub(super) struct Group {
    /// Ours, so that index 0 stays the original's even if the application closes it.
    original: OwnedFd,
    shares: Vec<Share>,
    members: Vec<Member>,
    board: Arc<Board>,
    pacing: Pacing,
    /// The process that made the sockets. In a child after a fork, they are not ours to stop.
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
    /// The id of its main queue.
    main: u64,
    office: Arc<Office>,
    /// Its place on the board.
    slot: usize,
    /// Whether it lets connections of its CPUs go to others, and takes theirs.
    rebalances: bool,
}

/// What a member that joins gets.
pub(super) struct Seat {
    pub(super) id: u64,
    pub(super) queue: Queue,
    pub(super) tally: Tally,
}

/// The shares as they would be if a member had the CPUs it claims.
struct Claim {
    shares: Vec<Share>,
    /// Positions of the loans that lost their last CPU to the claim.
    emptied: Vec<usize>,
}

/// An id for a queue or a member.
fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Group {
    /// Prepares a listening TCP socket for sharing; without members there is nothing to share yet.
    pub(super) fn found(listener: BorrowedFd<'_>) -> Result<Group, ListenerError> {
        if socket::is_reuseport(listener)? {
            return Err(ListenerError::AlreadyShared);
        }
        let original = listener.try_clone_to_owned().map_err(ListenerError::setup(
            "fcntl(F_DUPFD_CLOEXEC)",
            "raise the limit on open files (ulimit -n)",
        ))?;
        socket::set_reuseport(listener, true)?;
        let process = std::process::id();
        // Each member claims a CPU of its own that may exist.
        let members = socket::possible_cpus().map_or(CpuSet::CAPACITY, |cpus| cpus.iter().count());
        let (board, pacing) = (Board::new(members), Pacing::default());
        Ok(Group { original, shares: Vec::new(), members: Vec::new(), board, pacing, process })
    }

    /// Whether this process has members in it.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    pub(super) fn is_deserted(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a member, and gives its id, main queue and tally. The set names a CPU that may exist.
    /// Other loans that the claim took over come to it by mail.
    pub(super) fn join(
        &mut self,
        cpus: &CpuSet,
        office: &Arc<Office>,
        rebalances: bool,
    ) -> Result<Seat, ListenerError> {
        let id = fresh_id();
        let Claim { mut shares, emptied } = self.claim(id, cpus)?;
        let spare = || {
            let unused = |share: &Share| share.cpus.is_empty() && !self.is_main(share.queue.id);
            shares.iter().position(unused)
        };
        // A loan with the member's CPUs may hold the member's connections, so it comes first.
        if let Some(position) = emptied.first().copied().or_else(spare) {
            shares[position].holder = id;
            shares[position].cpus = *cpus;
            self.steer(&shares)?;
            let queue = shares[position].queue.clone();
            let seat = self.admit(id, queue.clone(), office, rebalances);
            self.commit(shares, Some(queue.id));
            return Ok(seat);
        }
        let owned = shares.iter().map(|share| share.cpus).chain([*cpus]);
        let program = program::generate(&owned.collect::<Vec<_>>());
        // A new socket gets connections at once if the group is new, so it must not fail later.
        socket::rehearse(self.original.as_fd(), &program)?;
        let descriptor = Arc::new(socket::sibling(self.original.as_fd())?);
        if let Err(error) = socket::steer(self.original.as_fd(), &program) {
            socket::stop(descriptor.as_fd());
            return Err(error);
        }
        let queue = Queue { id: fresh_id(), descriptor };
        shares.push(Share { queue: queue.clone(), cpus: *cpus, holder: id });
        let seat = self.admit(id, queue.clone(), office, rebalances);
        self.commit(shares, Some(queue.id));
        Ok(seat)
    }

    /// Changes the CPUs of a member. Those it gives up become the original's.
    pub(super) fn set_cpus(&mut self, member: u64, cpus: &CpuSet) -> Result<(), ListenerError> {
        let mut shares = self.claim(member, cpus)?.shares;
        let main = self.main_of(member);
        for share in shares.iter_mut().filter(|share| Some(share.queue.id) == main) {
            share.cpus = *cpus;
        }
        self.steer(&shares)?;
        self.commit(shares, None);
        Ok(())
    }

    pub(super) fn cpus(&self, member: u64) -> CpuSet {
        let main = self.main_of(member);
        let share = self.shares.iter().find(|share| Some(share.queue.id) == main);
        share.map_or(CpuSet::empty(), |share| share.cpus)
    }

    /// The queues that other members hold.
    pub(super) fn queues_of_others(&self, member: u64) -> Vec<Queue> {
        let others = self.shares.iter().filter(|share| share.holder != member);
        others.map(|share| share.queue.clone()).collect()
    }

    /// Removes a member; its queues, with their CPUs, go to those that hold the fewest. If there
    /// is no other, the group is to be [dissolved](Group::dissolve).
    pub(super) fn leave(&mut self, member: u64) {
        let Some(position) = self.members.iter().position(|other| other.id == member) else {
            return;
        };
        let leaver = self.members.remove(position);
        leaver.office.forget(member);
        self.board.free_slot(leaver.slot);
        let mut shares = self.shares.clone();
        for position in 0..shares.len() {
            let held = |id| shares.iter().filter(|share| share.holder == id).count();
            let successor = self.members.iter().map(|other| other.id).min_by_key(|id| held(*id));
            if let (true, Some(successor)) = (shares[position].holder == member, successor) {
                shares[position].holder = successor;
            }
        }
        self.commit(shares, None);
        let was_spread = self.board.steering() == Steering::Spread;
        if was_spread && let Err(error) = self.steer(&self.shares) {
            warn!(%error, "connections may still come to the queue of a member that left");
        }
        self.board.begin(Steering::ByCpu);
        info!(member, remaining = self.members.len(), "a member left a shared listener");
    }

    /// Changes the steering as a member's finding asks for; true if connections are spread from now
    /// on that went by their CPU before.
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
            // A member gets its part and does not take it.
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

    /// Gives the listener back to the application, as it was before, and what the queues hold to
    /// the caller.
    pub(super) fn dissolve(self) -> Orphans {
        let mut orphans = Orphans::default();
        let original = self.original.as_fd();
        if !self.shares.is_empty() {
            if let Err(error) = socket::steer(original, &program::generate(&[])) {
                warn!(%error, "queues are closed while connections may still arrive in them");
            }
            socket::await_grace_period();
            std::thread::sleep(HALF_DONE);
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

    fn main_of(&self, member: u64) -> Option<u64> {
        self.members.iter().find(|other| other.id == member).map(|member| member.main)
    }

    fn is_main(&self, queue: u64) -> bool {
        self.members.iter().any(|member| member.main == queue)
    }

    fn admit(&mut self, id: u64, queue: Queue, office: &Arc<Office>, rebalances: bool) -> Seat {
        // There is one: sets are disjoint, and each names a CPU that may exist.
        let slot = self.board.take_slot().unwrap_or_default();
        let office = Arc::clone(office);
        self.members.push(Member { id, main: queue.id, office, slot, rebalances });
        self.board.begin(Steering::ByCpu);
        Seat { id, queue, tally: Tally::new(Arc::clone(&self.board), slot) }
    }

    /// Takes the CPUs out of all loans; those that have none left become the claimer's.
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
            } else if share.holder != claimer {
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
        socket::steer(self.original.as_fd(), &program::generate(&owned))?;
        self.board.begin(Steering::ByCpu);
        Ok(())
    }

    /// Gives the connections of claimed CPUs to the members that accept, at random.
    fn spread(&self) -> Result<(), ListenerError> {
        self.board.choose_targets();
        let claimed = self.shares.iter().fold(CpuSet::empty(), |all, share| all.union(&share.cpus));
        let accepts = |queue| {
            let mut members = self.members.iter();
            members.any(|member| member.main == queue && self.board.is_target(member.slot))
        };
        let numbered = self.shares.iter().zip(1..);
        let targets: Vec<u32> = numbered
            .filter_map(|(share, index)| accepts(share.queue.id).then_some(index))
            .collect();
        socket::steer(self.original.as_fd(), &program::generate_spread(&claimed, &targets))?;
        self.board.begin(Steering::Spread);
        Ok(())
    }

    /// Whether many connections wait for the member with this slot.
    fn is_busy(&self, slot: usize) -> bool {
        let main = self.members.iter().find(|member| member.slot == slot).map(|member| member.main);
        let share = self.shares.iter().find(|share| Some(share.queue.id) == main);
        share.is_some_and(|share| {
            socket::queue_length(share.queue.descriptor.as_fd()).is_ok_and(|it| it > BUSY_QUEUE)
        })
    }

    /// Makes the shares the state of record and tells the members whose queues changed, but not of
    /// `direct`, which its holder learns of by itself.
    fn commit(&mut self, shares: Vec<Share>, direct: Option<u64>) {
        let former = std::mem::replace(&mut self.shares, shares);
        for (position, share) in self.shares.iter().enumerate() {
            let before = former.get(position).map(|share| share.holder);
            if before == Some(share.holder) {
                continue;
            }
            let (queue, holder) = (share.queue.id, share.holder);
            let office = |id| self.members.iter().find(|member| Some(member.id) == id);
            if let Some(lender) = office(before) {
                lender.office.post(Mail::Return { member: lender.id, queue });
            }
            if let (true, Some(member)) = (direct != Some(queue), office(Some(holder))) {
                let queue = share.queue.clone();
                member.office.post(Mail::Adopt { member: member.id, queue });
                debug!(queue = share.queue.id, from = before, to = holder, "a queue changes hands");
            }
        }
    }
}

/// Accepts all that waits in a queue.
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

#[cfg(test)]
mod tests;
