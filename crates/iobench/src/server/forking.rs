//! A process per connection, as inetd and the first web servers work.
//!
//! The accepting thread forks; the child serves with blocking calls and ends with its connection.
//! The kernel kills it when the thread that forked it ends. A pidfd reports the child's end to the
//! thread that has to reap it, so no signal has to be shared between threads.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use rustix::net::SocketFlags;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};

use crate::error::{Context, Result};
use crate::server::children::MOST_CHILDREN;
use crate::server::limits;
use crate::server::listener::Listening;
use crate::server::shared::Counters;
use crate::server::stream::{Stream, accept};
use crate::server::{CONNECTION_BUFFER_BYTES, Server, ThreadContext};
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::signals::die_with;
use crate::sys::{check, cpu_ns};

const EVENTS_PER_WAIT: usize = 64;
const LISTENER_TOKEN: u64 = u64::MAX;
const STOP_TOKEN: u64 = u64::MAX - 1;
/// Exit status of a child that fails; its parent then counts the connection.
const FAILED: libc::c_int = 1;

/// The server. Accepting threads are pinned; children stay on the same CPU.
pub(crate) struct ForkingServer;

impl Server for ForkingServer {
    fn name(&self) -> &'static str {
        "process"
    }

    fn describe(&self) -> &'static str {
        "a process per connection with blocking calls, on the CPU of the thread that accepted it"
    }

    fn limits(&self) -> &'static str {
        "65,536 for each CPU; ulimit -n and -u, pids.max, threads-max, pid_max; Linux 5.9"
    }

    fn listening(&self) -> Listening {
        Listening::Shared
    }

    fn check_connections(&self, connections: usize) -> Result<()> {
        // The parent keeps a descriptor of every child.
        limits::check_files(connections)?;
        limits::check_tasks(connections, "processes")
    }

    fn works_in_its_threads(&self) -> bool {
        false
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        // Children must not keep each other's connections open, so this call must work.
        close_all_from(u32::MAX)
            .context("close inherited descriptors", "`process` needs close_range (Linux 5.9)")?;
        let epoll = Epoll::new()?;
        for (fd, token) in
            [(context.shared_listener(), LISTENER_TOKEN), (context.stop(), STOP_TOKEN)]
        {
            epoll
                .add(fd, token, libc::EPOLLIN)
                .context("watch a descriptor", "raise fs.epoll.max_user_watches")?;
        }
        let buffer = vec![0; CONNECTION_BUFFER_BYTES];
        let (children, free) = (Vec::new(), Vec::new());
        Parent { context, epoll, children, free, buffer }.run()
    }
}

struct Parent<'a, 'b> {
    context: &'a mut ThreadContext<'b>,
    epoll: Epoll,
    /// The pidfd of each child, by its index on the shared page.
    children: Vec<Option<OwnedFd>>,
    free: Vec<usize>,
    /// Allocated before the fork, so that a child usually need not allocate.
    buffer: Vec<u8>,
}

impl Parent<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let mut events = event_buffer(EVENTS_PER_WAIT);
        self.context.ready();
        loop {
            self.context.counters.system_calls += 1;
            self.context.publish();
            let count = self.epoll.wait(&mut events, -1);
            for event in &events[..count] {
                match event.u64 {
                    STOP_TOKEN => return Ok(()),
                    LISTENER_TOKEN => self.accept_all()?,
                    token => self.reap(token as usize, libc::WNOHANG),
                }
            }
        }
    }

    fn accept_all(&mut self) -> Result<()> {
        let listener = self.context.shared_listener();
        while let Some(stream) = accept(listener, SocketFlags::empty(), &mut self.context.counters)?
        {
            if self.fork(stream).is_err() {
                self.context.counters.errors += 1;
                self.context.counters.closed += 1;
            }
            self.context.publish();
        }
        Ok(())
    }

    /// Starts a child for a connection; the connection is closed if that fails.
    fn fork(&mut self, stream: Stream) -> io::Result<()> {
        let Some(index) = self.free.pop().or_else(|| self.new_place()) else {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        };
        let parent = std::process::id();
        self.context.counters.system_calls += 2;
        // SAFETY: the child runs `serve` only, which takes no lock that another thread may have
        // held; the C library's fork leaves its allocator usable.
        let process = unsafe { libc::fork() };
        if process == 0 {
            self.serve(stream, parent);
        }
        drop(stream);
        let process = check(process).map(|process| Pid::from_raw(process).expect("not the child"));
        let watched = process.and_then(|process| self.watch(index, process));
        if watched.is_err() {
            self.free.push(index);
        }
        watched
    }

    fn new_place(&mut self) -> Option<usize> {
        let index = self.children.len();
        if index == MOST_CHILDREN {
            return None;
        }
        self.children.push(None);
        self.context.block.children_used.store(index as u64 + 1, Ordering::Release);
        Some(index)
    }

    /// Registers a child's pidfd; if that fails, ends the child at once.
    fn watch(&mut self, index: usize, process: Pid) -> io::Result<()> {
        self.context.counters.system_calls += 2;
        let opened = pidfd_open(process, PidfdFlags::empty());
        let watched = opened.map_err(io::Error::from).and_then(|descriptor| {
            self.epoll.add(descriptor.as_raw_fd(), index as u64, libc::EPOLLIN)?;
            Ok(descriptor)
        });
        match watched {
            Ok(descriptor) => {
                self.children[index] = Some(descriptor);
                self.context.children[index].enter(process.as_raw_pid() as u32);
                Ok(())
            }
            Err(error) => {
                // The child is not reaped, so the number still belongs to it.
                let _ = kill_process(process, Signal::KILL);
                let _ = waitpid(Some(process), WaitOptions::empty());
                Err(error)
            }
        }
    }

    /// Frees the child's entry if the child has ended.
    fn reap(&mut self, index: usize, options: libc::c_int) {
        let Some(descriptor) = self.children.get(index).and_then(Option::as_ref) else { return };
        self.context.counters.system_calls += 1;
        let Some(end) = wait_for(descriptor, options) else { return };
        self.context.children[index].leave(end.cpu_ns);
        self.context.counters.system_calls += 1;
        self.children[index] = None;
        self.free.push(index);
        if !end.in_order {
            self.context.counters.closed += 1;
            self.context.counters.errors += 1;
        }
    }

    /// Runs in the child: serves the connection and exits.
    fn serve(&mut self, stream: Stream, parent: u32) -> ! {
        let status = catch_unwind(AssertUnwindSafe(|| self.serve_to_the_end(stream, parent)));
        // SAFETY: ends the child without running destructors that belong to the parent.
        unsafe { libc::_exit(status.unwrap_or(FAILED)) }
    }

    fn serve_to_the_end(&mut self, mut stream: Stream, parent: u32) -> libc::c_int {
        if die_with(parent).is_err() || close_all_but(stream.raw()).is_err() {
            return FAILED;
        }
        let (block, responder) = (self.context.block, self.context.responder);
        let (mut counters, mut shown) = (Counters::default(), Counters::default());
        stream.serve(&mut self.buffer, responder, &mut counters, |counters| {
            block.add(&counters.since(&shown));
            shown = *counters;
        });
        // Counted first, because the parent's peers wait for the end of the connection.
        counters.closed += 1;
        counters.system_calls += 1;
        block.add(&counters.since(&shown));
        0
    }
}

impl Drop for Parent<'_, '_> {
    fn drop(&mut self) {
        for descriptor in self.children.iter().flatten() {
            let _ = pidfd_send_signal(descriptor, Signal::KILL);
        }
        for (place, descriptor) in self.context.children.iter().zip(&self.children) {
            if let Some(end) = descriptor.as_ref().and_then(|child| wait_for(child, 0)) {
                place.leave(end.cpu_ns);
            }
        }
    }
}

/// The end of a child.
struct End {
    cpu_ns: u64,
    /// The child has counted its connection itself.
    in_order: bool,
}

/// Reaps a child; `None` if it still runs and `options` has `WNOHANG`.
fn wait_for(descriptor: &OwnedFd, options: libc::c_int) -> Option<End> {
    // SAFETY: both are plain data for which all zeros is valid.
    let (mut info, mut usage): (libc::siginfo_t, libc::rusage) = unsafe { std::mem::zeroed() };
    // SAFETY: both places are valid for writes; the descriptor is that of a process.
    let result = unsafe {
        libc::syscall(
            libc::SYS_waitid,
            libc::P_PIDFD,
            descriptor.as_raw_fd(),
            &raw mut info,
            options | libc::WEXITED,
            &raw mut usage,
        )
    };
    // SAFETY: the kernel has filled in a child's end, or left zeros.
    let (process, status) = unsafe { (info.si_pid(), info.si_status()) };
    if result < 0 || process == 0 {
        return None;
    }
    Some(End { cpu_ns: cpu_ns(&usage), in_order: info.si_code == libc::CLD_EXITED && status == 0 })
}

/// In a child: closes the listener, the channels to the parent, and connections of other threads
/// that were being handed over, whose peers would otherwise wait for their end.
fn close_all_but(kept: RawFd) -> io::Result<()> {
    let kept = kept as u32;
    if kept > 3 {
        close_range(3, kept - 1)?;
    }
    close_all_from(kept + 1)
}

fn close_all_from(first: u32) -> io::Result<()> {
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: in a child the owners of the other descriptors never run again; in the parent's trial
    // the range contains no descriptor.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0_u32) };
    check(result as libc::c_int).map(|_| ())
}
