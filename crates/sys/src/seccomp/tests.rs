use super::*;
use rustix::thread::no_new_privs;
use std::fs::{File, OpenOptions};
use std::net::UdpSocket;

/// Returns what a function sees in a thread of its own that has entered a filter.
fn restricted<T: Send + 'static>(
    permitted: &[&[c_long]],
    refused: &[Refusal<'_>],
    look: impl FnOnce() -> T + Send + 'static,
) -> T {
    let filter = Filter::new(permitted, refused).expect("a filter");
    let thread = std::thread::spawn(move || {
        filter.enter(Scope::Thread).expect("a kernel with seccomp");
        look()
    });
    thread.join().expect("the thread ends as others do")
}

fn errno<T>(outcome: io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

#[test]
fn calls_are_permitted_refused_or_unknown() {
    let look = || {
        let written = errno(OpenOptions::new().write(true).open("/dev/null"));
        let created = errno(OpenOptions::new().append(true).create(true).open("/dev/null"));
        let read = errno(File::open("/dev/null"));
        let socket = errno(UdpSocket::bind("127.0.0.1:0"));
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is permitted");
        (written, created, read, socket, status)
    };
    let lists = [calls::RUNTIME, calls::READ_FILES];
    let (written, created, read, socket, status) = restricted(&lists, calls::READ_ONLY, look);
    assert_eq!((written, created, read), (Some(libc::EPERM), Some(libc::EPERM), None));
    assert_eq!(socket, Some(libc::ENOSYS));
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!((line("Seccomp:"), line("NoNewPrivs:")), (Some("2"), Some("1")));
    assert!(!no_new_privs().unwrap(), "other threads keep their rights");
}

#[test]
fn only_named_values_of_an_argument_are_permitted() {
    let calls: &[c_long] = &[libc::SYS_socket];
    let internet = [libc::AF_INET as u32];
    let refused = [Refusal::Unless(libc::SYS_socket, 0, &internet)];
    let look = || {
        let socket = |family| {
            // SAFETY: the call has no pointers; what it opens is closed with the process.
            match unsafe { libc::socket(family, libc::SOCK_DGRAM, 0) } {
                -1 => io::Error::last_os_error().raw_os_error(),
                _ => None,
            }
        };
        [libc::AF_INET, libc::AF_UNIX, libc::AF_NETLINK].map(socket)
    };
    let seen = restricted(&[calls::RUNTIME, calls], &refused, look);
    assert_eq!(seen, [None, Some(libc::EPERM), Some(libc::EPERM)]);
}

#[test]
fn memory_never_becomes_executable() {
    let look = || {
        let map = |protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let memory =
                unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
            (memory, (memory == libc::MAP_FAILED).then(io::Error::last_os_error))
        };
        let (memory, plain) = map(libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the mapping is this function's own.
        let changed = unsafe { libc::mprotect(memory, 4096, libc::PROT_READ | libc::PROT_EXEC) };
        let changed = (changed == -1).then(io::Error::last_os_error);
        let both = map(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC).1;
        let code = map(libc::PROT_READ | libc::PROT_EXEC).1;
        [plain, changed, both, code].map(|error| error.and_then(|error| error.raw_os_error()))
    };
    let refused = Some(libc::EPERM);
    let seen = restricted(&[calls::RUNTIME], &[], look);
    assert_eq!(seen, [None, refused, refused, refused]);
}

#[test]
fn threads_can_be_started_and_processes_cannot() {
    let look = || {
        let thread = std::thread::Builder::new()
            .spawn(|| 7)
            .and_then(|thread| thread.join().map_err(|_| io::Error::other("it panicked")));
        // SAFETY: the child, if there was one, would end at once.
        let process = match unsafe { libc::fork() } {
            // SAFETY: it runs nothing of the parent's.
            0 => unsafe { libc::_exit(1) },
            -1 => io::Error::last_os_error().raw_os_error(),
            _ => None,
        };
        (thread.ok(), process)
    };
    let seen = restricted(&[calls::RUNTIME, calls::THREADS, calls::READ_FILES], &[], look);
    assert_eq!(seen, (Some(7), Some(libc::EPERM)));
    let seen = restricted(&[calls::RUNTIME], &[], look);
    assert_eq!(seen, (None, Some(libc::ENOSYS)));
}

#[test]
fn a_second_filter_is_not_added() {
    let again = Filter::new(&[calls::RUNTIME], &[]).expect("a filter");
    let look = move || again.enter(Scope::Thread);
    let error = restricted(&[calls::RUNTIME], &[], look).expect_err("it is in the first one");
    assert!(error.to_string().contains("CONFIG_SECCOMP_FILTER"), "{error}");
}

#[test]
fn errors_name_their_cause() {
    let barred = SeccompError::Kernel { source: io::Error::from_raw_os_error(libc::EPERM) };
    assert!(barred.to_string().contains("a sandbox around the program"), "{barred}");
    let other = SeccompError::Thread(7);
    assert!(other.to_string().contains("thread 7"), "{other}");
}
