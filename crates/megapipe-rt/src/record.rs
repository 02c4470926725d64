//! Records what each task waits for, for [`Handle::dump`](crate::Handle::dump).
//!
//! A future that keeps a waker notes the reason in a thread-local of the task that runs, which sets
//! one bit. After the poll the core keeps the bits with the task. A poll without a note has given
//! its waker to other code.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// Reasons as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reason(u16);

impl Reason {
    pub(crate) const ACCEPT: Reason = Reason(1);
    pub(crate) const CONNECT: Reason = Reason(1 << 1);
    pub(crate) const READ: Reason = Reason(1 << 2);
    pub(crate) const WRITE: Reason = Reason(1 << 3);
    pub(crate) const TASK: Reason = Reason(1 << 4);
    pub(crate) const BLOCKING_CALL: Reason = Reason(1 << 5);
    pub(crate) const SHUTDOWN: Reason = Reason(1 << 6);
    pub(crate) const FILE: Reason = Reason(1 << 7);
    pub(crate) const SIGNAL: Reason = Reason(1 << 8);
    const TIMER: Reason = Reason(1 << 9);
    const RUNNING: Reason = Reason(1 << 10);

    fn contains(self, other: Reason) -> bool {
        self.0 & other.0 != 0
    }
}

thread_local! {
    /// What the running task has noted during this poll.
    static NOTED: Cell<Reason> = const { Cell::new(Reason(0)) };
    /// The earliest deadline of its timers, if it has noted one.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Notes that the running task waits for this.
#[inline]
pub(crate) fn note(reason: Reason) {
    NOTED.with(|noted| noted.set(Reason(noted.get().0 | reason.0)));
}

/// Notes that the running task waits for a timer.
pub(crate) fn note_timer(deadline: Instant) {
    let is_first = !NOTED.get().contains(Reason::TIMER);
    if is_first || DEADLINE.get().is_none_or(|earliest| deadline < earliest) {
        DEADLINE.set(Some(deadline));
    }
    note(Reason::TIMER);
}

/// What a core records of a task.
#[derive(Debug)]
pub(crate) struct Record {
    number: u64,
    pub(crate) spawned_at: &'static Location<'static>,
    spawned_ns: u64,
    polls: u64,
    noted: Reason,
    deadline: Option<Instant>,
}

impl Record {
    pub(crate) fn new(number: u64, spawned_at: &'static Location<'static>) -> Record {
        let spawned_ns = sys::clock::monotonic_coarse_ns();
        let noted = Reason::default();
        Record { number, spawned_at, spawned_ns, polls: 0, noted, deadline: None }
    }

    /// Begins a poll.
    #[inline]
    pub(crate) fn begin_poll(&mut self) {
        self.noted = Reason::RUNNING;
        NOTED.set(Reason::default());
    }

    /// Keeps what the poll has noted.
    #[inline]
    pub(crate) fn end_poll(&mut self) {
        self.polls += 1;
        self.noted = NOTED.get();
        if self.noted.contains(Reason::TIMER) {
            self.deadline = DEADLINE.get();
        }
    }

    pub(crate) fn info(&self, core: usize, is_ready: bool) -> TaskInfo {
        let age_ns = sys::clock::monotonic_coarse_ns().saturating_sub(self.spawned_ns);
        let state = if self.noted.contains(Reason::RUNNING) {
            TaskState::Running
        } else if is_ready {
            TaskState::Ready
        } else {
            TaskState::Waits(self.waits_for())
        };
        TaskInfo {
            core,
            number: self.number,
            spawned_at: self.spawned_at,
            age: Duration::from_nanos(age_ns),
            polls: self.polls,
            state,
        }
    }

    fn waits_for(&self) -> Vec<WaitsFor> {
        let plain = [
            (Reason::ACCEPT, WaitsFor::Accept),
            (Reason::CONNECT, WaitsFor::Connect),
            (Reason::READ, WaitsFor::Read),
            (Reason::WRITE, WaitsFor::Write),
            (Reason::FILE, WaitsFor::File),
            (Reason::SIGNAL, WaitsFor::Signal),
            (Reason::TASK, WaitsFor::Task),
            (Reason::BLOCKING_CALL, WaitsFor::BlockingCall),
            (Reason::SHUTDOWN, WaitsFor::Shutdown),
        ];
        let noted = plain.iter().filter(|(reason, _)| self.noted.contains(*reason));
        let mut all: Vec<_> = noted.map(|(_, waits_for)| *waits_for).collect();
        if self.noted.contains(Reason::TIMER) {
            let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
            all.push(WaitsFor::Timer(left.unwrap_or_default()));
        }
        all
    }
}

/// Where the task that a core polled last was started; readable on every thread.
#[derive(Debug, Default)]
pub(crate) struct LastPolled(AtomicPtr<Location<'static>>);

impl LastPolled {
    /// One store; only the core calls this.
    #[inline]
    pub(crate) fn set(&self, location: &'static Location<'static>) {
        self.0.store(std::ptr::from_ref(location).cast_mut(), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<&'static Location<'static>> {
        // SAFETY: the pointer is null, or one of `set`, which lives for ever and never changes.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
    }
}

/// A task at the time of a [dump](crate::Handle::dump).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskInfo {
    /// The number of its core.
    pub core: usize,
    /// Its number on this core, in the order of their starts; 0 is the future of `block_on`.
    pub number: u64,
    /// Where it was started: the caller of `spawn_local` or another function that starts tasks.
    pub spawned_at: &'static Location<'static>,
    /// How long ago it was started, accurate to the kernel's tick (1 to 10 ms).
    pub age: Duration,
    /// How often it was polled and had not ended.
    pub polls: u64,
    /// What it does.
    pub state: TaskState,
}

/// The state of a task; see [`TaskInfo`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskState {
    /// The task made the dump.
    Running,
    /// It is in the core's queue and will be polled.
    Ready,
    /// It waits for one of these, which its last poll asked for. An empty list means that other
    /// code has its waker: a channel or a lock of another crate, for example.
    Waits(Vec<WaitsFor>),
}

/// What a task may wait for; see [`TaskState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitsFor {
    /// A connection of a listener.
    Accept,
    /// The end of a connect.
    Connect,
    /// Input of a socket or a pipe.
    Read,
    /// Output of a socket or a pipe: room for more of it, or its end.
    Write,
    /// An operation on a file.
    File,
    /// A signal.
    Signal,
    /// The end of another task.
    Task,
    /// The end of a call of [`spawn_blocking`](crate::spawn_blocking).
    BlockingCall,
    /// The request of the runtime's shutdown.
    Shutdown,
    /// A timer, with the time left; zero if it is due.
    Timer(Duration),
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            WaitsFor::Accept => "accept",
            WaitsFor::Connect => "connect",
            WaitsFor::Read => "read",
            WaitsFor::Write => "write",
            WaitsFor::File => "a file",
            WaitsFor::Signal => "a signal",
            WaitsFor::Task => "another task",
            WaitsFor::BlockingCall => "a blocking call",
            WaitsFor::Shutdown => "the shutdown",
            WaitsFor::Timer(left) => return write!(out, "a timer in {left:.1?}"),
        })
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskState::Running => out.write_str("is running"),
            TaskState::Ready => out.write_str("is ready"),
            TaskState::Waits(reasons) if reasons.is_empty() => {
                out.write_str("waits for a waker of other code")
            }
            TaskState::Waits(reasons) => {
                let reasons: Vec<_> = reasons.iter().map(WaitsFor::to_string).collect();
                write!(out, "waits for {}", reasons.join(" or "))
            }
        }
    }
}

impl fmt::Display for TaskInfo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TaskInfo { core, number, spawned_at, age, polls, state } = self;
        write!(
            out,
            "core {core} task {number}: {state}; {polls} polls in {age:.1?}; spawned at \
             {spawned_at}"
        )
    }
}
