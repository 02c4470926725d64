//! Runs a scenario once, with or without a fault, and judges how its programs ended.

use std::ffi::CStr;
use std::io;

use crate::calls::errno_name;
use crate::room::{End, Ended, Leftovers, Room, Running, SETTLE_TIME, descriptors_beyond, wait};
use crate::scenario::{Scenario, Subject};
use crate::tracer::{Action, Plan, Trace, descriptors};

/// How a run ended that had no fault of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The program went on: it repeated the call, or did without it.
    Continued,
    /// The program ended with a message that names the cause.
    Named,
    /// The program was killed.
    Killed,
    /// Rust's runtime ended the program, because a new thread got no stack for its signals.
    Runtime,
    /// The program made fewer calls than without a fault.
    NotReached,
}

/// What was seen in a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) trace: Trace,
    /// The fault that was found, as a sentence.
    pub(crate) outcome: Result<Kind, String>,
}

/// What stays the same during all runs of a scenario.
#[derive(Debug)]
pub(crate) struct Stage {
    scenario: Scenario,
    /// Programs that run beside those that are traced.
    daemon: Option<Running>,
    server: Option<Running>,
    baseline: Option<Baseline>,
}

/// What a run without a fault leaves.
#[derive(Debug)]
struct Baseline {
    leftovers: Leftovers,
    /// Descriptors of daemon and server.
    open: [usize; 2],
    /// Differences of the descriptors of traced processes between their marks.
    marked: i64,
    /// Descriptors of a traced daemon after its clients.
    traced: usize,
}

/// Exit status of the scenarios' programs for wrong bytes, and for what does not come.
const WRONG: i32 = 3;
const LATE: i32 = 4;
/// Exit status of a Rust program that panics.
const PANICKED: i32 = 101;

/// What Rust's runtime says when it maps no stack for the signals of a new thread; it panics in the
/// thread before any code of the program runs, so the program cannot prevent it.
const STACK: &str = " alternative stack";

/// How many runs without a fault show what is usual: the threads of a program close descriptors at
/// different times.
const PLAIN_RUNS: usize = 3;

/// How often a program is tried while the fault is still to come.
const TRIES: usize = 4;

impl Stage {
    /// Starts what runs beside the traced program, and makes runs without a fault; returns the
    /// calls of the last.
    pub(crate) fn new(room: &mut Room, scenario: Scenario) -> io::Result<(Stage, Trace)> {
        (scenario.prepare)(room)?;
        let mut stage = Stage { scenario, daemon: None, server: None, baseline: None };
        stage.start(room)?;
        let traces =
            (0..PLAIN_RUNS).map(|_| stage.plain(room)).collect::<io::Result<Vec<Trace>>>()?;
        let marked = traces.iter().flat_map(|trace| trace.descriptors.iter().copied());
        stage.baseline = Some(Baseline {
            leftovers: Leftovers::find(),
            open: stage.open(),
            marked: marked.max().unwrap_or(0),
            traced: traces.iter().filter_map(|trace| trace.open).max().unwrap_or(0),
        });
        Ok((stage, traces.into_iter().next_back().unwrap_or_default()))
    }

    fn plain(&mut self, room: &mut Room) -> io::Result<Trace> {
        let run = self.run(room, None)?;
        match run.outcome {
            Ok(_) => Ok(run.trace),
            Err(fault) => Err(io::Error::other(format!("without a fault: {fault}"))),
        }
    }

    /// Starts daemon and server if they are needed and do not run.
    fn start(&mut self, room: &mut Room) -> io::Result<()> {
        let runs = |running: &mut Option<Running>| running.as_mut().is_some_and(Running::is_alive);
        if let Some(daemon) = self.scenario.daemon
            && self.scenario.subject != Subject::Daemon
            && !runs(&mut self.daemon)
        {
            self.daemon = Some(ready(room, daemon(room))?);
        }
        if self.scenario.subject == Subject::Client && !runs(&mut self.server) {
            self.server = Some(ready(room, (self.scenario.server)(room))?);
        }
        Ok(())
    }

    /// Runs the scenario once.
    pub(crate) fn run(&mut self, room: &mut Room, plan: Option<Plan>) -> io::Result<Run> {
        let (ended, trace, mut faults) = match self.scenario.subject {
            Subject::Alone => self.alone(room, plan)?,
            Subject::Client => self.client(room, plan)?,
            Subject::Server => self.server(room, plan)?,
            Subject::Daemon => self.daemon(room, plan)?,
        };
        let kind = judge(&ended, plan, &trace);
        let kind = kind.map_err(|fault| faults.insert(0, fault));
        faults.extend(trace.error.clone());
        faults.extend(self.leaks(room, &trace));
        let outcome = match kind {
            Ok(kind) if faults.is_empty() => Ok(kind),
            _ => Err(faults.join("; ")),
        };
        if outcome.is_err() && self.baseline.is_some() {
            self.restart(room)?;
        }
        Ok(Run { trace, outcome })
    }

    /// Replaces what runs beside the traced program, so that a fault has no effect on later runs.
    fn restart(&mut self, room: &mut Room) -> io::Result<()> {
        (self.server, self.daemon) = (None, None);
        self.start(room)?;
        let baseline = self.baseline.take();
        let usual = self.run(room, None)?;
        usual.outcome.map_err(|fault| io::Error::other(format!("after a fault: {fault}")))?;
        let (leftovers, open) = (Leftovers::find(), self.open());
        self.baseline = baseline.map(|baseline| Baseline { leftovers, open, ..baseline });
        Ok(())
    }

    /// Returns how many descriptors daemon and server have.
    fn open(&self) -> [usize; 2] {
        [&self.daemon, &self.server].map(|running| {
            running.as_ref().and_then(|running| descriptors(running.pid())).unwrap_or(0)
        })
    }

    /// Returns what is left that was not there after a run without a fault.
    fn leaks(&mut self, room: &Room, trace: &Trace) -> Vec<String> {
        let Some(baseline) = &self.baseline else { return Vec::new() };
        let mut faults = Vec::new();
        let left = room.leftovers(&baseline.leftovers);
        if !left.is_empty() {
            faults.push(format!("left behind: {}", left.join(", ")));
        }
        let beside = [("daemon", &self.daemon), ("server", &self.server)];
        for ((name, running), before) in beside.into_iter().zip(baseline.open) {
            let Some(running) = running else { continue };
            let more = descriptors_beyond(running.pid(), before);
            if more > 0 {
                faults.push(format!("the {name} keeps {more} descriptors"));
            }
        }
        if let Some(more) = trace.descriptors.iter().max().filter(|more| **more > baseline.marked) {
            faults.push(format!("{} descriptors leak", more - baseline.marked));
        }
        if let Some(open) = trace.open.filter(|open| *open > baseline.traced) {
            faults.push(format!("the traced program keeps {} descriptors", open - baseline.traced));
        }
        faults
    }

    fn allowed(&self) -> Option<i64> {
        self.baseline.as_ref().map(|baseline| baseline.marked)
    }

    fn alone(&mut self, room: &mut Room, plan: Option<Plan>) -> io::Result<Parts> {
        let program = room.spawn_traced((self.scenario.client)(room), plan, self.allowed())?;
        let (ended, trace) = program.end();
        Ok((ended, trace, Vec::new()))
    }

    fn client(&mut self, room: &mut Room, plan: Option<Plan>) -> io::Result<Parts> {
        let client = room.spawn_traced((self.scenario.client)(room), plan, self.allowed())?;
        let (ended, trace) = client.end();
        let mut faults = Vec::new();
        let (next, _) = room.spawn((self.scenario.client)(room))?.end();
        faults.extend(bystander("the next client", &next, true));
        let server = self.server.as_mut();
        if !server.is_some_and(Running::is_alive) {
            faults.push("the server has ended".into());
        }
        Ok((ended, trace, faults))
    }

    fn server(&mut self, room: &mut Room, plan: Option<Plan>) -> io::Result<Parts> {
        let mut server = room.spawn_traced((self.scenario.server)(room), plan, self.allowed())?;
        let mut faults = Vec::new();
        if server.line().is_some() {
            faults = self.clients(room, &mut server)?;
        }
        let (ended, trace) = server.end();
        Ok((ended, trace, faults))
    }

    /// Lets clients use a server, and ends it.
    fn clients(&self, room: &mut Room, server: &mut Running) -> io::Result<Vec<String>> {
        let mut faults = Vec::new();
        for number in 1..=TRIES {
            let must = server.is_hit();
            let (client, _) = room.spawn((self.scenario.client)(room))?.end();
            let fault = bystander("a client", &client, must);
            // A server that ends refuses clients while it still sends to others.
            let ends = || !server.is_alive();
            if fault.is_some() && wait(SETTLE_TIME, ends) || !server.is_alive() {
                break;
            }
            faults.extend(fault);
            if number >= 2 && client.end == End::Exited(0) {
                break;
            }
        }
        for _ in 0..TRIES {
            if !server.is_alive() {
                break;
            }
            let (stop, _) = room.spawn((self.scenario.stop)(room))?.end();
            faults.extend(bystander("the last client", &stop, false));
            wait(ENDS, || !server.is_alive());
        }
        Ok(faults)
    }

    fn daemon(&mut self, room: &mut Room, plan: Option<Plan>) -> io::Result<Parts> {
        let Some(command) = self.scenario.daemon else { return Err(io::Error::other("no daemon")) };
        let mut daemon = room.spawn_traced(command(room), plan, self.allowed())?;
        let mut faults = Vec::new();
        let mut open = None;
        if daemon.line().is_some() {
            for number in 1..=TRIES {
                let must = daemon.is_hit();
                let wrong = self.visit(room)?;
                if !daemon.is_alive() {
                    break;
                }
                if must && !wrong.is_empty() {
                    faults.push(format!("after the fault: {}", wrong.join(", ")));
                }
                if number >= 2 && wrong.is_empty() {
                    break;
                }
            }
            if let Some(baseline) = &self.baseline {
                descriptors_beyond(daemon.pid(), baseline.traced);
            }
            open = descriptors(daemon.pid());
            daemon.signal(libc::SIGTERM);
        }
        let (ended, mut trace) = daemon.end();
        if ended.end != End::Exited(0) {
            // Another daemon must be able to take its place, and removes what is left.
            let next = ready(room, command(room))?;
            let wrong = self.visit(room)?;
            if !wrong.is_empty() {
                faults.push(format!("with the next daemon: {}", wrong.join(", ")));
            }
            next.signal(libc::SIGTERM);
            let (next, _) = next.end();
            faults.extend(bystander("the next daemon", &next, true));
        } else {
            trace.open = open;
        }
        Ok((ended, trace, faults))
    }

    /// Uses a daemon: a server registers a name, a client connects and moves its flow. Returns what
    /// went wrong.
    fn visit(&self, room: &mut Room) -> io::Result<Vec<String>> {
        let mut wrong = Vec::new();
        let mut server = room.spawn((self.scenario.server)(room))?;
        if server.line().is_none() {
            let (server, _) = server.end();
            return Ok(vec![told("the server", &server)]);
        }
        for command in [self.scenario.client, self.scenario.stop] {
            let (client, _) = room.spawn(command(room))?.end();
            wrong.extend(bystander("a client", &client, true));
        }
        if !wrong.is_empty() {
            server.signal(libc::SIGKILL);
        }
        let (server, _) = server.end();
        if wrong.is_empty() {
            wrong.extend(bystander("the server", &server, true));
        }
        Ok(wrong)
    }
}

/// The most lines and characters of a program's messages that are repeated.
const LINES_MAX: usize = 8;
const TEXT_MAX: usize = 500;

type Parts = (Ended, Trace, Vec<String>);

/// How long a server may need to end after it was told to.
const ENDS: std::time::Duration = std::time::Duration::from_secs(2);

/// Starts a program and waits until it is ready.
fn ready(room: &mut Room, command: std::process::Command) -> io::Result<Running> {
    let text = format!("{command:?}");
    let mut running = room.spawn(command)?;
    if running.line().is_none() {
        let (ended, _) = running.end();
        return Err(io::Error::other(told(&text, &ended)));
    }
    Ok(running)
}

/// Judges a program that is not traced: it may fail with a message, unless it must succeed.
fn bystander(name: &str, ended: &Ended, must_succeed: bool) -> Option<String> {
    let failed = match ended.end {
        End::Exited(0) => is_panic(ended),
        End::Exited(WRONG | LATE | PANICKED) | End::Killed(_) | End::Hangs => true,
        End::Exited(_) => must_succeed || ended.errors.is_empty() || is_panic(ended),
    };
    failed.then(|| told(name, ended))
}

fn is_panic(ended: &Ended) -> bool {
    ended.errors.contains("panicked at")
}

/// Returns a sentence about an end.
fn told(name: &str, ended: &Ended) -> String {
    let mut lines: Vec<&str> = ended.errors.lines().take(LINES_MAX).collect();
    lines.dedup();
    let errors: String = lines.join(" / ").chars().take(TEXT_MAX).collect();
    match ended.end {
        End::Exited(WRONG) => format!("{name} got wrong bytes ({errors})"),
        End::Exited(LATE) => format!("{name} waits in vain ({errors})"),
        End::Exited(code) => format!("{name} exits with {code} ({errors})"),
        End::Killed(signal) => format!("{name} ends by signal {signal} ({errors})"),
        End::Hangs => format!("{name} hangs ({errors})"),
    }
}

/// Judges the traced program.
fn judge(ended: &Ended, plan: Option<Plan>, trace: &Trace) -> Result<Kind, String> {
    let wrong = || Err(told("the program", ended));
    let Some(plan) = plan else {
        return if ended.end == End::Exited(0) { Ok(Kind::Continued) } else { wrong() };
    };
    match (ended.end, plan.action) {
        _ if ended.errors.contains(STACK) => Ok(Kind::Runtime),
        _ if is_panic(ended) => wrong(),
        (End::Exited(0), _) if !trace.is_hit => Ok(Kind::NotReached),
        (End::Killed(libc::SIGKILL), Action::Kill) => Ok(Kind::Killed),
        // A child of the program was killed.
        (End::Exited(0 | 1), Action::Kill) => Ok(Kind::Continued),
        (End::Exited(0), Action::Fail(_)) => Ok(Kind::Continued),
        (End::Exited(WRONG | LATE | PANICKED), _) => wrong(),
        (End::Exited(_), Action::Fail(errno)) if names(&ended.errors, errno) => Ok(Kind::Named),
        // The C library reports that there is no memory for a thread's stack as EAGAIN.
        (End::Exited(_), Action::Fail(_))
            if ["mmap", "mprotect", "clone3"].contains(&plan.call.name)
                && names(&ended.errors, libc::EAGAIN) =>
        {
            Ok(Kind::Named)
        }
        _ => wrong(),
    }
}

/// Whether a message names an errno, in words or by its name.
fn names(errors: &str, errno: i32) -> bool {
    // SAFETY: the function returns a string that no other thread of this process changes.
    let text = unsafe { CStr::from_ptr(libc::strerror(errno)) }.to_string_lossy().to_lowercase();
    errors.to_lowercase().contains(&text) || errors.contains(errno_name(errno))
}
