//! A server as a child process, from the side of the process that measures it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::exchange::Service;
use crate::server;
use crate::server::shared::{Counters, Page};
use crate::sys::check;
use crate::sys::clock::now_ns;
use crate::sys::cpuclock;
use crate::sys::signals::Signals;
use crate::sys::turns::Turns;

/// How long a server may take to start, and to end once it is told.
const START_TIMEOUT_NS: u64 = 30_000_000_000;
const END_TIMEOUT_NS: u64 = 1_000_000_000;
/// As many looks, 2 ms apart, must find nothing new before a server counts as drained.
const QUIET_LOOKS: u32 = 5;
/// How long a server may take to notice that all its peers are gone, since it last noticed one.
const DRAIN_TIMEOUT_NS: u64 = 5_000_000_000;

/// What to start, and where.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// The name of a server.
    pub(crate) name: String,
    /// One thread runs on each.
    pub(crate) cpus: Vec<usize>,
    pub(crate) service: Service,
    /// The address to listen at; the port is the kernel's choice.
    pub(crate) address: IpAddr,
    /// The network namespace to serve in (an open /proc/…/ns/net), unless it is our own.
    pub(crate) namespace: Option<Arc<OwnedFd>>,
    /// The device of a server that brings its own TCP.
    pub(crate) interface: Option<String>,
}

impl Launch {
    /// A plain echo server on the loopback address.
    pub(crate) fn echo(name: &str, cpus: &[usize]) -> Launch {
        Launch {
            name: name.to_owned(),
            cpus: cpus.to_vec(),
            service: Service::default(),
            address: Ipv4Addr::LOCALHOST.into(),
            namespace: None,
            interface: None,
        }
    }

    /// The options of `iobench serve` that say all this.
    fn arguments(&self) -> Vec<String> {
        let cpus: Vec<_> = self.cpus.iter().map(ToString::to_string).collect();
        let bind = SocketAddr::new(self.address, 0).to_string();
        let mut words = vec!["serve".to_owned(), "--server".to_owned(), self.name.clone()];
        words.extend(["--server-cpus".to_owned(), cpus.join(","), "--bind".to_owned(), bind]);
        words.extend(["--work".to_owned(), self.service.work.to_string()]);
        if let Some(exchange) = self.service.exchange {
            words.extend(["--request-bytes".to_owned(), exchange.request_bytes.to_string()]);
            words.extend(["--response-bytes".to_owned(), exchange.response_bytes.to_string()]);
        }
        if let Some(interface) = &self.interface {
            words.extend(["--interface".to_owned(), interface.clone()]);
        }
        words
    }
}

/// A running server. Dropping it ends the process and reaps it.
pub(crate) struct ServerProcess {
    child: Child,
    page: Page,
    /// The end that we hold: the server ends when it hangs up.
    lifeline: Option<OwnedFd>,
    address: SocketAddr,
    thread_ids: Vec<i32>,
    works_in_its_threads: bool,
    counts_system_calls: bool,
    /// What the server had counted when it was drained last.
    drained: Counters,
    /// Connections that its clients keep open without using them.
    idle: u64,
}

impl ServerProcess {
    /// Starts the server in a process of its own and waits until every thread serves.
    pub(crate) fn start(launch: &Launch, signals: &Signals) -> Result<ServerProcess> {
        let name = launch.name.as_str();
        let page = Page::create(launch.cpus.len())?;
        let (theirs, ours) = pipe()?;
        let (page_fd, lifeline_fd) = (page.descriptor().as_raw_fd(), theirs.as_raw_fd());
        let mut command = Command::new("/proc/self/exe");
        command
            .args(launch.arguments())
            .args(["--page-fd", &page_fd.to_string(), "--lifeline-fd", &lifeline_fd.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let parent = std::process::id();
        let namespace = launch.namespace.as_ref().map(|namespace| namespace.as_raw_fd());
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe calls.
        unsafe {
            command.pre_exec(move || prepare_child(parent, &[page_fd, lifeline_fd], namespace));
        }
        let child = command.spawn().context(
            format!("start the server process `{name}`"),
            "mount /proc; see `ulimit -u`",
        )?;
        let address = SocketAddr::new(launch.address, 0);
        let (lifeline, thread_ids) = (Some(ours), Vec::new());
        let server = server::find(name)?;
        let mut process = ServerProcess {
            child,
            page,
            lifeline,
            address,
            thread_ids,
            works_in_its_threads: server.works_in_its_threads(),
            counts_system_calls: server.counts_system_calls(),
            drained: Counters::default(),
            idle: 0,
        };
        process.wait_until_ready(name, signals)?;
        Ok(process)
    }

    fn wait_until_ready(&mut self, name: &str, signals: &Signals) -> Result<()> {
        let deadline_ns = now_ns() + START_TIMEOUT_NS;
        loop {
            if let (Some(port), Some(ids)) = (self.page.port(), self.page.thread_ids()) {
                self.address.set_port(port);
                self.thread_ids = ids;
                return Ok(());
            }
            if let Some(status) = self.ended() {
                return Err(Error::setup(
                    format!("the server `{name}` ended at its start ({status})"),
                    format!("see its message above, or try `iobench serve --server {name}`"),
                ));
            }
            if now_ns() > deadline_ns {
                return Err(Error::setup(
                    format!("the server `{name}` was not ready in 30 s"),
                    "try again when the machine is less busy",
                ));
            }
            signals.sleep_ms(1)?;
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The pinned threads.
    pub(crate) fn thread_ids(&self) -> &[i32] {
        &self.thread_ids
    }

    /// Whether the times of the pinned threads are those of the server; else `cpu_time_ns` is.
    pub(crate) fn works_in_its_threads(&self) -> bool {
        self.works_in_its_threads
    }

    /// CPU time that the server has used since its start: all its threads and, where it has any,
    /// child processes, whether they run or have ended. Exact to microseconds for each child.
    pub(crate) fn cpu_time_ns(&self) -> u64 {
        let threads_ns = cpuclock::process_ns(self.child.id()).unwrap_or(0);
        threads_ns + self.page.children_cpu_ns()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.page.totals()
    }

    /// Calls into the kernel, if the server counts all of them.
    pub(crate) fn system_calls(&self) -> Option<u64> {
        self.counts_system_calls.then(|| self.page.totals().system_calls)
    }

    /// The exit status, if the process is gone although nobody told it to.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// What the server had counted when it was drained last: everything if it was, and nothing
    /// that began later, whenever one asks.
    pub(crate) fn drained(&self) -> Counters {
        self.drained
    }

    /// From now on the clients keep so many connections open without using them.
    pub(crate) fn keep_idle(&mut self, connections: u64) {
        self.idle = connections;
    }

    /// How many of the idle connections were closed when it was drained last.
    pub(crate) fn missing_idle(&self) -> u64 {
        self.idle.saturating_sub(open(&self.drained))
    }

    /// Waits until every accepted connection but the idle ones is closed and the threads have
    /// stopped calling the kernel; false if that does not happen in time. All clients must have
    /// closed the others before.
    pub(crate) fn drain(&mut self, signals: &Signals) -> Result<bool> {
        let mut deadline_ns = now_ns() + DRAIN_TIMEOUT_NS;
        let mut before: Option<Counters> = None;
        let mut quiet_looks = 0;
        let mut turns = None;
        loop {
            let counters = self.counters();
            self.drained = counters;
            // Connections still in the listen queue show as accepted only later; a server that
            // forks for each takes several milliseconds to get to the next one on a slow machine,
            // and a thread that has no CPU gets to none.
            if open(&counters) <= self.idle && before == Some(counters) {
                quiet_looks += 1;
                let process = self.child.id();
                let turns = turns.get_or_insert_with(|| Turns::of(process));
                if quiet_looks >= QUIET_LOOKS && Turns::of(process).all_had_since(turns) {
                    return Ok(true);
                }
            } else {
                quiet_looks = 0;
                turns = None;
            }
            // Closing thousands takes longer, but it goes on.
            if before.is_some_and(|before| before.closed != counters.closed) {
                deadline_ns = now_ns() + DRAIN_TIMEOUT_NS;
            }
            if now_ns() > deadline_ns || self.ended().is_some() {
                return Ok(false);
            }
            before = Some(counters);
            signals.sleep_ms(2)?;
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.lifeline = None;
        end_within(&mut self.child, END_TIMEOUT_NS);
    }
}

/// Accepted connections that are not closed.
fn open(counters: &Counters) -> u64 {
    counters.accepted.saturating_sub(counters.closed)
}

/// Waits for a child that has been told to end, and kills it if it takes longer than this.
pub(crate) fn end_within(child: &mut Child, timeout_ns: u64) {
    let deadline_ns = now_ns() + timeout_ns;
    while matches!(child.try_wait(), Ok(None)) {
        if now_ns() > deadline_ns {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// A close-on-exec pipe: (reading end, writing end).
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })
        .context("create a pipe", "raise the limit of open files (ulimit -n)")?;
    // SAFETY: both descriptors were just created and nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Runs in the child between fork and exec: it dies with us, keeps some descriptors, and enters the
/// network namespace.
pub(super) fn prepare_child(
    parent: u32,
    kept: &[RawFd],
    namespace: Option<RawFd>,
) -> std::io::Result<()> {
    // SAFETY: plain numbers; both calls are async-signal-safe.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // We may have died before the signal was asked for.
        if libc::getppid() as u32 != parent {
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
        }
    }
    for &fd in kept {
        // SAFETY: clears close-on-exec of a descriptor that the parent keeps open.
        check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
    }
    if let Some(namespace) = namespace {
        // SAFETY: a descriptor that the parent keeps open, and a plain number.
        check(unsafe { libc::setns(namespace, libc::CLONE_NEWNET) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::turns;

    /// Not a server, but a process that never looks into its listen queue, because it is stopped.
    fn stopped(page: Page) -> ServerProcess {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        turns::stop(&child);
        ServerProcess {
            child,
            page,
            lifeline: None,
            address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            thread_ids: Vec::new(),
            works_in_its_threads: true,
            counts_system_calls: true,
            drained: Counters::default(),
            idle: 0,
        }
    }

    #[test]
    fn idle_connections_stay_open_in_a_drained_server() {
        let signals = Signals::block();
        let page = Page::create(1).unwrap();
        let theirs = Page::open(page.descriptor().try_clone().unwrap(), 1).unwrap();
        let mut process = stopped(page);
        // SAFETY: plain numbers; the process is our own child.
        unsafe { libc::kill(process.child.id() as i32, libc::SIGCONT) };
        process.keep_idle(3);
        for (closed, missing) in [(7, 0), (8, 1), (10, 3)] {
            theirs.block(0).publish(&Counters { accepted: 10, closed, ..Counters::default() });
            // A thread that gets no CPU in time is no reason to fail.
            while !process.drain(&signals).unwrap() {}
            assert_eq!((process.drained().closed, process.missing_idle()), (closed, missing));
        }
        theirs.block(0).publish(&Counters { accepted: 10, closed: 6, ..Counters::default() });
        assert!(!process.drain(&signals).unwrap(), "one more than the idle ones is open");
        assert_eq!(process.missing_idle(), 0);
        process.child.stdin = None;
    }

    #[test]
    fn a_server_is_drained_only_when_its_threads_had_a_cpu_to_look() {
        let signals = Signals::block();
        let page = Page::create(1).unwrap();
        let theirs = Page::open(page.descriptor().try_clone().unwrap(), 1).unwrap();
        let mut process = stopped(page);
        let id = process.child.id();
        let counters = Counters { accepted: 1, closed: 1, ..Counters::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Long enough to look quiet; longer makes no difference.
                std::thread::sleep(Duration::from_millis(100));
                theirs.block(0).publish(&counters);
                // SAFETY: plain numbers; the process is our own child.
                unsafe { libc::kill(id as i32, libc::SIGCONT) };
            });
            // It may give up before, but not take the server for drained.
            while !process.drain(&signals).unwrap() {}
        });
        assert_eq!(process.drained(), counters);
        // What it does later is no part of that.
        theirs.block(0).publish(&Counters { accepted: 2, ..counters });
        assert_eq!((process.counters().accepted, process.drained()), (2, counters));
        // The end of its input is its end.
        process.child.stdin = None;
    }
}
