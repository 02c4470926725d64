//! The agent thread: serves control links and the daemon connection, and opens paths, so that these
//! never block a flow's own thread.
//!
//! There is one agent per process. The first use starts it, with all signals blocked. It waits in
//! an epoll set for everything that is [`Watched`], and runs closures that other threads send it.
//! All that it runs must be short and must not block. A child of `fork` has no agent thread;
//! [`Agent::get`] starts one there.
//!
//! The agent asks a watched object for its descriptor, events and deadline when the object is
//! added, after each call of its `ready`, and when another thread reports a change
//! ([`Agent::look`]). So the cost of an event does not depend on the number of watched objects.

mod quota;
mod watching;

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quota::Quota;
pub(crate) use quota::Share;
use watching::Watching;

use crate::error::{Error, Result};
use crate::event::{event_descriptor, ring, silence};

/// Whether the agent continues to watch an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchOutcome {
    /// Continue.
    Watching,
    /// Drop the object.
    Not,
}

/// An object that the agent waits for.
pub(crate) trait Watched: Send {
    /// Returns the descriptor to wait for. If it is negative, only the deadline counts.
    fn descriptor(&self) -> RawFd;

    /// `POLLIN`, `POLLOUT` or both.
    fn events(&self) -> i16;

    /// When to call `ready` even if there is no event.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Handles an event (`revents` of poll(2)), or a passed deadline (`events` is zero).
    fn ready(&mut self, events: i16) -> WatchOutcome;
}

type Errand = Box<dyn FnOnce() + Send>;

/// Identifies a watched object, for threads that change it. Its number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WatchId(u64);

enum Command {
    Watch(WatchId, Box<dyn Watched>),
    Look(WatchId),
    Run(Errand),
}

thread_local! {
    /// Whether this thread is the agent's, which needs no wake-up.
    static IS_AGENT: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    started: bool,
}

/// The agent of this process: its command queue, and the quota of closed flows.
pub(crate) struct Agent {
    process: u32,
    queue: Mutex<Queue>,
    bell: OwnedFd,
    /// The number of the last [`WatchId`].
    places: AtomicU64,
    /// Counts the objects kept for closed flows.
    quota: Quota,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Agent").field("process", &self.process).finish_non_exhaustive()
    }
}

/// The current agent. An agent is never freed: a child of `fork` leaves the parent's in memory,
/// unused.
static AGENT: AtomicPtr<Agent> = AtomicPtr::new(std::ptr::null_mut());

impl Agent {
    /// Returns the agent of this process; starts its thread if there is none.
    ///
    /// # Errors
    /// [`Error::System`] if there can be no further thread or descriptor.
    pub(crate) fn get() -> Result<&'static Agent> {
        let agent = Agent::of_this_process()?;
        let mut queue = agent.lock();
        if !queue.started {
            agent.start()?;
            queue.started = true;
        }
        Ok(agent)
    }

    fn of_this_process() -> Result<&'static Agent> {
        let process = std::process::id();
        loop {
            let current = AGENT.load(Ordering::Acquire);
            // SAFETY: a pointer in `AGENT` is null or comes from a leaked box, which is never
            // freed.
            if let Some(agent) = unsafe { current.as_ref() }
                && agent.process == process
            {
                return Ok(agent);
            }
            let queue = Mutex::new(Queue::default());
            let (bell, places) = (event_descriptor()?, AtomicU64::new(0));
            let quota = Quota::default();
            let new = Box::into_raw(Box::new(Agent { process, queue, bell, places, quota }));
            let exchange =
                AGENT.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
            if exchange.is_err() {
                // SAFETY: `new` comes from the box above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Makes the agent watch the object.
    pub(crate) fn watch(&self, watched: Box<dyn Watched>) -> WatchId {
        let place = WatchId(self.places.fetch_add(1, Ordering::Relaxed) + 1);
        self.send(Command::Watch(place, watched));
        place
    }

    /// Makes the agent ask an object again for its descriptor, events and deadline, after another
    /// thread has changed them. Does nothing if the object is no longer watched.
    pub(crate) fn look(&self, place: WatchId) {
        self.send(Command::Look(place));
    }

    /// Returns the counters of the objects kept for closed flows, for each peer.
    pub(crate) fn quota(&'static self) -> &'static Quota {
        &self.quota
    }

    /// Runs the closure on the agent's thread.
    pub(crate) fn run(&self, errand: impl FnOnce() + Send + 'static) {
        self.send(Command::Run(Box::new(errand)));
    }

    fn send(&self, command: Command) {
        self.lock().commands.push_back(command);
        if !IS_AGENT.get() {
            ring(&self.bell);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&'static self) -> Result<()> {
        let watching = Watching::new(&self.bell)?;
        // The thread inherits the mask: the application's handlers run on its own threads.
        // SAFETY: both sets are plain data, filled before they are used.
        let before = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            before
        };
        let started = std::thread::Builder::new()
            .name("fable-agent".to_owned())
            .spawn(move || self.serve(watching));
        // SAFETY: `before` is the mask that the call above returned.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
        started.map(drop).map_err(Error::system("starting the agent thread"))
    }

    fn serve(&self, mut watching: Watching) {
        IS_AGENT.set(true);
        loop {
            // A closure can queue further closures without signalling the eventfd.
            loop {
                let commands = std::mem::take(&mut self.lock().commands);
                if commands.is_empty() {
                    break;
                }
                for command in commands {
                    match command {
                        Command::Watch(place, watched) => watching.add(place, watched),
                        Command::Look(place) => watching.ask(place),
                        Command::Run(errand) => errand(),
                    }
                }
            }
            if watching.wait() {
                silence(&self.bell);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
    use std::sync::mpsc;
    use std::time::Duration;

    struct Timer(Instant, mpsc::Sender<&'static str>);

    impl Watched for Timer {
        fn descriptor(&self) -> RawFd {
            -1
        }
        fn events(&self) -> i16 {
            0
        }
        fn deadline(&self) -> Option<Instant> {
            Some(self.0)
        }
        fn ready(&mut self, _events: i16) -> WatchOutcome {
            self.1.send("deadline").unwrap();
            WatchOutcome::Not
        }
    }

    struct Reader(std::os::unix::net::UnixStream, mpsc::Sender<&'static str>);

    impl Watched for Reader {
        fn descriptor(&self) -> RawFd {
            self.0.as_raw_fd()
        }
        fn events(&self) -> i16 {
            libc::POLLIN
        }
        fn ready(&mut self, events: i16) -> WatchOutcome {
            assert_ne!(events & libc::POLLIN, 0);
            self.1.send("readable").unwrap();
            WatchOutcome::Not
        }
    }

    /// Waits for a deadline that another thread sets.
    struct Alarm(std::sync::Arc<Mutex<Option<Instant>>>, mpsc::Sender<&'static str>);

    impl Watched for Alarm {
        fn descriptor(&self) -> RawFd {
            -1
        }
        fn events(&self) -> i16 {
            0
        }
        fn deadline(&self) -> Option<Instant> {
            *self.0.lock().unwrap()
        }
        fn ready(&mut self, _events: i16) -> WatchOutcome {
            self.1.send("alarm").unwrap();
            WatchOutcome::Not
        }
    }

    /// Counts how often the agent asks it what to wait for.
    struct Idle(std::os::unix::net::UnixStream, std::sync::Arc<AtomicU64>);

    impl Watched for Idle {
        fn descriptor(&self) -> RawFd {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.as_raw_fd()
        }
        fn events(&self) -> i16 {
            libc::POLLIN
        }
        fn ready(&mut self, _events: i16) -> WatchOutcome {
            WatchOutcome::Not
        }
    }

    #[test]
    fn an_event_costs_the_same_however_many_others_are_watched() {
        let guard = Duration::from_secs(20);
        let (agent, asked) = (Agent::get().unwrap(), std::sync::Arc::<AtomicU64>::default());
        let pairs: Vec<_> =
            (0..100).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
        let mut others = Vec::new();
        for (watched, other) in pairs {
            agent.watch(Box::new(Idle(watched, std::sync::Arc::clone(&asked))));
            others.push(other);
        }
        let (sender, receiver) = mpsc::channel();
        for _ in 0..100 {
            let sender = sender.clone();
            agent.run(move || sender.send(()).unwrap());
            assert_eq!(receiver.recv_timeout(guard), Ok(()));
        }
        let asked = asked.load(Ordering::Relaxed);
        let expected = 100..=200;
        assert!(expected.contains(&asked), "100 idle ones were asked {asked} times");
    }

    #[test]
    fn what_others_change_is_looked_at_when_they_say_so() {
        let (sender, receiver) = mpsc::channel();
        let (agent, time) = (Agent::get().unwrap(), std::sync::Arc::default());
        let place = agent.watch(Box::new(Alarm(std::sync::Arc::clone(&time), sender)));
        *time.lock().unwrap() = Some(Instant::now());
        agent.look(place);
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok("alarm"));
        // `look` does nothing for an object that is no longer watched.
        agent.look(place);
        let (sender, receiver) = mpsc::channel();
        agent.run(move || sender.send(()).unwrap());
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(()));
    }

    #[test]
    fn a_descriptor_that_others_still_have_does_not_keep_the_agent_busy() {
        let guard = Duration::from_secs(20);
        let (sender, receiver) = mpsc::channel();
        let agent = Agent::get().unwrap();
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        // A forked child has such a copy.
        let copy = left.try_clone().unwrap();
        agent.watch(Box::new(Reader(left, sender.clone())));
        drop(right);
        assert_eq!(receiver.recv_timeout(guard), Ok("readable"));
        // The kernel reuses the number at once: the agent must watch the new socket under it.
        let (again, other) = std::os::unix::net::UnixStream::pair().unwrap();
        agent.watch(Box::new(Reader(again, sender)));
        drop(other);
        assert_eq!(receiver.recv_timeout(guard), Ok("readable"));
        assert_eq!(receiver.recv_timeout(guard), Err(mpsc::RecvTimeoutError::Disconnected));
        drop(copy);
    }

    /// Waits for the descriptor whose number this contains.
    struct Changing(std::sync::Arc<std::sync::atomic::AtomicI32>);

    impl Watched for Changing {
        fn descriptor(&self) -> RawFd {
            self.0.load(Ordering::Relaxed)
        }
        fn events(&self) -> i16 {
            libc::POLLIN
        }
        fn ready(&mut self, _events: i16) -> WatchOutcome {
            WatchOutcome::Watching
        }
    }

    #[test]
    fn a_number_that_is_used_again_is_watched_for_its_new_owner() {
        let (sender, receiver) = mpsc::channel();
        let agent = Agent::get().unwrap();
        let (old, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let number = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(old.as_raw_fd()));
        let place = agent.watch(Box::new(Changing(std::sync::Arc::clone(&number))));
        let done = || {
            let (sender, receiver) = mpsc::channel();
            agent.run(move || sender.send(()).unwrap());
            receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        };
        done();
        // Another socket gets the number, and is watched before the agent looks at the first.
        let (new, other) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: both descriptors are open and owned here; the result owns the old one's number.
        let again = unsafe {
            let again = libc::dup2(new.as_raw_fd(), old.into_raw_fd());
            std::os::unix::net::UnixStream::from_raw_fd(again)
        };
        agent.watch(Box::new(Reader(again, sender)));
        done();
        number.store(-1, Ordering::Relaxed);
        agent.look(place);
        done();
        drop((new, other));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok("readable"));
    }

    #[test]
    fn errands_deadlines_and_descriptors_are_served() {
        let guard = Duration::from_secs(20);
        let (sender, receiver) = mpsc::channel();
        let agent = Agent::get().unwrap();
        let errand = sender.clone();
        agent.run(move || errand.send("errand").unwrap());
        assert_eq!(receiver.recv_timeout(guard), Ok("errand"));
        agent.watch(Box::new(Timer(Instant::now() + Duration::from_millis(5), sender.clone())));
        assert_eq!(receiver.recv_timeout(guard), Ok("deadline"));
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        agent.watch(Box::new(Reader(left, sender)));
        drop(right);
        assert_eq!(receiver.recv_timeout(guard), Ok("readable"));
        // The agent dropped every object after `WatchOutcome::Not`, so the channel is closed.
        assert_eq!(receiver.recv_timeout(guard), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
