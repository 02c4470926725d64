//! Runs a server as a child process of the measuring process.

use std::io::pipe;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::error::{Context, Error, Result};
use crate::exchange::Service;
use crate::server;
use crate::server::shared::{Counters, Page};
use crate::sys::borrow;
use crate::sys::clock::now_ns;
use crate::sys::cpuclock;
use crate::sys::signals::{Signals, die_with};
use crate::sys::turns::Turns;

/// Longest time for a server to start, and to end after it was asked to.
const START_TIMEOUT_NS: u64 = 30_000_000_000;
const END_TIMEOUT_NS: u64 = 1_000_000_000;
/// Number of checks, 2 ms apart, without a change before a server counts as drained.
const QUIET_LOOKS: u32 = 5;
/// Longest time, since the last closed connection, for a server to see that all its peers are gone.
const DRAIN_TIMEOUT_NS: u64 = 5_000_000_000;

/// How to start a server.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// The name of a server.
    pub(crate) name: String,
    /// The CPUs of its threads, one each.
    pub(crate) cpus: Vec<usize>,
    pub(crate) service: Service,
    /// The address to listen at; the kernel chooses the port.
    pub(crate) address: IpAddr,
    /// The network namespace to serve in (an open /proc/…/ns/net), unless it is that of this
    /// process.
    pub(crate) namespace: Option<Arc<OwnedFd>>,
    /// The device of a server with user-level TCP.
    pub(crate) interface: Option<String>,
}

impl Launch {
    /// Returns a plain echo server on the loopback address.
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

    /// Returns the options of `iobench serve` for this launch.
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
    /// This process's end of a pipe: the server ends when it hangs up.
    lifeline: Option<OwnedFd>,
    address: SocketAddr,
    thread_ids: Vec<i32>,
    works_in_its_threads: bool,
    counts_system_calls: bool,
    /// The counters of the server when it was last drained.
    drained: Counters,
    /// The number of idle connections that its clients keep open.
    idle: u64,
}

impl ServerProcess {
    /// Starts the server in a process of its own and waits until every thread serves.
    pub(crate) fn start(launch: &Launch, signals: &Signals) -> Result<ServerProcess> {
        let name = launch.name.as_str();
        let page = Page::create(launch.cpus.len())?;
        // Close-on-exec at both ends, until the child has its own.
        let (theirs, ours) =
            pipe().context("create a pipe", "raise the limit of open files (ulimit -n)")?;
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
            "mount /proc, and raise `ulimit -u`",
        )?;
        let address = SocketAddr::new(launch.address, 0);
        let (lifeline, thread_ids) = (Some(ours.into()), Vec::new());
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
                    "run again when the machine is less busy",
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

    /// Returns the pinned threads.
    pub(crate) fn thread_ids(&self) -> &[i32] {
        &self.thread_ids
    }

    /// Returns whether the CPU time of the pinned threads is the server's; otherwise `cpu_time_ns`
    /// is.
    pub(crate) fn works_in_its_threads(&self) -> bool {
        self.works_in_its_threads
    }

    /// CPU time of the server since its start: of all its threads and, if it has any, child
    /// processes, running or ended. Exact to microseconds for each child.
    pub(crate) fn cpu_time_ns(&self) -> u64 {
        let threads_ns = cpuclock::process_ns(self.child.id()).unwrap_or(0);
        threads_ns + self.page.children_cpu_ns()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.page.totals()
    }

    /// Returns the server's system calls, if it counts all of them.
    pub(crate) fn system_calls(&self) -> Option<u64> {
        self.counts_system_calls.then(|| self.page.totals().system_calls)
    }

    /// Returns the exit status, if the process ended although it was not asked to.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Returns the counters when the server was last drained: complete if the drain succeeded, and
    /// without later events.
    pub(crate) fn drained(&self) -> Counters {
        self.drained
    }

    /// Sets the number of idle connections that the clients keep open from now on.
    pub(crate) fn keep_idle(&mut self, connections: u64) {
        self.idle = connections;
    }

    /// Returns the number of idle connections that were closed when the server was last drained.
    pub(crate) fn missing_idle(&self) -> u64 {
        self.idle.saturating_sub(open(&self.drained))
    }

    /// Waits until every accepted connection but the idle ones is closed and the threads have
    /// stopped making system calls; false if that does not happen in time. All clients must have
    /// closed the others before.
    pub(crate) fn drain(&mut self, signals: &Signals) -> Result<bool> {
        let mut deadline_ns = now_ns() + DRAIN_TIMEOUT_NS;
        let mut before: Option<Counters> = None;
        let mut quiet_looks = 0;
        let mut turns = None;
        loop {
            let counters = self.counters();
            self.drained = counters;
            // Connections in the accept queue show as accepted only later. On a slow machine a
            // server that forks for each needs several milliseconds for the next one, and a thread
            // that has no CPU accepts none.
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
            // Closing thousands of connections takes longer, but makes progress.
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

/// Waits for a child that was asked to end, and kills it after the time-out.
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

/// Runs in the child between fork and exec: makes the kernel end it with this process, keeps some
/// descriptors, and enters the network namespace.
pub(super) fn prepare_child(
    parent: u32,
    kept: &[RawFd],
    namespace: Option<RawFd>,
) -> std::io::Result<()> {
    die_with(parent)?;
    for &fd in kept {
        fcntl_setfd(borrow(fd), FdFlags::empty())?;
    }
    if let Some(namespace) = namespace {
        ::sys::namespace::enter(borrow(namespace))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::sys::turns;

    /// Returns a process that listens but never accepts, because it is stopped.
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
        kill_process(Pid::from_child(&process.child), Signal::CONT).unwrap();
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
        let id = Pid::from_child(&process.child);
        let counters = Counters { accepted: 1, closed: 1, ..Counters::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Long enough to appear idle; a longer time makes no difference.
                std::thread::sleep(Duration::from_millis(100));
                theirs.block(0).publish(&counters);
                kill_process(id, Signal::CONT).unwrap();
            });
            // It may time out before, but must not report the server as drained.
            while !process.drain(&signals).unwrap() {}
        });
        assert_eq!(process.drained(), counters);
        // Later actions of the server do not affect the result.
        theirs.block(0).publish(&Counters { accepted: 2, ..counters });
        assert_eq!((process.counters().accepted, process.drained()), (2, counters));
        // The child ends at the end of its input.
        process.child.stdin = None;
    }
}
