//! Implements the process that makes the calls. It executes one request at a time, each by the C
//! library's function of that name, so that a preload library can interpose it.
//!
//! Requests come from descriptor 0 and replies go to descriptor 1, which are pipes; descriptor 90
//! is a UNIX socket to the other process. The agent keeps no record of descriptors: requests name
//! them by their numbers. A call that may block runs in a thread of its own, and its answer is
//! collected later.

mod poll;
mod process;
mod socket;
mod transfer;

use crate::protocol::{Answer, Call, Frame, Reply};
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The descriptor of the UNIX socket to the other process, above those that are compared.
pub(crate) const LINK: i32 = 90;
/// Numbers in front of a call's arguments: call, id, whether it gets a thread, microseconds to
/// wait.
pub(crate) const HEAD: usize = 4;

thread_local! {
    static SIGNALS: Cell<i64> = const { Cell::new(0) };
}

extern "C" fn on_sigpipe(_: libc::c_int) {
    SIGNALS.set(SIGNALS.get() + 1);
}

extern "C" fn on_interrupt(_: libc::c_int) {}

/// A call that has not returned.
struct Pending {
    thread: libc::pthread_t,
    number: i64,
    answer: Receiver<Answer>,
}

/// Serves requests until the controller closes its pipe.
pub fn serve() -> ExitCode {
    handle(libc::SIGPIPE, on_sigpipe, libc::SA_RESTART);
    handle(libc::SIGUSR1, on_interrupt, 0);
    let mut pending: HashMap<i64, Pending> = HashMap::new();
    if send(Reply::Done(Answer::default())).is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        let Ok(request) = Frame::decode(|into| transfer::fill(0, into)) else {
            return ExitCode::SUCCESS;
        };
        let reply = match Call::of(request.number(0)) {
            Some(Call::Fork) => {
                let answer = process::fork(&request.bytes);
                if answer.result == 0 {
                    pending.clear();
                }
                Reply::Done(answer)
            }
            Some(Call::Exit) => return ExitCode::SUCCESS,
            Some(Call::Interrupt) => interrupt(&pending, request.number(HEAD)),
            Some(Call::Collect) => {
                let limit = Duration::from_micros(request.number(HEAD + 1) as u64);
                collect(&mut pending, request.number(HEAD), limit)
            }
            Some(call) if request.number(2) == 1 => {
                let limit = Duration::from_micros(request.number(3) as u64);
                let id = request.number(1);
                pending.insert(id, start(call, request));
                collect(&mut pending, id, limit)
            }
            Some(call) => Reply::Done(perform(call, &request)),
            None => return ExitCode::FAILURE,
        };
        if send(reply).is_err() {
            return ExitCode::FAILURE;
        }
    }
}

fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int), flags: libc::c_int) {
    // SAFETY: plain data, for which zeros are valid; the handlers change a thread's own counter.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

fn send(reply: Reply) -> io::Result<()> {
    transfer::write_all(1, &reply.into_frame().encode())
}

/// Runs a call in a thread of its own.
fn start(call: Call, request: Frame) -> Pending {
    let (to, answer) = channel();
    let (tell, told) = channel();
    thread::spawn(move || {
        // SAFETY: the calls take no arguments.
        let own = unsafe { (libc::pthread_self(), i64::from(libc::gettid())) };
        // Fails only if the agent has ended.
        let _ = tell.send(own);
        let _ = to.send(perform(call, &request));
    });
    let (thread, number) = told.recv().unwrap_or((0, 0));
    Pending { thread, number, answer }
}

fn collect(pending: &mut HashMap<i64, Pending>, id: i64, limit: Duration) -> Reply {
    let Some(call) = pending.get(&id) else { return Reply::Done(failed(libc::ESRCH)) };
    match call.answer.recv_timeout(limit) {
        Ok(answer) => {
            pending.remove(&id);
            Reply::Done(answer)
        }
        Err(RecvTimeoutError::Timeout) => Reply::Pending(call.number),
        Err(RecvTimeoutError::Disconnected) => Reply::Done(failed(libc::ECHILD)),
    }
}

/// Sends a signal to the thread of a pending call.
fn interrupt(pending: &HashMap<i64, Pending>, id: i64) -> Reply {
    let Some(call) = pending.get(&id) else { return Reply::Done(failed(libc::ESRCH)) };
    // SAFETY: the thread may have ended, but its call was not collected: the thread is detached
    // only when the handle is dropped, and the C library checks the number then.
    let result = unsafe { libc::pthread_kill(call.thread, libc::SIGUSR1) };
    Reply::Done(Answer { result: i64::from(result), ..Answer::default() })
}

fn failed(errno: i32) -> Answer {
    Answer { result: -1, errno: i64::from(errno), ..Answer::default() }
}

/// Returns the answer with this result and, if it is -1, the C library's errno.
fn answer(result: impl Into<i64>) -> Answer {
    let result = result.into();
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Answer { result, errno: if result == -1 { i64::from(errno) } else { 0 }, ..Answer::default() }
}

fn perform(call: Call, request: &Frame) -> Answer {
    let arguments: Vec<i64> = request.numbers.get(HEAD..).unwrap_or_default().to_vec();
    let at = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let fd = at(0) as i32;
    let before = SIGNALS.get();
    let begin = Instant::now();
    let mut answer = match call {
        Call::Socket => socket::socket(at(0) as i32, at(1) as i32),
        Call::Bind => socket::bind(fd, at(1) as i32, at(2) as u8),
        Call::Listen => socket::listen(fd, at(1) as i32),
        Call::Connect => socket::connect(fd, at(1) as i32, at(2) as u16, at(3) as u8),
        Call::Accept => socket::accept(fd, at(1), at(2) as i32),
        Call::Name => socket::name(fd, at(1) == 1),
        Call::Shutdown => socket::shutdown(fd, at(1) as i32),
        Call::SetOption => socket::set_option(fd, at(1), at(2) as i32),
        Call::GetOption => socket::get_option(fd, at(1)),
        Call::Read => transfer::read(fd, at(1) as usize, at(2), at(3) as i32),
        Call::Write => transfer::write(fd, &request.bytes, at(1), at(2) as i32),
        Call::Unread => transfer::unread(fd),
        Call::Poll => poll::poll(at(0), at(1) as i32, arguments.get(2..).unwrap_or_default()),
        Call::EpollCreate => poll::epoll_create(),
        Call::EpollControl => {
            poll::epoll_control(fd, at(1) as i32, at(2) as i32, at(3) as u32, at(4) as u64)
        }
        Call::EpollWait => poll::epoll_wait(fd, at(1) as i32),
        Call::Close => process::close(fd, at(1)),
        Call::Duplicate => process::duplicate(fd, at(1), at(2) as i32),
        Call::Nonblocking => process::nonblocking(fd, at(1) == 1, at(2)),
        Call::Flags => process::flags(fd),
        Call::Execute => process::execute(fd, at(1) == 1, at(2), &request.bytes),
        Call::Again => process::again(),
        Call::Descriptors => process::descriptors(),
        Call::Pass => process::pass(fd),
        Call::Take => process::take(),
        Call::Reap => process::reap(fd),
        Call::Reset => process::reset(&arguments),
        Call::Fork | Call::Exit | Call::Interrupt | Call::Collect => failed(libc::ENOSYS),
    };
    answer.took_us = begin.elapsed().as_micros() as i64;
    answer.signals = SIGNALS.get() - before;
    answer
}
