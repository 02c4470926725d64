//! Checks the invariants of [`Group`], and that the messages in the mailboxes agree with it, for
//! any order of joins and leaves.

use super::*;
use crate::partition::tests::support::{connect, length, listener, usable_cpus};
use crate::source::wake_pair;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

/// Number of CPUs that take part; CPUs that do not exist take part in the bookkeeping.
const CPUS: usize = 6;

#[derive(Clone, Debug)]
enum Step {
    Join(CpuSet),
    Leave(prop::sample::Index),
    ReadMail(prop::sample::Index),
}

fn cpus() -> impl Strategy<Value = CpuSet> {
    prop::collection::vec(0..CPUS, 1..4).prop_map(|cpus| cpus.into_iter().collect())
}

fn step() -> impl Strategy<Value = Step> {
    let who = any::<prop::sample::Index>;
    prop_oneof![
        3 => cpus().prop_map(Step::Join),
        2 => who().prop_map(Step::Leave),
        2 => who().prop_map(Step::ReadMail),
    ]
}

/// A member as its channel sees it: its claim and the queues from which it accepts.
struct Follower {
    mailbox: Arc<Mailbox>,
    cpus: CpuSet,
    queues: BTreeSet<u64>,
}

impl Follower {
    fn read_mail(&mut self, id: u64) {
        for mail in self.mailbox.drain() {
            match mail {
                QueueChange::Adopt { member, queue } => {
                    assert!(member == id && self.queues.insert(queue.id));
                }
                QueueChange::Return { member, queue } => {
                    assert!(member == id && self.queues.remove(&queue));
                }
            }
        }
    }
}

struct World {
    listener: TcpListener,
    group: Option<Group>,
    followers: BTreeMap<u64, Follower>,
}

impl World {
    fn take(&mut self, step: Step) {
        let ids: Vec<u64> = self.followers.keys().copied().collect();
        let id = |who: prop::sample::Index| (!ids.is_empty()).then(|| *who.get(&ids));
        match step {
            Step::Join(cpus) => self.join(&cpus),
            Step::Leave(who) => {
                let Some(id) = id(who) else { return };
                self.followers.remove(&id);
                self.group.as_mut().unwrap().leave(id);
                if let Some(group) = self.group.take_if(|group| group.is_deserted()) {
                    assert!(group.dissolve().connections.is_empty());
                }
            }
            Step::ReadMail(who) => {
                let Some(id) = id(who) else { return };
                self.followers.get_mut(&id).unwrap().read_mail(id);
            }
        }
    }

    fn join(&mut self, cpus: &CpuSet) {
        let claimed = self.followers.values().fold(CpuSet::empty(), |all, it| all.union(&it.cpus));
        let overlap = claimed.intersection(cpus);
        let mailbox = Mailbox::new(wake_pair().unwrap().0);
        let listener = &self.listener;
        let group = self.group.get_or_insert_with(|| Group::found(listener.as_fd()).unwrap());
        let result = group.join(cpus, &mailbox, true);
        if let Ok(Seat { id, queue, .. }) = &result {
            let queues = [queue.id].into();
            self.followers.insert(*id, Follower { mailbox, cpus: *cpus, queues });
        }
        match result {
            Ok(_) => assert!(overlap.is_empty()),
            Err(ListenerError::Overlap { cpus }) => assert_eq!(*cpus, overlap),
            Err(error) => panic!("{error}"),
        }
    }

    fn check_law(&self) {
        let Some(group) = &self.group else { return };
        let mut all = CpuSet::empty();
        for share in &group.shares {
            assert!(all.intersection(&share.cpus).is_empty());
            all = all.union(&share.cpus);
            assert!(self.followers.contains_key(&share.holder));
        }
        assert!(group.shares.len() <= CPUS + 1);
        let online = socket::online_cpus().unwrap();
        assert_eq!(group.original_holder.is_some(), online.difference(&all).is_empty());
        assert!(group.original_holder.iter().all(|id| self.followers.contains_key(id)));
        for (id, follower) in &self.followers {
            let main = group.members.iter().find(|member| member.id == *id).unwrap().main;
            let share = group.shares.iter().find(|share| share.queue.id == main).unwrap();
            assert_eq!((share.cpus, share.holder), (follower.cpus, *id));
        }
    }

    /// Checks that a member that has read all its messages accepts from exactly the queues it
    /// holds.
    fn check_mail(&mut self) {
        let Some(group) = &self.group else { return };
        for (id, follower) in &mut self.followers {
            follower.read_mail(*id);
            let held = group.shares.iter().filter(|share| share.holder == *id);
            let original = group.original_holder.filter(|holder| holder == id);
            let original = original.map(|_| group.original.id);
            let held: BTreeSet<u64> = held.map(|share| share.queue.id).chain(original).collect();
            assert_eq!(follower.queues, held);
        }
    }

    /// Checks that the kernel's CPUs agree with the group's, for the CPUs that exist.
    fn check_kernel(&self) {
        let address = self.listener.local_addr().unwrap();
        for cpu in usable_cpus() {
            let client = connect(address, cpu);
            let shares = self.group.iter().flat_map(|group| &group.shares);
            let owner = shares.clone().find(|share| share.cpus.contains(cpu));
            let expected = match owner {
                Some(share) => share.queue.descriptor.as_fd(),
                None => self.listener.as_fd(),
            };
            let queues = shares.map(|share| share.queue.descriptor.as_fd());
            let waiting: u32 = queues.chain([self.listener.as_fd()]).map(length).sum();
            assert_eq!((length(expected), waiting), (1, 1));
            drop(socket::accept(expected).unwrap().unwrap());
            drop(client);
        }
    }
}

/// Each of the members that leave holds more queues than the one before.
#[test]
fn many_members_leave_in_little_time() {
    const MEMBERS: usize = 300;
    const LIMIT_NS: u64 = 5_000_000_000;
    let listener = listener();
    let mut group = Group::found(listener.as_fd()).unwrap();
    let mailbox = Mailbox::new(wake_pair().unwrap().0);
    let join = |cpu| group.join(&CpuSet::one(cpu), &mailbox, true).unwrap().id;
    let members: Vec<u64> = (0..MEMBERS).map(join).collect();
    let before_ns = sys::clock::thread_cpu_ns();
    for (left, member) in (1..).zip(&members[..MEMBERS - 1]) {
        group.leave(*member);
        let loads = group.loads(&group.shares);
        assert_eq!(loads.iter().map(|(_, held)| held).sum::<usize>(), MEMBERS);
        let most = loads.iter().map(|(_, held)| *held).max();
        let fair = MEMBERS.div_ceil(MEMBERS - left);
        assert!(most.is_some_and(|most| most <= 2 * fair), "{most:?} of {fair}");
    }
    let took_ns = sys::clock::thread_cpu_ns() - before_ns;
    assert!(took_ns < LIMIT_NS, "{took_ns} ns");
    group.leave(members[MEMBERS - 1]);
    assert!(group.dissolve().connections.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(40)
    })]

    #[test]
    fn the_law_holds_in_any_order(steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World { listener: listener(), group: None, followers: BTreeMap::new() };
        for step in steps {
            world.take(step);
            world.check_law();
        }
        world.check_kernel();
        world.check_mail();
    }
}
