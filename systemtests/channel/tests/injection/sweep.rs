//! Runs a scenario once for each call that it makes and each errno of that call, with that one
//! failure injected, in a forked child each time; none of the runs may fail.

use crate::checks;
use crate::common::TIME_LIMIT;
use crate::common::process::{again, descriptors, is_child, test_name};
use crate::layer::{Call, Fault, SPUN, shared};
use crate::memory;
use crate::stage::{Stage, config};
use megapipe::{Channel, Config, DriverChoice};
use std::panic;
use std::time::Duration;

/// Time after which a hanging child ends.
const WATCHDOG: Duration = TIME_LIMIT;

/// The exit status of a child whose check failed.
const FAILED: i32 = 102;

/// How many consecutive entries into a ring fail in a second run with one of these errors.
const IN_A_ROW: u32 = 4;

/// Number of calls that a run may make, for each call of the run without a failure, and in
/// addition.
const BUDGET_FACTOR: u32 = 3;
const BUDGET: u32 = 300;

/// A short and deterministic use of a channel, in one thread.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Returns the settings of its channel.
    pub(crate) config: fn(DriverChoice) -> Config,
    pub(crate) body: fn(&mut Stage),
}

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// The run made fewer calls than the one without failures.
    NotReached,
    Failed(String),
}

/// Runs a scenario with each failure, in a process of its own.
pub(crate) fn sweep(driver: DriverChoice, scenario: &Scenario) {
    let body = || {
        let mut stage = Stage::with(driver, (scenario.config)(driver));
        (scenario.body)(&mut stage);
        stage
    };
    sweep_with(driver, scenario.name, || {
        let before = descriptors();
        checks::finish(body(), &before);
    });
}

/// Runs a body that creates and checks its channel itself with each failure.
pub(crate) fn sweep_with(driver: DriverChoice, name: &str, body: impl Fn()) {
    isolated(driver, name, || {
        let counts = counts_without_failure(&body);
        let mut report = Report::new(driver, name);
        for (call, count) in counts {
            for errno in call.errnos().iter().copied() {
                for nth in 1..=count {
                    report.judge(Fault { call, errno, nth, times: 1 }, &body);
                    if call == Call::IoUringEnter && [libc::ENOMEM, libc::EIO].contains(&errno) {
                        report.judge(Fault { call, errno, nth, times: IN_A_ROW }, &body);
                    }
                }
            }
        }
        report.end();
    });
}

/// Runs a scenario with this failure only.
pub(crate) fn inject(driver: DriverChoice, name: &str, fault: Fault, body: fn(&mut Stage)) {
    isolated(driver, name, || {
        let mut report = Report::new(driver, name);
        report.judge(fault, &|| {
            let before = descriptors();
            let mut stage = Stage::new(driver);
            body(&mut stage);
            checks::finish(stage, &before);
        });
        report.end();
    });
}

/// Runs `body` in a process of its own, and prints its summary.
fn isolated(driver: DriverChoice, name: &str, body: impl FnOnce()) {
    let full_name = test_name(driver, name);
    if is_child(&full_name) {
        // What a process sets up only once must not count in the runs.
        drop(Channel::<u64>::with_config(config(driver)).expect("a channel"));
        return body();
    }
    let output = again(&full_name).output().expect("start the test program");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for line in out.lines().filter_map(|line| Some(&line[line.find("sweep of ")?..])) {
        println!("{line}");
    }
    let passed = output.status.success() && out.contains("1 passed");
    assert!(passed, "{}\n{out}\n{err}", output.status);
}

/// Returns how often the scenario makes each call; fails if it does not pass without failures.
#[track_caller]
fn counts_without_failure(body: &impl Fn()) -> Vec<(Call, u32)> {
    let verdict = run(None, 0, body);
    assert_eq!(verdict, Verdict::Passed, "the scenario fails without an injected failure");
    let counts = Call::ALL.iter().map(|call| (*call, shared().count(*call)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Returns the number of calls that a run with a failure may make.
fn budget() -> u32 {
    BUDGET_FACTOR * shared().total() + BUDGET
}

/// Runs the body in a child.
fn run(fault: Option<Fault>, budget: u32, body: &impl Fn()) -> Verdict {
    shared().prepare(fault, budget);
    // SAFETY: the process has only this thread and the one that waits for its end, so no lock is
    // held that the child would need.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        play(body);
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child, "waitpid: {}", std::io::Error::last_os_error());
    match fault {
        _ if libc::WIFSIGNALED(status) => match libc::WTERMSIG(status) {
            libc::SIGALRM => Verdict::Failed(format!("hangs: no end within {WATCHDOG:?}")),
            signal => Verdict::Failed(format!("ends by signal {signal}")),
        },
        _ if libc::WEXITSTATUS(status) == SPUN => {
            Verdict::Failed(format!("spins: more than {budget} calls"))
        }
        _ if libc::WEXITSTATUS(status) != 0 => Verdict::Failed(shared().message()),
        Some(_) if shared().fired() == 0 => Verdict::NotReached,
        _ => Verdict::Passed,
    }
}

/// The child's part: runs the body and ends.
fn play(body: &impl Fn()) -> ! {
    panic::set_hook(Box::new(|what| {
        let text = crate::layer::disarmed(|| format!("{what}"));
        shared().tell(&text);
        // SAFETY: the call takes no pointers and does not return.
        unsafe { libc::_exit(FAILED) };
    }));
    let time = libc::timeval { tv_sec: WATCHDOG.as_secs() as libc::time_t, tv_usec: 0 };
    let timer =
        libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: time };
    // SAFETY: the arguments are valid for reading, and a null pointer does not request the old
    // setting. SIGALRM ends the process.
    unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
    }
    memory::keep_freed();
    body();
    // SAFETY: the call takes no pointers and does not return.
    unsafe { libc::_exit(0) };
}

/// Collects verdicts.
struct Report<'a> {
    driver: DriverChoice,
    name: &'a str,
    budget: u32,
    injected: u32,
    not_reached: u32,
    wrong: Vec<String>,
}

impl Report<'_> {
    fn new(driver: DriverChoice, name: &str) -> Report<'_> {
        let (injected, not_reached) = (0, 0);
        Report { driver, name, budget: budget(), injected, not_reached, wrong: Vec::new() }
    }

    fn judge(&mut self, fault: Fault, body: &impl Fn()) {
        let verdict = run(Some(fault), self.budget, body);
        self.injected += u32::from(verdict != Verdict::NotReached);
        self.not_reached += u32::from(verdict == Verdict::NotReached);
        if let Verdict::Failed(message) = verdict {
            let errno = errno_name(fault.errno);
            let row = if fault.times > 1 { " in a row" } else { "" };
            let place = format!("{}, {errno}{row}, {}", fault.call.name(), fault.nth);
            self.wrong.push(format!("{place}: {message}"));
        }
    }

    /// Prints the summary; panics if a run has failed.
    #[track_caller]
    fn end(self) {
        let Report { driver, name, injected, not_reached, wrong, .. } = self;
        println!(
            "sweep of {}: {injected} failures injected, {not_reached} not reached, {} failed",
            test_name(driver, name),
            wrong.len()
        );
        assert!(injected > 0, "no failure was injected");
        assert!(wrong.is_empty(), "{} runs:\n{}", wrong.len(), wrong.join("\n"));
    }
}

pub(crate) fn errno_name(errno: i32) -> String {
    let names = [
        (libc::EINTR, "EINTR"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::EBUSY, "EBUSY"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENFILE, "ENFILE"),
        (libc::ENOBUFS, "ENOBUFS"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::EPERM, "EPERM"),
        (libc::EACCES, "EACCES"),
        (libc::EIO, "EIO"),
        (libc::ECONNABORTED, "ECONNABORTED"),
        (libc::EADDRINUSE, "EADDRINUSE"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    ];
    let name = names.iter().find(|(number, _)| *number == errno);
    name.map_or_else(|| errno.to_string(), |(_, name)| (*name).to_owned())
}
