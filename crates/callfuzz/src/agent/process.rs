//! Makes the calls on descriptors and processes: closing, duplicating, passing, forking and
//! executing.

use super::transfer::{close as drop_descriptor, fill, memory_file};
use super::{LINK, answer, failed};
use crate::protocol::Answer;
use libc::c_int;
use std::ffi::{CString, c_char};
use std::{fs, ptr};

const CAT: &std::ffi::CStr = c"/bin/cat";

pub(super) fn close(fd: c_int, how: i64) -> Answer {
    // SAFETY: the calls take plain numbers; the controller knows which descriptors are open.
    answer(unsafe {
        match how {
            0 => i64::from(libc::close(fd)),
            1 => libc::syscall(libc::SYS_close, fd),
            _ => i64::from(libc::close_range(fd as u32, fd as u32, 0)),
        }
    })
}

pub(super) fn duplicate(fd: c_int, how: i64, target: c_int) -> Answer {
    // SAFETY: the calls take plain numbers; the controller knows which descriptors are open.
    answer(unsafe {
        match how {
            0 => libc::dup(fd),
            1 => libc::dup2(fd, target),
            2 => libc::dup3(fd, target, 0),
            3 => libc::fcntl(fd, libc::F_DUPFD, 20),
            _ => libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 20),
        }
    })
}

pub(super) fn nonblocking(fd: c_int, on: bool, how: i64) -> Answer {
    let value = c_int::from(on);
    // SAFETY: the calls take plain numbers, and a pointer to an integer as the request requires.
    answer(unsafe {
        if how == 0 {
            let flags = libc::fcntl(fd, libc::F_GETFL) & !libc::O_NONBLOCK;
            libc::fcntl(fd, libc::F_SETFL, flags | if on { libc::O_NONBLOCK } else { 0 })
        } else {
            libc::ioctl(fd, libc::FIONBIO, &value)
        }
    })
}

pub(super) fn flags(fd: c_int) -> Answer {
    // SAFETY: the call takes plain numbers.
    let mut answer = answer(unsafe { libc::fcntl(fd, libc::F_GETFL) });
    // SAFETY: the call takes plain numbers.
    answer.more = vec![i64::from(unsafe { libc::fcntl(fd, libc::F_GETFD) })];
    answer
}

/// Counts the entries of /proc/self/fd, without the descriptor that lists it.
pub(super) fn descriptors() -> Answer {
    let count = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    Answer { result: count as i64 - 1, ..Answer::default() }
}

pub(super) fn reset(descriptors: &[i64]) -> Answer {
    descriptors.iter().for_each(|fd| drop_descriptor(*fd as c_int));
    Answer::default()
}

pub(super) fn reap(process: c_int) -> Answer {
    // SAFETY: a null pointer does not request the status.
    answer(unsafe { libc::waitpid(process, ptr::null_mut(), 0) })
}

/// Forks; the child serves requests from the pipes PATH.in and PATH.out.
pub(super) fn fork(path: &[u8]) -> Answer {
    let name = |suffix: &str| CString::new([path, suffix.as_bytes()].concat()).unwrap_or_default();
    let (input, output) = (name(".in"), name(".out"));
    // SAFETY: the other threads are in system calls and hold no lock of this program.
    let answer = answer(unsafe { libc::fork() });
    if answer.result == 0 {
        for (name, flags, target) in [(input, libc::O_RDONLY, 0), (output, libc::O_WRONLY, 1)] {
            // SAFETY: the name ends with zero; the target is replaced as intended.
            unsafe {
                let fd = libc::open(name.as_ptr(), flags);
                libc::dup2(fd, target);
                libc::close(fd);
            }
        }
    }
    answer
}

/// Executes this program again, which continues to serve requests.
pub(super) fn again() -> Answer {
    let arguments = [c"callfuzz".as_ptr(), c"agent".as_ptr(), ptr::null()];
    // SAFETY: the strings end with zero, the list with null.
    answer(unsafe { libc::execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr()) })
}

/// Runs cat with the socket as its input or output, and waits for it. Its other end is a memory
/// file, with the bytes that it writes, or for the bytes that it reads.
pub(super) fn execute(fd: c_int, reads: bool, how: i64, bytes: &[u8]) -> Answer {
    let Ok(file) = memory_file(bytes) else { return failed(libc::EMFILE) };
    let (input, output) = if reads { (fd, file) } else { (file, fd) };
    let process = if how == 0 { spawn(input, output) } else { fork_and_execute(input, output) };
    let mut status: c_int = 0;
    loop {
        // SAFETY: the status belongs to this function.
        let waited = unsafe { libc::waitpid(process, &mut status, 0) };
        if waited == process || super::answer(waited).errno != i64::from(libc::EINTR) {
            break;
        }
    }
    let mut answer = Answer { result: i64::from(status), ..Answer::default() };
    if reads {
        // SAFETY: the call takes plain numbers.
        let size = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
        // SAFETY: the call takes plain numbers.
        unsafe { libc::lseek(file, 0, libc::SEEK_SET) };
        answer.bytes = vec![0; size.max(0) as usize];
        if fill(file, &mut answer.bytes).is_err() {
            answer.bytes.clear();
        }
    }
    drop_descriptor(file);
    answer
}

fn spawn(input: c_int, output: c_int) -> c_int {
    let arguments: [*mut c_char; 2] = [CAT.as_ptr().cast_mut(), ptr::null_mut()];
    let mut process = -1;
    // SAFETY: the actions are initialized before and destroyed after their use; the lists end with
    // null.
    unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&mut actions);
        libc::posix_spawn_file_actions_adddup2(&mut actions, input, 0);
        libc::posix_spawn_file_actions_adddup2(&mut actions, output, 1);
        libc::posix_spawn_file_actions_addopen(
            &mut actions,
            2,
            c"/dev/null".as_ptr(),
            libc::O_WRONLY,
            0,
        );
        let environment = environ();
        let arguments = arguments.as_ptr();
        libc::posix_spawn(
            &mut process,
            CAT.as_ptr(),
            &actions,
            ptr::null(),
            arguments,
            environment,
        );
        libc::posix_spawn_file_actions_destroy(&mut actions);
    }
    process
}

fn environ() -> *const *mut c_char {
    unsafe extern "C" {
        static environ: *const *mut c_char;
    }
    // SAFETY: the program does not change its environment.
    unsafe { environ }
}

fn fork_and_execute(input: c_int, output: c_int) -> c_int {
    let arguments = [CAT.as_ptr(), ptr::null()];
    // SAFETY: the child makes system calls only, then executes.
    unsafe {
        let process = libc::fork();
        if process == 0 {
            // Otherwise the program would read the agent's requests as its input.
            if libc::dup2(input, 0) < 0 || libc::dup2(output, 1) < 0 {
                libc::_exit(127);
            }
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
            libc::dup2(null, 2);
            libc::execv(CAT.as_ptr(), arguments.as_ptr());
            libc::_exit(127);
        }
        process
    }
}

/// Room for the ancillary data with one descriptor.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Sends a descriptor to the other process.
pub(super) fn pass(fd: c_int) -> Answer {
    let mut control = Control([0; 24]);
    let mut byte = 1_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the ancillary data has room for one descriptor and is aligned for its header.
    answer(unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(fd);
        libc::sendmsg(LINK, &message, 0)
    } as i64)
}

/// Receives a descriptor from the other process; the result is its number here.
pub(super) fn take() -> Answer {
    let mut control = Control([0; 24]);
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the ancillary data has room for one descriptor and is aligned for its header; the
    // header is read only if the kernel has written one.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let result = libc::recvmsg(LINK, &mut message, libc::MSG_DONTWAIT);
        let header = libc::CMSG_FIRSTHDR(&message);
        if result < 1 || header.is_null() {
            return answer(result as i64);
        }
        let fd = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
        Answer { result: i64::from(fd), ..Answer::default() }
    }
}
