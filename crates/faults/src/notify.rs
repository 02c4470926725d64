//! Receives the system calls of a process and its children before the kernel executes them, and
//! answers them: seccomp_unotify(2).
//!
//! A filter that the child installs before it executes its program sends calls with certain
//! numbers to the listener, whose descriptor the child passes through a socket. Only these calls
//! are seen; all others cost nothing.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::opcode::read_write;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The number of the child's end of the socket for the listener. Messages there are not notified,
/// because nothing could answer before the listener has arrived.
const HANDOVER: RawFd = 1000;

/// The architecture in the filter's data: a call of another one has other numbers.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Only fatal signals interrupt a call that was received (Linux 5.19): others would make the kernel
/// start it again, and it would be counted twice.
const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    id: u64,
    /// The thread that makes the call.
    pub(crate) thread: u32,
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    Notice(Notice),
    /// The time-out has expired.
    Nothing,
    /// No process has the filter any more.
    End,
}

/// The receiving end of a child's filter.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

/// Prepares a command whose process installs the filter for calls with these numbers. The listener
/// arrives at the result when the process is about to execute its program.
pub(crate) fn prepare(
    command: &mut Command,
    numbers: impl Iterator<Item = i64>,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    let filter = filter(numbers);
    let work = move || install(&filter, theirs.as_raw_fd());
    // SAFETY: the function makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(work) };
    Ok(ours)
}

/// Returns the filter's program: calls with these numbers are notified, all others executed.
fn filter(numbers: impl Iterator<Item = i64>) -> Vec<libc::sock_filter> {
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let result = |action| statement(libc::BPF_RET | libc::BPF_K, action);
    let skip_unless = |value, skipped| jump(value, 0, skipped);
    let mut program = vec![
        load(ARCHITECTURE),
        skip_unless(AUDIT_ARCH, 5),
        load(NUMBER),
        skip_unless(libc::SYS_sendmsg as u32, 4),
        load(FIRST_ARGUMENT),
        skip_unless(HANDOVER as u32, 1),
        result(libc::SECCOMP_RET_ALLOW),
        load(NUMBER),
    ];
    for number in numbers {
        program.push(skip_unless(number as u32, 1));
        program.push(result(libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(result(libc::SECCOMP_RET_ALLOW));
    program
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt, jf, k }
}

/// Installs the filter in the calling process and passes its listener on.
fn install(filter: &[libc::sock_filter], socket: RawFd) -> io::Result<()> {
    // SAFETY: plain numbers; the number of the copy is not in use, as the harness has few.
    check(unsafe { libc::dup3(socket, HANDOVER, libc::O_CLOEXEC) }.into())?;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV;
    // SAFETY: the program is valid for the call, which copies it.
    let listener = check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    let listener = unsafe { OwnedFd::from_raw_fd(listener as RawFd) };
    pass(&listener)
}

fn pass(listener: &OwnedFd) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut room);
    let descriptors = [listener.as_fd()];
    control.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors));
    // SAFETY: the descriptor is open: `install` made it.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(HANDOVER) };
    let flags = rustix::net::SendFlags::empty();
    rustix::net::sendmsg(socket, &[io::IoSlice::new(b"l")], &mut control, flags)?;
    Ok(())
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Listener {
    /// Takes the listener from the socket. `None` if the child ended before.
    pub(crate) fn take(socket: &OwnedFd) -> io::Result<Option<Listener>> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let mut byte = [0];
        let mut slices = [io::IoSliceMut::new(&mut byte)];
        recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let taken = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok(taken.map(Listener))
    }

    /// Waits for the next call, not longer than `limit`.
    pub(crate) fn next(&self, limit: Option<Duration>) -> io::Result<Next> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, limit.as_ref()) {
                Ok(0) => return Ok(Next::Nothing),
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            if !fds[0].revents().contains(PollFlags::IN) {
                return Ok(Next::End);
            }
            // SAFETY: zeros are valid for the structure, and the kernel demands them.
            let mut notice: libc::seccomp_notif = unsafe { zeroed() };
            const RECEIVE: u32 = read_write::<libc::seccomp_notif>(b'!', 0);
            // SAFETY: the pointer is to a structure that the kernel fills in.
            let result =
                unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE.into(), &raw mut notice) };
            match check(result.into()) {
                // The thread was killed in the meantime.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let libc::seccomp_notif { id, pid: thread, data, .. } = notice;
            let (number, arguments) = (data.nr.into(), data.args);
            return Ok(Next::Notice(Notice { id, thread, number, arguments }));
        }
    }

    /// Lets the kernel execute the call.
    pub(crate) fn proceed(&self, notice: &Notice) {
        self.answer(notice, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    /// Makes the call fail.
    pub(crate) fn fail(&self, notice: &Notice, errno: i32) {
        self.answer(notice, -errno, 0);
    }

    fn answer(&self, notice: &Notice, error: i32, flags: u32) {
        let mut answer = libc::seccomp_notif_resp { id: notice.id, val: 0, error, flags };
        const SEND: u32 = read_write::<libc::seccomp_notif_resp>(b'!', 1);
        // SAFETY: the pointer is to a structure that the kernel reads. An error means that the
        // thread was killed, and nothing waits for the answer.
        unsafe { libc::ioctl(self.0.as_raw_fd(), SEND.into(), &raw mut answer) };
    }
}

/// Whether the kernel has everything that this module uses.
pub(crate) fn is_available() -> bool {
    let mut sizes = [0_u16; size_of::<libc::seccomp_notif_sizes>() / 2];
    // SAFETY: the pointer is to a structure that the kernel fills in.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, sizes.as_mut_ptr())
    };
    result == 0 && usize::from(sizes[0]) == size_of::<libc::seccomp_notif>()
}

/// The pause between two looks at what ends by itself a moment later.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);
