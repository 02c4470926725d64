//! One end of a flow in the model-based test, as an application uses it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fable::{Error, Flow, Interest, ReadBuffer, WriteBuffer, xpoll};

use super::End;
use super::plan::{self, Plan, Use};
use crate::child::{Child, fork};
use crate::numbered::{check, fill};
use crate::random::Random;

/// How long an end waits for a message that does not come, and how often it may wake up meanwhile:
/// this many times, and once for the result of each requested move of both ends.
const IDLE: Duration = Duration::from_millis(30);
const WAKEUPS_MAX: u64 = 250;
const WAKEUPS_PER_ORDER_MAX: u64 = 4;

/// The most unanswered requests.
const WINDOW: u64 = 8;

/// One end of a flow, and its plan.
pub(crate) struct Worker<'a> {
    flow: Flow,
    side: usize,
    ends: &'a [End; 2],
    plan: &'a Plan,
    random: Random,
    /// Write buffers of various epochs, committed in the order of their allocation.
    to_commit: VecDeque<WriteBuffer>,
    /// Read buffers of various epochs that are checked again later.
    to_check: VecDeque<(u64, ReadBuffer)>,
    may_write: bool,
    /// Children that stay alive with copies of all descriptors.
    children: Vec<Child>,
}

impl<'a> Worker<'a> {
    /// Takes the flow and its plan.
    pub(crate) fn new(
        flow: Flow,
        side: usize,
        ends: &'a [End; 2],
        plan: &'a Plan,
        seed: u64,
    ) -> Worker<'a> {
        let (to_commit, to_check) = (VecDeque::new(), VecDeque::new());
        let (random, children) = (Random(seed), Vec::new());
        let may_write = plan.usage != Use::OneWay || side == 0;
        Worker { flow, side, ends, plan, random, to_commit, to_check, may_write, children }
    }

    /// Uses the flow until its end.
    pub(crate) fn run(mut self) {
        match (self.plan.usage, self.side) {
            (Use::Both, _) | (Use::Unread, 1) => self.write_and_read(),
            (Use::OneWay, 0) => self.write_all(),
            (Use::Unread, _) => self.write_all(),
            (Use::OneWay, _) => self.read_all(),
            (Use::Requests, 0) => self.ask(),
            (Use::Requests, _) => self.answer(),
        }
        self.close();
    }

    fn own(&self) -> &'a End {
        &self.ends[self.side]
    }

    fn committed(&self) -> u64 {
        self.own().committed.load(Ordering::Relaxed)
    }

    fn received(&self) -> u64 {
        self.own().received.load(Ordering::Relaxed)
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.random.next().is_multiple_of(one_in)
    }

    /// Takes events, requests moves, sets batches and forks, at random.
    fn idle(&mut self) {
        if self.chance(8) {
            while self.flow.take_event().is_some() {}
        }
        if !self.plan.is_still && self.chance(256) {
            let kind = self.plan.kinds[self.random.next() as usize % self.plan.kinds.len()];
            self.flow.move_to(kind).expect("an agent");
        }
        if self.plan.batches && self.chance(32) {
            self.flow.set_batch(1 + self.random.next() as u32 % 20);
        }
        if self.plan.forks && self.children.len() < 4 && self.chance(256) {
            self.fork();
        }
    }

    /// Forks a child that has copies of all descriptors, and lives for a while or until the end.
    fn fork(&mut self) {
        let lives_on = self.chance(2);
        let flow = &self.flow;
        let child = fork(|| {
            // SAFETY: plain system calls; this process ends even if the parent has died.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::alarm(120);
            }
            assert!(matches!(flow.try_read(), Err(Error::Forked)));
            assert!(matches!(flow.try_write(1), Err(Error::Forked)));
            if lives_on {
                // SAFETY: a plain system call; a signal of the parent ends this process.
                unsafe { libc::pause() };
            }
        });
        self.children.push(child);
        self.own().forks.fetch_add(1, Ordering::Relaxed);
    }

    fn bytes(&mut self) -> usize {
        match self.plan.is_uniform {
            true => self.plan.bytes_max,
            false => 8 + self.random.next() as usize % (self.plan.bytes_max - 7),
        }
    }

    /// Allocates a buffer for a message, and commits those that are not kept. Returns false if
    /// there is no room.
    fn write_one(&mut self, waits: bool) -> bool {
        let bytes = self.bytes();
        let begin = Instant::now();
        let room = if waits {
            self.flow.write_timeout(bytes, self.plan.hang())
        } else {
            self.flow.try_write(bytes)
        };
        match room {
            // On a ring the dropped slot occupies room until all slots before it are released.
            Ok(room) if !self.plan.is_tight && self.chance(64) => drop(room),
            Ok(room) => self.to_commit.push_back(room),
            Err(Error::WouldBlock) => return false,
            Err(Error::PeerDied) if self.plan.leaves_input_unread() && self.side == 1 => {
                self.stop_writing();
                return true;
            }
            Err(error) => panic!("write of {bytes}: {error}, {:?}", self.flow),
        }
        assert!(
            begin.elapsed() < self.plan.hang(),
            "a write slept although there was room: {:?}",
            self.flow
        );
        let keep = if self.chance(4) { self.plan.kept_writes } else { 0 };
        // The reader has each message before the call for the next one may wait.
        self.commit_all_but(keep);
        true
    }

    fn commit_all_but(&mut self, keep: usize) {
        while self.to_commit.len() > keep {
            let Some(mut buffer) = self.to_commit.pop_front() else { return };
            let number = self.committed();
            let bytes = if self.plan.is_uniform { buffer.len() } else { 8.max(buffer.len() / 2) };
            fill(&mut buffer[..bytes], number);
            match buffer.commit_first(bytes) {
                Ok(()) => self.own().committed.store(number + 1, Ordering::Release),
                Err(Error::PeerDied) if self.plan.leaves_input_unread() && self.side == 1 => {
                    self.stop_writing();
                }
                Err(error) => panic!("commit: {error}, {:?}", self.flow),
            }
        }
    }

    fn stop_writing(&mut self) {
        self.may_write = false;
        self.to_commit.clear();
    }

    fn end_writing_when_done(&mut self) {
        if self.may_write && self.committed() >= self.plan.messages {
            self.commit_all_but(0);
            self.flow.finish().expect("an end");
            self.may_write = false;
        }
    }

    fn take(&mut self, message: ReadBuffer) {
        let number = self.received();
        check(&message, number);
        self.own().received.store(number + 1, Ordering::Release);
        self.to_check.push_back((number, message));
        while self.to_check.len() > self.plan.kept_reads {
            // A ring regains room in order only: no message is kept for long after younger ones are
            // released.
            let oldest = self.to_check.front().map_or(number, |(number, _)| *number);
            let is_old = number >= oldest + self.plan.kept_reads as u64 + plan::AHEAD_MAX;
            let index = usize::from(!self.plan.is_tight && !is_old && self.chance(8));
            let index = index % self.to_check.len();
            let Some((number, message)) = self.to_check.remove(index) else { return };
            check(&message, number);
        }
    }

    /// Reads in one of the ways that wait, some after `xpoll`. Returns false if the peer has ended.
    fn read_one_waiting(&mut self) -> bool {
        let begin = Instant::now();
        loop {
            let choice = if self.plan.is_polite { 3 } else { self.random.next() % 4 };
            let outcome = match choice {
                0 => self.flow.read_timeout(self.plan.hang()),
                1 => self.flow.read(),
                choice => {
                    let ready = xpoll(&[Interest::Flow(&self.flow)], self.plan.hang())
                        .expect("a descriptor");
                    assert!(!ready.is_empty(), "lost readiness: {:?}", self.flow);
                    // Each call returns one message.
                    match choice {
                        2 => self.flow.try_read(),
                        _ => self.flow.read_timeout(Duration::from_millis(1)),
                    }
                }
            };
            match outcome {
                Ok(Some(message)) => {
                    self.take(message);
                    return true;
                }
                Ok(None) => return false,
                Err(Error::WouldBlock | Error::TimedOut) if begin.elapsed() < self.plan.hang() => {}
                Err(error) => panic!("read: {error}, {:?}", self.flow),
            }
        }
    }

    /// Holds buffers of two epochs and waits for a message that does not come: that must need next
    /// to no CPU time.
    fn idle_with_buffers(&mut self) {
        let epoch = self.flow.epoch();
        self.write_one(true);
        let kind = self.plan.kinds[self.random.next() as usize % self.plan.kinds.len()];
        self.flow.move_to(kind).expect("an agent");
        let begin = Instant::now();
        while self.flow.epoch() == epoch && begin.elapsed() < IDLE {
            std::thread::sleep(Duration::from_millis(1));
            while self.flow.take_event().is_some() {}
        }
        let bytes = self.bytes();
        if let Ok(room) = self.flow.try_write(bytes) {
            self.to_commit.push_back(room);
        }
        let (before, begin) = (self.flow.statistics(), Instant::now());
        assert!(matches!(self.flow.read_timeout(IDLE), Err(Error::TimedOut)), "{:?}", self.flow);
        let now = self.flow.statistics();
        let (wakeups, moves) = (now.sleeps - before.sleeps, now.moves - before.moves);
        let elapsed = begin.elapsed();
        let orders = 2 * (elapsed.as_micros() / self.plan.move_every.as_micros()) as u64;
        let what = format!("{wakeups} wake-ups and {moves} moves in {elapsed:?}");
        let most = WAKEUPS_MAX + WAKEUPS_PER_ORDER_MAX * orders;
        assert!(wakeups < most, "{what}, {most} at most: {:?}", self.flow);
    }

    fn write_all(&mut self) {
        while self.may_write {
            let waits = self.chance(2);
            if !self.write_one(waits) {
                let ready =
                    xpoll(&[Interest::Flow(&self.flow)], self.plan.hang()).expect("a descriptor");
                assert!(!ready.is_empty(), "lost readiness for room: {:?}", self.flow);
            }
            let keeps = self.plan.kept_writes > 0 && !self.plan.is_still;
            if self.plan.usage == Use::OneWay && keeps && self.chance(100) {
                self.idle_with_buffers();
            }
            self.end_writing_when_done();
            self.idle();
        }
    }

    fn read_all(&mut self) {
        while self.read_one_waiting() {
            self.idle();
        }
    }

    fn write_and_read(&mut self) {
        let mut last = Instant::now();
        let mut reads = true;
        while reads || self.may_write {
            let mut did = self.may_write && self.write_one(false);
            self.end_writing_when_done();
            if reads {
                let waits = self.chance(16);
                let short = Duration::from_micros(self.random.next() % 2000);
                match if waits { self.flow.read_timeout(short) } else { self.flow.try_read() } {
                    Ok(Some(message)) => {
                        self.take(message);
                        did = true;
                    }
                    Ok(None) => (reads, did) = (false, true),
                    Err(Error::WouldBlock | Error::TimedOut) => {}
                    Err(error) => panic!("read: {error}, {:?}", self.flow),
                }
            }
            self.idle();
            if did {
                last = Instant::now();
                continue;
            }
            assert!(last.elapsed() < self.plan.hang(), "nothing goes on: {:?}", self.flow);
            // A flow with held buffers has pending work that its descriptor does not show.
            let keeps = !self.to_commit.is_empty() || !self.to_check.is_empty();
            let limit = if keeps { Duration::from_millis(1) } else { self.plan.hang() };
            let ready = xpoll(&[Interest::Flow(&self.flow)], limit).expect("a descriptor");
            assert!(!ready.is_empty() || keeps, "lost readiness: {:?}", self.flow);
            if ready.is_empty() || last.elapsed() > Duration::from_millis(50) {
                self.commit_all_but(0);
                self.to_check.pop_front();
            }
        }
    }

    fn ask(&mut self) {
        while self.may_write {
            while self.may_write && self.committed() < self.received() + WINDOW {
                self.write_one(true);
                self.commit_all_but(0);
                self.end_writing_when_done();
            }
            let _ = self.flow.flush().expect("a flush");
            // From here on the descriptor shows readiness, and all answers can arrive at once.
            match self.flow.try_read() {
                Ok(Some(message)) => self.take(message),
                Ok(None) => panic!("the answers end too soon"),
                Err(error) => assert!(matches!(error, Error::WouldBlock), "{error}"),
            }
            while self.received() < self.committed() {
                assert!(self.read_one_waiting(), "the answers end too soon");
            }
            self.idle();
        }
        assert!(!self.read_one_waiting(), "the answers end with the questions");
    }

    fn answer(&mut self) {
        while self.read_one_waiting() {
            while self.committed() < self.received() {
                self.write_one(true);
                self.commit_all_but(0);
            }
            let _ = self.flow.flush().expect("a flush");
            self.idle();
        }
    }

    fn close(self) {
        let Worker { flow, side, ends, plan, to_check, to_commit, children, .. } = self;
        for (number, message) in &to_check {
            check(message, *number);
        }
        drop((to_commit, to_check));
        let statistics = flow.statistics();
        ends[side].moves.store(statistics.moves, Ordering::Relaxed);
        if side == 0 && plan.closes {
            flow.close(plan.hang()).expect("everything is delivered");
        } else {
            let begin = Instant::now();
            drop(flow);
            assert!(begin.elapsed() < plan.hang(), "a drop takes {:?}", begin.elapsed());
        }
        // Kills those that are still alive.
        drop(children);
    }
}
