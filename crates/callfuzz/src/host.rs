//! Starts, asks and ends the agents' processes, for the controller.

use crate::agent::LINK;
use crate::protocol::{Answer, Call, Frame, Reply};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An answer that takes longer counts as a hang.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(8);

/// The reason why an agent did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The process has ended.
    Ended,
    /// It did not answer in time.
    Hangs,
}

/// A request to an agent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) call: Call,
    pub(crate) id: i64,
    /// Whether the call gets a thread because it may block, and how long the controller waits for
    /// its answer.
    pub(crate) threaded: bool,
    pub(crate) wait: Duration,
    pub(crate) arguments: Vec<i64>,
    pub(crate) bytes: Vec<u8>,
}

impl Request {
    pub(crate) fn new(call: Call, arguments: &[i64]) -> Request {
        let arguments = arguments.to_vec();
        let (id, threaded, wait, bytes) = (0, false, Duration::ZERO, Vec::new());
        Request { call, id, threaded, wait, arguments, bytes }
    }
}

/// A process that makes the calls.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) pid: i32,
    process: OwnedFd,
    to: File,
    from: File,
    /// Only for a process that the controller has started.
    child: Option<Child>,
}

impl Agent {
    /// Starts an agent with one end of the UNIX socket.
    pub(crate) fn start(mut command: Command, link: &OwnedFd) -> io::Result<Agent> {
        let link = link.as_raw_fd();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let place = move || {
            // SAFETY: the calls take plain numbers, and the child needs none of the descriptors
            // above.
            unsafe {
                if libc::dup2(link, LINK) < 0 {
                    return Err(io::Error::last_os_error());
                }
                let flag = libc::CLOSE_RANGE_CLOEXEC as i32;
                libc::close_range(3, LINK as u32 - 1, flag);
                libc::close_range(LINK as u32 + 1, u32::MAX, flag);
            }
            Ok(())
        };
        // SAFETY: the closure makes system calls only.
        let mut child = unsafe { command.pre_exec(place) }.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        let pid = child.id() as i32;
        let (to, from) = (File::from(OwnedFd::from(to)), File::from(OwnedFd::from(from)));
        let mut agent = Agent { pid, process: watch(pid)?, to, from, child: Some(child) };
        agent.receive(ANSWER_TIME_MAX).map_err(|lost| {
            io::Error::other(format!("the agent did not start ({command:?}): {lost:?}"))
        })?;
        Ok(agent)
    }

    /// Creates the pipes of a child that will be forked, and opens them.
    pub(crate) fn pipes(at: &Path) -> io::Result<[File; 2]> {
        let open = |suffix: &str| {
            let path = at.with_extension(suffix);
            let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
            // SAFETY: the name ends with zero.
            if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::AlreadyExists {
                    return Err(error);
                }
            }
            OpenOptions::new().read(true).write(true).open(path)
        };
        Ok([open("in")?, open("out")?])
    }

    /// Returns the agent of a child that was forked.
    pub(crate) fn forked(pid: i32, [to, from]: [File; 2]) -> io::Result<Agent> {
        Ok(Agent { pid, process: watch(pid)?, to, from, child: None })
    }

    /// Asks and waits for the reply.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply, Lost> {
        self.send(request)?;
        self.receive(ANSWER_TIME_MAX + request.wait)
    }

    fn send(&mut self, request: &Request) -> Result<(), Lost> {
        let wait = request.wait.as_micros() as i64;
        let mut numbers = vec![request.call as i64, request.id, i64::from(request.threaded), wait];
        numbers.extend(&request.arguments);
        let frame = Frame { numbers, bytes: request.bytes.clone() };
        self.to.write_all(&frame.encode()).map_err(|_| Lost::Ended)
    }

    pub(crate) fn receive(&mut self, limit: Duration) -> Result<Reply, Lost> {
        let until = Instant::now() + limit;
        let (from, process) = (&mut self.from, &self.process);
        let mut lost = Lost::Ended;
        let frame = Frame::decode(|mut into| {
            while !into.is_empty() {
                if is_readable(from, process, until).inspect_err(|found| lost = *found).is_err() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let count = from.read(into)?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                into = &mut into[count..];
            }
            Ok(())
        });
        frame.map(Reply::from_frame).map_err(|_| lost)
    }

    /// Ends the process, by a request or by a signal, and waits for it.
    pub(crate) fn end(&mut self, by_signal: bool) -> Result<(), Lost> {
        if by_signal {
            // SAFETY: only the controller reaps the process, and it has not done so yet.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        } else {
            self.send(&Request::new(Call::Exit, &[]))?;
        }
        let ended = ends(&self.process, ANSWER_TIME_MAX);
        if let Some(child) = &mut self.child {
            if !ended {
                // The process cannot have been reaped yet, so the signal reaches it.
                let _ = child.kill();
            }
            let _ = child.wait();
        }
        if ended { Ok(()) } else { Err(Lost::Hangs) }
    }

    /// Returns whether the thread of a call sleeps, and the processes that it has started.
    pub(crate) fn sleeps(&self, thread: i64) -> bool {
        let place = format!("/proc/{}/task/{thread}", self.pid);
        let is_asleep = |place: &str| {
            let status = std::fs::read_to_string(format!("{place}/stat")).unwrap_or_default();
            // The state follows the name, which is in parentheses.
            status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
        };
        let children = std::fs::read_to_string(format!("{place}/children")).unwrap_or_default();
        is_asleep(&place)
            && children.split_whitespace().all(|child| is_asleep(&format!("/proc/{child}")))
    }

    /// Returns the answer to a call that does not block, which the fuzzer itself needs.
    pub(crate) fn must(&mut self, call: Call, arguments: &[i64]) -> Result<Answer, Lost> {
        match self.ask(&Request::new(call, arguments))? {
            Reply::Done(answer) => Ok(answer),
            Reply::Pending(_) => Err(Lost::Hangs),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        } else if !ends(&self.process, Duration::ZERO) {
            // SAFETY: the process has not been reaped, so the number is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }
}

fn watch(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn ends(process: &OwnedFd, limit: Duration) -> bool {
    let mut entry = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the count is that of the one entry.
    unsafe { libc::poll(&mut entry, 1, limit.as_millis() as i32) == 1 }
}

/// Waits until the pipe is readable.
fn is_readable(from: &File, process: &OwnedFd, until: Instant) -> Result<(), Lost> {
    let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(from.as_raw_fd()), entry(process.as_raw_fd())];
    let left = until.saturating_duration_since(Instant::now());
    // SAFETY: the count is that of the two entries.
    let count = unsafe { libc::poll(entries.as_mut_ptr(), 2, left.as_millis() as i32 + 1) };
    match count {
        0 => Err(Lost::Hangs),
        _ if entries[0].revents & libc::POLLIN != 0 => Ok(()),
        _ => Err(Lost::Ended),
    }
}
