//! Stress test of flows that change their transport all the time, between two processes, one of
//! which may be killed at any moment.
//!
//! Every message has a number and a content that follows from it. The numbers must arrive from zero
//! on, without a gap or a repeat. After a death, a prefix of the committed messages must arrive; on
//! rings in shared memory, all of them. Sockets and pipes deliver of a dead process only what its
//! kernel had taken. The rest of a batch, or of a message that waited for room, is lost, and so is
//! everything after it, even on a newer path.
//!
//! `FABLE_STORM_SWITCHES` sets how many reconfigurations of a direction there are.
//! `FABLE_STORM_SEED` repeats a run as far as the scheduler allows.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::board::Board;
use crate::child::fork;
use crate::numbered::{check, fill};
use crate::random::Random;
use fable::flow::{FlowHandle, FlowParts, Timeouts};
use fable::{Error, Flow, Form, Kind, ReadBuffer, WriteBuffer};

/// Ends a test that hangs; no test's result depends on it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The state that both processes and the test see.
#[derive(Default)]
struct End {
    is_open: AtomicU64,
    committed: AtomicU64,
    received: AtomicU64,
    switches: AtomicU64,
    pause_max_ns: AtomicU64,
    pause_total_ns: AtomicU64,
}

/// Orders moves from a thread of its own, as the daemon's connection does.
fn order_moves(handle: FlowHandle, kinds: Vec<Kind>, mut random: Random, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let kind = kinds[random.next() as usize % kinds.len()];
        handle.request_move(kind, "storm").expect("an agent");
        std::thread::sleep(Duration::from_micros(100 + random.next() % 2000));
    }
}

struct Worker<'a> {
    flow: Flow,
    end: &'a End,
    random: Random,
    kinds: Vec<Kind>,
    /// Write buffers of various epochs, committed in the order of their allocation.
    to_commit: VecDeque<WriteBuffer>,
    /// Read buffers of various epochs that are checked again later.
    to_check: VecDeque<(u64, ReadBuffer)>,
    may_write: bool,
    messages: u64,
}

impl Worker<'_> {
    fn committed(&self) -> u64 {
        self.end.committed.load(Ordering::Relaxed)
    }

    fn commit_oldest(&mut self) {
        let Some(mut buffer) = self.to_commit.pop_front() else { return };
        let number = self.committed();
        let bytes = 8 + self.random.next() as usize % (buffer.len() - 7);
        fill(&mut buffer[..bytes], number);
        match buffer.commit_first(bytes) {
            Ok(()) => self.end.committed.store(number + 1, Ordering::Release),
            Err(Error::PeerDied) => self.stop_writing(),
            Err(error) => panic!("commit: {error}"),
        }
    }

    fn stop_writing(&mut self) {
        self.may_write = false;
        self.to_commit.clear();
    }

    /// Writes if possible. Returns true if it has done something.
    fn write_some(&mut self) -> bool {
        if !self.may_write {
            return false;
        }
        let bytes = match self.random.next() % 50 {
            0 => self.flow.message_bytes_max(),
            1..5 => 8 + self.random.next() as usize % 20_000,
            _ => 8 + self.random.next() as usize % 500,
        };
        let wrote = match self.flow.try_write(bytes) {
            Ok(buffer) => {
                self.to_commit.push_back(buffer);
                true
            }
            Err(Error::WouldBlock) => false,
            Err(Error::PeerDied) => {
                self.stop_writing();
                return true;
            }
            Err(error) => panic!("write: {error}"),
        };
        // Mostly committed at once, sometimes long after a move.
        let keep = if self.random.next().is_multiple_of(8) { 4 } else { 0 };
        while self.to_commit.len() > keep {
            self.commit_oldest();
        }
        if self.committed() >= self.messages {
            while !self.to_commit.is_empty() {
                self.commit_oldest();
            }
            self.flow.finish().expect("an end");
            self.may_write = false;
        }
        wrote
    }

    /// Reads if possible. Returns `None` at the end of the flow, else whether there was a message.
    fn read_some(&mut self) -> Option<bool> {
        let read = if self.random.next().is_multiple_of(16) {
            self.flow.read_timeout(Duration::from_micros(self.random.next() % 2000))
        } else {
            self.flow.try_read()
        };
        let buffer = match read {
            Ok(Some(buffer)) => buffer,
            Ok(None) => return None,
            Err(Error::WouldBlock | Error::TimedOut) => return Some(false),
            Err(Error::PeerDied) if self.messages == u64::MAX => {
                self.stop_writing();
                return None;
            }
            Err(error) => panic!("read: {error}, {:?}", self.flow),
        };
        let number = self.end.received.load(Ordering::Relaxed);
        check(&buffer, number);
        self.end.received.store(number + 1, Ordering::Release);
        self.to_check.push_back((number, buffer));
        let keep = self.random.next() as usize % 12;
        while self.to_check.len() > keep {
            let (number, buffer) = self.to_check.pop_front().unwrap();
            check(&buffer, number);
        }
        Some(true)
    }

    fn run(&mut self) {
        let mut last = Instant::now();
        let mut reads = true;
        while reads || self.may_write {
            let mut did = self.write_some();
            if reads {
                match self.read_some() {
                    Some(something) => did |= something,
                    None => (reads, did) = (false, true),
                }
            }
            while self.flow.take_event().is_some() {}
            if self.random.next().is_multiple_of(64) {
                let kind = self.kinds[self.random.next() as usize % self.kinds.len()];
                self.flow.move_to(kind).expect("an agent");
            }
            if did {
                last = Instant::now();
                continue;
            }
            assert!(last.elapsed() < TIME_LIMIT / 2, "nothing goes on: {:?}", self.flow);
            let fd = self.flow.descriptor().expect("a descriptor").as_raw_fd();
            let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // A flow with held buffers has pending work that its descriptor does not show.
            let timeout_ms = if self.to_commit.is_empty() { 30_000 } else { 1 };
            // SAFETY: the entry outlives the call.
            let ready = unsafe { libc::poll(&raw mut entry, 1, timeout_ms) };
            assert!(ready != 0 || timeout_ms == 1, "a lost wake-up: {:?}", self.flow);
        }
        self.to_check.clear();
        let statistics = self.flow.statistics();
        self.end.switches.store(statistics.moves, Ordering::Relaxed);
        self.end.pause_max_ns.store(statistics.pause_max_ns, Ordering::Relaxed);
        self.end.pause_total_ns.store(statistics.pause_total_ns, Ordering::Relaxed);
    }
}

fn work(mut parts: FlowParts, end: &End, kinds: Vec<Kind>, seed: u64, messages: u64) {
    parts.timeouts = Timeouts { linger: TIME_LIMIT, ..parts.timeouts };
    let flow = Flow::open(parts).expect("the flow opens");
    let over = Arc::new(AtomicBool::new(false));
    let orders = {
        let (handle, kinds, over) =
            (flow.handle().expect("a handle"), kinds.clone(), Arc::clone(&over));
        std::thread::spawn(move || order_moves(handle, kinds, Random(!seed), over))
    };
    end.is_open.store(1, Ordering::Release);
    let (to_commit, to_check) = (VecDeque::new(), VecDeque::new());
    let random = Random(seed);
    let mut worker =
        Worker { flow, end, random, kinds, to_commit, to_check, may_write: true, messages };
    worker.run();
    over.store(true, Ordering::Relaxed);
    orders.join().expect("the orders");
}

#[derive(Default)]
struct Totals {
    episodes: u64,
    kills: u64,
    switches: u64,
    messages: u64,
    lost: u64,
    pause_max_ns: u64,
    pause_total_ns: u64,
}

/// Runs one flow, from its opening to its end or the death of `victim`.
fn episode(seed: u64, kinds: &[Kind], victim: Option<usize>, totals: &mut Totals) {
    let mut random = Random(seed);
    // SAFETY: `End` consists of atomics, for which zeros are valid.
    let board = unsafe { Board::<End>::new() };
    let messages = if victim.is_some() { u64::MAX } else { 2000 + random.next() % 2000 };
    let [leader, follower] = crate::flow_rig::parts(kinds[random.next() as usize % kinds.len()]);
    let (leader, follower) = (leader.0, follower.0);
    let seeds = [random.next(), random.next()];
    let mut children = Vec::new();
    let mut both = [Some(leader), Some(follower)];
    for side in [0, 1] {
        children.push(fork(|| {
            let own = both[side].take().expect("the parts");
            // The other end belongs to the other process; a copy here would hide its death.
            both[1 - side] = None;
            work(own, &board.ends()[side], kinds.to_vec(), seeds[side], messages);
        }));
    }
    drop(both);
    if let Some(victim) = victim {
        let begin = Instant::now();
        let is_open = |side: usize| board.ends()[side].is_open.load(Ordering::Acquire) == 1;
        while !(is_open(0) && is_open(1)) && begin.elapsed() < TIME_LIMIT {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(1000 + random.next() % 150_000));
        children[victim].signal(libc::SIGKILL);
    }
    for side in [0, 1] {
        let status = children[side].wait(TIME_LIMIT);
        let expected = if victim == Some(side) { libc::SIGKILL } else { 0 };
        assert_eq!(status, Some(expected), "side {side} of the episode with seed {seed}");
    }
    for (reader, writer) in [(0, 1), (1, 0)] {
        let committed = board.ends()[writer].committed.load(Ordering::Acquire);
        let received = board.ends()[reader].received.load(Ordering::Acquire);
        totals.messages += received;
        if victim.is_none() {
            assert_eq!(received, committed, "seed {seed}: all that was committed arrives");
        } else if victim == Some(writer) {
            // The process may have died between the commit and its entry on the board.
            assert!(received <= committed + 1, "seed {seed}: {received} of {committed}");
            totals.lost += committed.saturating_sub(received);
            let rings = |kind: &Kind| matches!(kind, Kind::MempipeFutex(_));
            if kinds.iter().all(rings) {
                assert!(received >= committed, "seed {seed}: {received} of {committed}");
            }
        }
        let end = &board.ends()[reader];
        totals.switches += end.switches.load(Ordering::Relaxed);
        totals.pause_total_ns += end.pause_total_ns.load(Ordering::Relaxed);
        totals.pause_max_ns = totals.pause_max_ns.max(end.pause_max_ns.load(Ordering::Relaxed));
    }
    totals.episodes += 1;
    totals.kills += u64::from(victim.is_some());
}

#[test]
fn nothing_is_lost_repeated_or_reordered_in_a_storm_of_moves_and_deaths() {
    let _alone = crate::child::alone();
    let from_environment = |name: &str| std::env::var(name).ok().map(|v| v.parse().unwrap());
    let clock = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    let seed: u64 = from_environment("FABLE_STORM_SEED").unwrap_or(clock.into());
    let wanted: u64 = from_environment("FABLE_STORM_SWITCHES").unwrap_or(1500);
    println!("FABLE_STORM_SEED={seed}");
    let all = crate::flow_rig::kinds();
    let mut rings = all.clone();
    rings.retain(|kind| matches!(kind, Kind::MempipeFutex(_)));
    assert!(rings.contains(&Kind::MempipeFutex(Form::Safe)));
    let mut random = Random(seed);
    let mut totals = Totals::default();
    while totals.switches < wanted || totals.episodes < 9 {
        let kinds = if totals.episodes % 3 == 2 { &rings } else { &all };
        let victim = [Some(0), Some(1), None][totals.episodes as usize / 3 % 3];
        episode(random.next(), kinds, victim, &mut totals);
    }
    let switches = totals.switches.max(1);
    println!(
        "{} flows, {} killed, {} switches, {} messages; committed and lost with dead processes: \
         {}; pauses: mean {} ns, longest {} ns",
        totals.episodes,
        totals.kills,
        totals.switches,
        totals.messages,
        totals.lost,
        totals.pause_total_ns / switches,
        totals.pause_max_ns,
    );
}
