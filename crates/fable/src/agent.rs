//! The thread that does what no flow's own thread should wait for: control links, the daemon's
//! connection, opening paths.
//!
//! There is one per process, started on first use, with all signals blocked. It waits in `poll` for
//! whatever is [`Watched`], and runs closures that others send it. Everything that it runs must be
//! short and must not block. A child after `fork` has no such thread; [`Agent::get`] starts one.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

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
    /// What to poll; asked before every wait. The descriptor stays open until `ready` has returned
    /// [`Keep::Not`]. Negative: only the deadline counts.
    fn descriptor(&self) -> RawFd;

    /// `POLLIN`, `POLLOUT` or both; asked before every wait.
    fn events(&self) -> i16;

    /// When to call `ready` without any event; asked before every wait.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Something has happened (`revents` of `poll`), or the deadline has passed (then zero).
    fn ready(&mut self, events: i16) -> Keep;
}

type Errand = Box<dyn FnOnce() + Send>;

enum Command {
    Watch(Box<dyn Watched>),
    Run(Errand),
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
            let new = Box::into_raw(Box::new(Agent { process, queue, bell: event_descriptor()? }));
            let exchange =
                AGENT.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
            if exchange.is_err() {
                // SAFETY: it came from a box just now, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Watches this from now on.
    pub(crate) fn watch(&self, watched: Box<dyn Watched>) {
        self.send(Command::Watch(watched));
    }

    /// Runs this on the agent's thread.
    pub(crate) fn run(&self, errand: impl FnOnce() + Send + 'static) {
        self.send(Command::Run(Box::new(errand)));
    }

    fn send(&self, command: Command) {
        self.lock().commands.push_back(command);
        ring(&self.bell);
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&'static self) -> Result<()> {
        // The thread inherits the mask: the application's handlers run on its own threads.
        // SAFETY: both sets are plain data, filled before they are used.
        let before = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            before
        };
        let started =
            std::thread::Builder::new().name("fable-agent".to_owned()).spawn(move || self.serve());
        // SAFETY: the mask is the one that was set before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
        let call = "starting the agent thread";
        started.map(drop).map_err(|source| Error::System { call, source })
    }

    fn serve(&self) {
        let mut watched: Vec<Box<dyn Watched>> = Vec::new();
        let (mut polled, mut deadlines) = (Vec::new(), Vec::new());
        loop {
            let commands = std::mem::take(&mut self.lock().commands);
            for command in commands {
                match command {
                    Command::Watch(new) => watched.push(new),
                    Command::Run(errand) => errand(),
                }
            }
            polled.clear();
            polled.push(entry(self.bell.as_raw_fd(), libc::POLLIN));
            polled.extend(watched.iter().map(|one| entry(one.descriptor(), one.events())));
            // Asked once: a deadline that is always "now" would never have passed when asked again.
            deadlines.clear();
            deadlines.extend(watched.iter().map(|one| one.deadline()));
            wait(&mut polled, deadlines.iter().flatten().min().copied());
            if polled[0].revents != 0 {
                silence(&self.bell);
            }
            let now = Instant::now();
            let mut happened = polled[1..].iter().map(|entry| entry.revents).zip(&deadlines);
            watched.retain_mut(|one| {
                let (events, deadline) = happened.next().unwrap_or((0, &None));
                let due = deadline.is_some_and(|at| at <= now);
                (events == 0 && !due) || one.ready(events) == Keep::Watching
            });
        }
    }
}

fn entry(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

fn wait(polled: &mut [libc::pollfd], deadline: Option<Instant>) {
    let timeout_ms = deadline.map_or(-1, |at| {
        let left = at.saturating_duration_since(Instant::now());
        // Rounded up, so that a deadline has passed when poll says so.
        let left = left + Duration::from_micros(999);
        i32::try_from(left.as_millis()).unwrap_or(i32::MAX)
    });
    // SAFETY: the entries outlive the call.
    let count =
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
    if count < 0 {
        polled.iter_mut().for_each(|entry| entry.revents = 0);
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            // Out of memory in the kernel: try again, but do not burn.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A new eventfd: non-blocking, close-on-exec.
pub(crate) fn event_descriptor() -> Result<OwnedFd> {
    // SAFETY: a plain system call.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(Error::last("eventfd"));
    }
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Makes an eventfd readable.
pub(crate) fn ring(bell: &OwnedFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: eight bytes, as an eventfd wants them. A bell that is full has rung.
    unsafe { libc::write(bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Makes an eventfd unreadable.
pub(crate) fn silence(bell: &OwnedFd) {
    let mut count = [0_u8; 8];
    // SAFETY: eight bytes of room, as an eventfd wants them; the descriptor does not block.
    unsafe { libc::read(bell.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

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
