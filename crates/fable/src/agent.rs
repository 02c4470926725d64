//! The thread that does what no flow's own thread should wait for: control links, the daemon's
//! connection, opening paths.
//!
//! There is one per process, started on first use, with all signals blocked. It waits in an epoll
//! set for whatever is [`Watched`], and runs closures that others send it. Everything that it runs
//! must be short and must not block. A child after `fork` has no such thread; [`Agent::get`] starts
//! one.
//!
//! What is watched is asked what to wait for when it is added, after each call of its `ready`, and
//! when another thread says that it has changed ([`Agent::look`]). So an event costs the same
//! however many others are watched.

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
use crate::event::{EpollSet, event_descriptor, ring, silence};

/// Whether the agent goes on watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Go on.
    Watching,
    /// Drop it.
    Not,
}

/// Something that the agent waits for.
pub(crate) trait Watched: Send {
    /// What to wait for. Negative: only the deadline counts.
    fn descriptor(&self) -> RawFd;

    /// `POLLIN`, `POLLOUT` or both.
    fn events(&self) -> i16;

    /// When to call `ready` without any event.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Something has happened (`revents` of `poll`), or the deadline has passed (then zero).
    fn ready(&mut self, events: i16) -> Keep;
}

type Errand = Box<dyn FnOnce() + Send>;

/// Something watched, for those who change it. Never used again for anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place(u64);

enum Command {
    Watch(Place, Box<dyn Watched>),
    Look(Place),
    Run(Errand),
}

thread_local! {
    /// Whether this thread is the agent, who need not be woken.
    static IS_AGENT: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    started: bool,
}

/// The agent of this process.
pub(crate) struct Agent {
    process: u32,
    queue: Mutex<Queue>,
    bell: OwnedFd,
    /// The place that was given last.
    places: AtomicU64,
    /// What is watched of closed flows.
    quota: Quota,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Agent").field("process", &self.process).finish_non_exhaustive()
    }
}

/// An agent is never freed: in a child of `fork` the parent's stays behind, unused.
static AGENT: AtomicPtr<Agent> = AtomicPtr::new(std::ptr::null_mut());

impl Agent {
    /// The agent of this process; starts its thread if there is none.
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
            // SAFETY: what is stored here was leaked and is never freed.
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
                // SAFETY: it came from a box just now, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Watches this from now on.
    pub(crate) fn watch(&self, watched: Box<dyn Watched>) -> Place {
        let place = Place(self.places.fetch_add(1, Ordering::Relaxed) + 1);
        self.send(Command::Watch(place, watched));
        place
    }

    /// Asks again what to wait for, after another thread has changed it. Does nothing if it is not
    /// watched any more.
    pub(crate) fn look(&self, place: Place) {
        self.send(Command::Look(place));
    }

    /// Counts what is kept for each peer of flows that are closed.
    pub(crate) fn quota(&'static self) -> &'static Quota {
        &self.quota
    }

    /// Runs this on the agent's thread.
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
        let epoll = EpollSet::new().map_err(Error::system("epoll_create1 for the agent thread"))?;
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
            .spawn(move || self.serve(epoll));
        // SAFETY: the mask is the one that was set before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
        started.map(drop).map_err(Error::system("starting the agent thread"))
    }

    fn serve(&self, epoll: EpollSet) {
        IS_AGENT.set(true);
        let mut watching = Watching::new(epoll, &self.bell);
        loop {
            // What runs here may queue more without a ring of the bell.
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
        fn ready(&mut self, _events: i16) -> Keep {
            self.1.send("deadline").unwrap();
            Keep::Not
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
        fn ready(&mut self, events: i16) -> Keep {
            assert_ne!(events & libc::POLLIN, 0);
            self.1.send("readable").unwrap();
            Keep::Not
        }
    }

    /// Waits for a deadline that others set.
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
        fn ready(&mut self, _events: i16) -> Keep {
            self.1.send("alarm").unwrap();
            Keep::Not
        }
    }

    /// Counts how often it is asked what to wait for.
    struct Idle(std::os::unix::net::UnixStream, std::sync::Arc<AtomicU64>);

    impl Watched for Idle {
        fn descriptor(&self) -> RawFd {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.as_raw_fd()
        }
        fn events(&self) -> i16 {
            libc::POLLIN
        }
        fn ready(&mut self, _events: i16) -> Keep {
            Keep::Not
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
        // What is not watched any more is passed over.
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
        // As a forked child has it.
        let copy = left.try_clone().unwrap();
        agent.watch(Box::new(Reader(left, sender.clone())));
        drop(right);
        assert_eq!(receiver.recv_timeout(guard), Ok("readable"));
        // Where its number is used again at once, that is watched and not the old one.
        let (again, other) = std::os::unix::net::UnixStream::pair().unwrap();
        agent.watch(Box::new(Reader(again, sender)));
        drop(other);
        assert_eq!(receiver.recv_timeout(guard), Ok("readable"));
        assert_eq!(receiver.recv_timeout(guard), Err(mpsc::RecvTimeoutError::Disconnected));
        drop(copy);
    }

    /// Waits for whatever descriptor is in here.
    struct Changing(std::sync::Arc<std::sync::atomic::AtomicI32>);

    impl Watched for Changing {
        fn descriptor(&self) -> RawFd {
            self.0.load(Ordering::Relaxed)
        }
        fn events(&self) -> i16 {
            libc::POLLIN
        }
        fn ready(&mut self, _events: i16) -> Keep {
            Keep::Watching
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
        // The number goes to another socket, which is watched before the agent looks at the first.
        let (new, other) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: both descriptors are ours; the old one's number is owned by what is made of it.
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
        // Everything was dropped with `Keep::Not`, so the channel is closed.
        assert_eq!(receiver.recv_timeout(guard), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
