//! Counts the calls of a traced program, and makes one of them fail or kills the program there.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::calls::{self, Call, may_fail};
use crate::notify::{self, Listener, Next, Notice, PAUSE};

/// What happens at one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The call fails with this errno, and the kernel does not execute it.
    Fail(i32),
    /// The process is killed before the call.
    Kill,
}

/// What happens in a run, and at which call. The order of different calls depends on how threads
/// are scheduled, so calls are counted by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) call: &'static Call,
    /// The number of this call: the first is 1.
    pub(crate) nth: usize,
    pub(crate) action: Action,
}

/// What was seen of a program.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// The calls that may fail, in their order.
    pub(crate) steps: Vec<&'static Call>,
    /// Whether the plan was carried out.
    pub(crate) is_hit: bool,
    /// How many more descriptors each process had at its second mark than at its first.
    pub(crate) descriptors: Vec<i64>,
    /// Descriptors of the program when its clients had ended, if it is a daemon.
    pub(crate) open: Option<usize>,
    /// Why the tracer could not go on.
    pub(crate) error: Option<String>,
    plan: Option<Plan>,
    /// How many more descriptors a process may have at its second mark, if that is known.
    allowed: Option<i64>,
    marks: Vec<Mark>,
    processes: HashMap<u32, Process>,
    owners: HashMap<u32, u32>,
}

/// Where a process is in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The dynamic loader maps libraries; its last call is the first munmap(2).
    Loading,
    /// The loader has ended, and the program has made no call.
    Loaded,
    /// Rust's runtime prepares the main thread; its last call is sigaltstack(2) with a stack.
    Runtime,
    /// Calls count.
    Running,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    phase: Phase,
    /// Descriptors at the first mark.
    mark: Option<usize>,
}

/// A process at its second mark, which waits until its threads have closed what they close.
#[derive(Debug)]
struct Mark {
    notice: Notice,
    pid: u32,
    before: usize,
    since: Instant,
}

/// How long a process waits at its second mark: with the number of allowed descriptors, until it
/// has no more; else for a fixed time.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const UNKNOWN_TIME: Duration = Duration::from_millis(300);

/// A traced program.
#[derive(Debug)]
pub(crate) struct Traced {
    trace: Arc<Mutex<Trace>>,
    thread: thread::JoinHandle<()>,
}

impl Traced {
    /// Starts a program whose calls are counted, and carries the plan out. `allowed` is how many
    /// more descriptors a process may have at its second mark than at its first.
    pub(crate) fn spawn(
        command: &mut Command,
        plan: Option<Plan>,
        allowed: Option<i64>,
    ) -> io::Result<(Child, Traced)> {
        let socket = notify::prepare(command, calls::numbers())?;
        let trace = Arc::new(Mutex::new(Trace { plan, allowed, ..Trace::default() }));
        let theirs = Arc::clone(&trace);
        let follow = move || {
            let outcome = Listener::take(&socket).and_then(|listener| {
                listener.map_or(Ok(()), |listener| follow(&listener, &theirs))
            });
            if let Err(error) = outcome {
                lock(&theirs).error = Some(format!("the tracer fails: {error}"));
            }
        };
        let thread = thread::spawn(follow);
        let child = command.spawn()?;
        Ok((child, Traced { trace, thread }))
    }

    /// Whether no process has the filter any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until no process has the filter any more; returns what was seen.
    pub(crate) fn end(self) -> Trace {
        let _ = self.thread.join();
        std::mem::take(&mut *lock(&self.trace))
    }

    /// Whether the plan was carried out.
    pub(crate) fn is_hit(&self) -> bool {
        lock(&self.trace).is_hit
    }
}

fn lock(trace: &Mutex<Trace>) -> std::sync::MutexGuard<'_, Trace> {
    trace.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow(listener: &Listener, trace: &Mutex<Trace>) -> io::Result<()> {
    loop {
        let pause = if lock(trace).marks.is_empty() { None } else { Some(PAUSE) };
        match listener.next(pause)? {
            Next::Notice(notice) => {
                let action = lock(trace).see(&notice);
                match action {
                    Some(Action::Fail(errno)) => listener.fail(&notice, errno),
                    Some(Action::Kill) => kill(&notice, trace),
                    None if lock(trace).waits(&notice) => {}
                    None => listener.proceed(&notice),
                }
            }
            Next::Nothing => {}
            Next::End => return Ok(()),
        }
        for notice in lock(trace).settled() {
            listener.proceed(&notice);
        }
    }
}

/// Kills the process that waits for its answer.
fn kill(notice: &Notice, trace: &Mutex<Trace>) {
    let process = lock(trace).owner(notice.thread);
    // SAFETY: plain numbers; the process waits for its answer, so the number is its own.
    unsafe { libc::kill(process as i32, libc::SIGKILL) };
}

impl Trace {
    /// Takes a call into account; returns what happens to it.
    fn see(&mut self, notice: &Notice) -> Option<Action> {
        let call = calls::find(notice.number)?;
        let pid = self.owner(notice.thread);
        // A process that was not seen before was forked by a running one, or executes its first
        // program.
        let fresh = Process { phase: Phase::Running, mark: None };
        let process = *self.processes.entry(pid).or_insert(fresh);
        let first = self.processes.len() == 1 && self.steps.is_empty();
        let phase = next_phase(process.phase, call, &notice.arguments);
        if call.number == libc::SYS_getppid {
            return self.mark(pid, notice);
        }
        let counts =
            matches!((process.phase, phase), (Phase::Running, _) | (Phase::Loaded, Phase::Running))
                && may_fail(call, &notice.arguments)
                && !rings(call, pid, &notice.arguments);
        let is_execution = call.number == libc::SYS_execve;
        let action = if counts && !(first && is_execution) { self.step(call) } else { None };
        if let Some(process) = self.processes.get_mut(&pid) {
            let begins = is_execution && action.is_none();
            process.phase = if begins { Phase::Loading } else { phase };
        }
        action
    }

    fn step(&mut self, call: &'static Call) -> Option<Action> {
        self.steps.push(call);
        let plan = self.plan.filter(|plan| plan.call == call && !self.is_hit)?;
        let count = self.steps.iter().filter(|step| **step == call).count();
        self.is_hit = count == plan.nth;
        self.is_hit.then_some(plan.action)
    }

    /// Counts the descriptors of the process at its first mark; at the second, it has to wait.
    fn mark(&mut self, pid: u32, notice: &Notice) -> Option<Action> {
        let process = self.processes.get_mut(&pid)?;
        match process.mark.take() {
            None => process.mark = descriptors(pid),
            Some(before) => {
                self.marks.push(Mark { notice: *notice, pid, before, since: Instant::now() });
            }
        }
        None
    }

    /// Whether the call is a mark at which its process waits.
    fn waits(&self, notice: &Notice) -> bool {
        self.marks.iter().any(|mark| mark.notice.thread == notice.thread)
    }

    /// Returns the marks at which processes need not wait any longer.
    fn settled(&mut self) -> Vec<Notice> {
        let mut settled = Vec::new();
        let (allowed, found) = (self.allowed, &mut self.descriptors);
        self.marks.retain(|mark| {
            let more = descriptors(mark.pid).map_or(0, |open| open as i64 - mark.before as i64);
            let is_settled = match allowed {
                Some(allowed) => more <= allowed || mark.since.elapsed() > SETTLE_TIME,
                None => mark.since.elapsed() > UNKNOWN_TIME,
            };
            if is_settled {
                found.push(more);
                settled.push(mark.notice);
            }
            !is_settled
        });
        settled
    }

    /// Returns the process of a thread.
    fn owner(&mut self, thread: u32) -> u32 {
        *self.owners.entry(thread).or_insert_with(|| {
            let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
            line.and_then(|number| number.trim().parse().ok()).unwrap_or(thread)
        })
    }
}

/// Whether a call adds to an eventfd(2), which cannot fail below the limit of the count.
fn rings(call: &Call, pid: u32, arguments: &[u64; 6]) -> bool {
    let link = || fs::read_link(format!("/proc/{pid}/fd/{}", arguments[0]));
    call.number == libc::SYS_write
        && link().is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

/// Returns where a process is after a call.
fn next_phase(phase: Phase, call: &Call, arguments: &[u64; 6]) -> Phase {
    /// Rust's runtime checks the three standard descriptors first.
    const STANDARD: u64 = 3;
    match phase {
        Phase::Loading if call.number == libc::SYS_munmap => Phase::Loaded,
        Phase::Loaded if call.name == "poll" && arguments[1] == STANDARD => Phase::Runtime,
        Phase::Loaded => Phase::Running,
        Phase::Runtime if call.number == libc::SYS_sigaltstack && arguments[0] != 0 => {
            Phase::Running
        }
        same => same,
    }
}

/// Returns the number of descriptors of a process; `None` if it has ended.
pub(crate) fn descriptors(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}
