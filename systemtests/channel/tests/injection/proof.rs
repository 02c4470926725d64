//! Proves that the layer catches every call that it lists: each can be made to fail, and the counts
//! agree with strace(1).

use crate::common::process::{again, is_child, test_name};
use crate::layer::{Call, Fault, armed, mark_for_trace, shared};
use crate::scenarios::{files, listeners, sockets, sources, streams};
use crate::stage::Stage;
use libc::{c_int, c_long, c_void};
use megapipe::DriverChoice;
use std::process::Command;
use std::ptr::{dangling_mut, null, null_mut};

/// An errno that no kernel returns for these calls.
const ERRNO: c_int = libc::EXFULL;

extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
    null_mut()
}

/// Makes a call on descriptor -1, as megapipe or its libraries do; returns its errno, or 0.
fn make(call: Call) -> c_int {
    let ring = |number: c_long| {
        // SAFETY: the descriptor is not a ring, and the pointers are null.
        unsafe { libc::syscall(number, -1, 0, 0, 0, null::<c_void>(), 0) as isize }
    };
    // SAFETY: all calls have descriptor -1, null pointers or no bytes, and fail if they are made.
    let result = unsafe {
        match call {
            Call::IoUringSetup => libc::syscall(libc::SYS_io_uring_setup, 0, 0) as isize,
            Call::IoUringRegister => ring(libc::SYS_io_uring_register),
            Call::IoUringEnter => ring(libc::SYS_io_uring_enter),
            Call::EpollPwait2 => ring(libc::SYS_epoll_pwait2),
            Call::EpollCreate1 => libc::epoll_create1(-1) as isize,
            Call::EpollCtl => libc::epoll_ctl(-1, 0, -1, null_mut()) as isize,
            Call::EpollWait => libc::epoll_wait(-1, null_mut(), 0, 0) as isize,
            Call::Mmap => libc::mmap(null_mut(), 0, 0, 0, -1, 0) as isize,
            Call::Madvise => libc::madvise(dangling_mut(), 1, -1) as isize,
            Call::PthreadCreate => {
                let mut thread = 0;
                return libc::pthread_create(&mut thread, null(), nothing, null_mut());
            }
            Call::Eventfd => libc::eventfd(0, -1) as isize,
            Call::Dup => libc::fcntl(-1, libc::F_DUPFD_CLOEXEC, 0) as isize,
            Call::Flags => libc::fcntl(-1, libc::F_GETFL) as isize,
            Call::Fstat => libc::fstat(-1, null_mut()) as isize,
            Call::Socket => libc::socket(-1, -1, -1) as isize,
            Call::Bind => libc::bind(-1, null(), 0) as isize,
            Call::Listen => libc::listen(-1, 0) as isize,
            Call::Getsockname => libc::getsockname(-1, null_mut(), null_mut()) as isize,
            Call::Getpeername => libc::getpeername(-1, null_mut(), null_mut()) as isize,
            Call::Setsockopt => libc::setsockopt(-1, 0, 0, null(), 0) as isize,
            Call::Getsockopt => libc::getsockopt(-1, 0, 0, null_mut(), null_mut()) as isize,
            Call::Accept4 => libc::accept4(-1, null_mut(), null_mut(), 0) as isize,
            Call::Connect => libc::connect(-1, null(), 0) as isize,
            Call::Shutdown => libc::shutdown(-1, 0) as isize,
            Call::Recv => libc::recv(-1, null_mut(), 0, 0),
            Call::Recvmsg => libc::recvmsg(-1, null_mut(), 0),
            Call::Send => libc::send(-1, null(), 0, 0),
            Call::Sendmsg => libc::sendmsg(-1, null(), 0),
            Call::Read => libc::read(-1, null_mut(), 0),
            Call::Readv => libc::readv(-1, null(), 0),
            Call::Sendfile => libc::sendfile(-1, -1, null_mut(), 0),
            Call::Preadv2 => libc::preadv2(-1, null(), 0, 0, 0),
            Call::Write => libc::write(-1, null(), 0),
            Call::Writev => libc::writev(-1, null(), 0),
            Call::Pwritev => libc::pwritev(-1, null(), 0, 0),
            Call::Pwritev2 => libc::pwritev2(-1, null(), 0, 0, 0),
            Call::Fsync => libc::fsync(-1) as isize,
            Call::Fdatasync => libc::fdatasync(-1) as isize,
            Call::Poll => libc::poll(null_mut(), 1, 0) as isize,
            Call::Ring => {
                let bell = libc::eventfd(0, libc::EFD_CLOEXEC);
                let result = libc::write(bell, [1_u64].as_ptr().cast(), 8);
                let error = *libc::__errno_location();
                libc::close(bell);
                *libc::__errno_location() = error;
                result
            }
            Call::Close => libc::close(-1) as isize,
        }
    };
    let error = std::io::Error::last_os_error();
    if result < 0 { error.raw_os_error().unwrap_or(0) } else { 0 }
}

#[test]
fn every_call_is_counted_and_fails_at_its_turn_only() {
    for call in Call::ALL.iter().copied() {
        shared().prepare(Some(Fault { call, errno: ERRNO, nth: 2, times: 1 }), 0);
        let errnos = armed(|| [make(call), make(call), make(call)]);
        let name = call.name();
        assert_eq!(errnos.map(|errno| errno == ERRNO), [false, true, false], "{name}: {errnos:?}");
        assert_eq!(shared().count(call), 3, "{name}");
        assert_ne!(make(call), ERRNO, "{name} fails in a thread that is not armed");
        shared().prepare(Some(Fault { call, errno: ERRNO, nth: 2, times: 9 }), 0);
        let errnos = armed(|| [make(call), make(call), make(call)]);
        assert_eq!(errnos.map(|errno| errno == ERRNO), [false, true, true], "{name}: {errnos:?}");
        assert_eq!((shared().count(call), shared().fired()), (3, 2), "{name}");
    }
}

/// Returns the names that strace has for a call. It leaves out mappings, because the C library maps
/// memory of its own, and writes to an eventfd, which strace does not distinguish from others.
fn names(call: Call) -> &'static [&'static str] {
    match call {
        Call::Recv => &["recvfrom"],
        Call::Send => &["sendto"],
        Call::Eventfd => &["eventfd2"],
        Call::PthreadCreate => &["clone", "clone3"],
        Call::Poll => &["poll", "ppoll"],
        Call::EpollWait => &["epoll_wait", "epoll_pwait"],
        Call::Fstat => &["fstat", "newfstatat"],
        Call::Mmap | Call::Madvise | Call::Ring => &[],
        Call::Dup => &["fcntl:F_DUPFD_CLOEXEC"],
        Call::Flags => &["fcntl:F_GETFL", "fcntl:F_SETFL"],
        Call::IoUringSetup => &["io_uring_setup"],
        Call::IoUringRegister => &["io_uring_register"],
        Call::IoUringEnter => &["io_uring_enter"],
        Call::EpollCreate1 => &["epoll_create1"],
        Call::EpollCtl => &["epoll_ctl"],
        Call::EpollPwait2 => &["epoll_pwait2"],
        Call::Socket => &["socket"],
        Call::Bind => &["bind"],
        Call::Listen => &["listen"],
        Call::Getsockname => &["getsockname"],
        Call::Getpeername => &["getpeername"],
        Call::Setsockopt => &["setsockopt"],
        Call::Getsockopt => &["getsockopt"],
        Call::Accept4 => &["accept4"],
        Call::Connect => &["connect"],
        Call::Shutdown => &["shutdown"],
        Call::Recvmsg => &["recvmsg"],
        Call::Sendmsg => &["sendmsg"],
        Call::Read => &["read"],
        Call::Readv => &["readv"],
        Call::Sendfile => &["sendfile"],
        Call::Preadv2 => &["preadv2"],
        Call::Write => &["write"],
        Call::Writev => &["writev"],
        Call::Pwritev => &["pwritev"],
        Call::Pwritev2 => &["pwritev2"],
        Call::Fsync => &["fsync"],
        Call::Fdatasync => &["fdatasync"],
        Call::Close => &["close"],
    }
}

crate::conformance!(counts_are_those_of_strace);

/// Runs scenarios under strace(1), which sees calls that the layer might miss.
fn counts_are_those_of_strace(driver: DriverChoice) {
    let full_name = format!("proof::{}", test_name(driver, "counts_are_those_of_strace"));
    if is_child(&full_name) {
        return traced_scenarios(driver);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace");
    let command = again(&full_name);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "signal=none", "-o"]).arg(&trace).arg("--");
    strace.arg(command.get_program()).args(command.get_args());
    strace.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = strace.output().unwrap_or_else(|error| {
        panic!("strace does not start ({error}): `cargo xtask setup` installs it")
    });
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
    let trace = std::fs::read_to_string(trace).expect("the trace");
    let seen = armed_calls(&trace);
    let mut total = 0;
    for call in Call::ALL.iter().copied().filter(|call| !names(*call).is_empty()) {
        let count = seen.iter().filter(|line| is_call(line, names(call))).count();
        let told = format!("count of {}: ", call.name());
        let counted = out.split(&told).nth(1).and_then(|rest| rest.lines().next());
        assert_eq!(counted, Some(count.to_string().as_str()), "{}", call.name());
        total += count;
    }
    assert!(total > 50, "only {total} calls");
}

/// Returns the calls of armed threads: in the thread with marks, those between them; in other
/// threads, all.
fn armed_calls(trace: &str) -> Vec<&str> {
    let main = trace.lines().find(|line| line.contains("getppid(")).expect("a mark");
    let main = main.split_whitespace().next().expect("a thread");
    let (mut is_armed, mut has_begun, mut seen) = (false, false, Vec::new());
    let mut strangers: Vec<&str> = Vec::new();
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if thread == main && call.starts_with("getppid(") {
            (is_armed, has_begun) = (!is_armed, true);
        } else if thread == main && is_armed {
            seen.push(call);
        } else if thread != main && !has_begun {
            strangers.push(thread);
        } else if thread != main && !strangers.contains(&thread) {
            seen.push(call);
        }
    }
    seen
}

/// Returns whether a line of the trace begins one of these calls.
fn is_call(line: &str, names: &[&str]) -> bool {
    names.iter().any(|name| {
        let (name, command) = name.split_once(':').unwrap_or((name, ""));
        let rest = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('('));
        rest.is_some_and(|rest| rest.contains(command))
    })
}

fn traced_scenarios(driver: DriverChoice) {
    mark_for_trace();
    shared().prepare(None, 0);
    let bodies: [fn(&mut Stage); 8] = [
        streams::echo_lightweight,
        streams::buffers,
        streams::looks,
        listeners::peers,
        sockets::datagrams,
        sockets::connect,
        sources::sources,
        files::file,
    ];
    for body in bodies {
        let mut stage = Stage::new(driver);
        body(&mut stage);
        armed(|| drop(stage));
    }
    for call in Call::ALL.iter().copied() {
        let rings = if call == Call::Write { shared().count(Call::Ring) } else { 0 };
        println!("count of {}: {}", call.name(), shared().count(call) + rings);
    }
}
