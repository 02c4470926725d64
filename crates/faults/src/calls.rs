//! Lists the system calls that fail, and the errnos of each.

/// What a call does in the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Creates or gets a resource: the short form fails it.
    Acquires,
    /// Uses what is there.
    Uses,
    /// Shows where a program is, and never fails.
    Marks,
}

/// A system call of the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) number: i64,
    pub(crate) role: Role,
    /// The errnos that Linux may return although the arguments are correct and the object is in the
    /// state that the caller expects.
    pub(crate) errnos: &'static [i32],
}

macro_rules! calls {
    ($($(#[$condition:meta])* $name:ident $number:ident $role:ident [$($errno:ident),*];)+) => {
        const CALLS: &[Call] = &[$(
            $(#[$condition])*
            Call {
                name: stringify!($name),
                number: libc::$number,
                role: Role::$role,
                errnos: &[$(libc::$errno),*],
            },
        )+];
    };
}

// Not here: close(2), whose descriptor would stay open if the kernel did not execute it; EAGAIN of
// sockets and pipes, which means that an edge will follow; EINTR of connect(2), which means that
// the connection is being made.
calls! {
    openat SYS_openat Acquires [EMFILE, ENFILE, ENOMEM];
    socket SYS_socket Acquires [EMFILE, ENFILE, ENOBUFS];
    socketpair SYS_socketpair Acquires [EMFILE, ENFILE, ENOBUFS];
    accept4 SYS_accept4 Acquires [EMFILE, EINTR, ENFILE, ENOBUFS, ECONNABORTED];
    accept SYS_accept Acquires [EMFILE, EINTR, ENFILE, ENOBUFS, ECONNABORTED];
    pipe2 SYS_pipe2 Acquires [EMFILE, ENFILE];
    eventfd2 SYS_eventfd2 Acquires [EMFILE, ENFILE, ENOMEM];
    timerfd_create SYS_timerfd_create Acquires [EMFILE, ENFILE, ENOMEM];
    signalfd4 SYS_signalfd4 Acquires [EMFILE, ENFILE, ENOMEM];
    inotify_init1 SYS_inotify_init1 Acquires [EMFILE, ENFILE, ENOMEM];
    epoll_create1 SYS_epoll_create1 Acquires [EMFILE, ENFILE, ENOMEM];
    memfd_create SYS_memfd_create Acquires [EMFILE, ENFILE, ENOMEM];
    pidfd_open SYS_pidfd_open Acquires [EMFILE, ENFILE, ENOMEM];
    pidfd_getfd SYS_pidfd_getfd Acquires [EMFILE, EPERM];
    dup SYS_dup Acquires [EMFILE];
    dup3 SYS_dup3 Acquires [EMFILE, EBUSY, EINTR];
    fcntl SYS_fcntl Acquires [EMFILE];
    bpf SYS_bpf Acquires [ENOMEM, EMFILE, EPERM];
    io_uring_setup SYS_io_uring_setup Acquires [ENOMEM, EMFILE, ENFILE];
    io_uring_register SYS_io_uring_register Acquires [ENOMEM, EMFILE, EBUSY];
    mmap SYS_mmap Acquires [ENOMEM, EAGAIN];
    mremap SYS_mremap Acquires [ENOMEM];
    clone SYS_clone Acquires [EAGAIN, ENOMEM];
    clone3 SYS_clone3 Acquires [EAGAIN, ENOMEM];
    ftruncate SYS_ftruncate Acquires [ENOSPC, EINTR];
    fallocate SYS_fallocate Acquires [ENOSPC, EINTR, ENOMEM];
    mkdirat SYS_mkdirat Acquires [ENOSPC, ENOMEM];
    renameat2 SYS_renameat2 Acquires [ENOSPC, ENOMEM];
    bind SYS_bind Acquires [ENOMEM, EADDRINUSE];
    listen SYS_listen Acquires [EADDRINUSE];
    connect SYS_connect Acquires [ENOBUFS, ENOMEM];
    execve SYS_execve Acquires [ENOMEM];
    epoll_ctl SYS_epoll_ctl Acquires [ENOMEM, ENOSPC];
    madvise SYS_madvise Uses [ENOMEM, EAGAIN];
    mprotect SYS_mprotect Uses [ENOMEM];
    mlock SYS_mlock Uses [ENOMEM, EAGAIN];
    ioctl SYS_ioctl Uses [ENOMEM, EINTR];
    setsockopt SYS_setsockopt Uses [ENOMEM];
    getsockopt SYS_getsockopt Uses [ENOBUFS];
    getsockname SYS_getsockname Uses [ENOBUFS];
    getpeername SYS_getpeername Uses [ENOBUFS];
    shutdown SYS_shutdown Uses [ENOBUFS];
    recvfrom SYS_recvfrom Uses [EINTR, ENOMEM, ENOBUFS];
    recvmsg SYS_recvmsg Uses [EINTR, ENOMEM, ENOBUFS];
    sendto SYS_sendto Uses [EINTR, ENOMEM, ENOBUFS];
    sendmsg SYS_sendmsg Uses [EINTR, ENOMEM, ENOBUFS, ETOOMANYREFS];
    read SYS_read Uses [EINTR, EIO, ENOMEM];
    readv SYS_readv Uses [EINTR, EIO, ENOMEM];
    pread64 SYS_pread64 Uses [EINTR, EIO, ENOMEM];
    write SYS_write Uses [EINTR, EIO, ENOMEM, ENOSPC];
    writev SYS_writev Uses [EINTR, EIO, ENOMEM];
    pwrite64 SYS_pwrite64 Uses [EINTR, EIO, ENOMEM, ENOSPC];
    vmsplice SYS_vmsplice Uses [EINTR, ENOMEM];
    splice SYS_splice Uses [EINTR, ENOMEM];
    sendfile SYS_sendfile Uses [EINTR, ENOMEM, EIO];
    fsync SYS_fsync Uses [EINTR, EIO];
    fdatasync SYS_fdatasync Uses [EINTR, EIO];
    fstat SYS_fstat Uses [ENOMEM];
    newfstatat SYS_newfstatat Uses [ENOMEM];
    statx SYS_statx Uses [ENOMEM];
    readlinkat SYS_readlinkat Uses [ENOMEM];
    getdents64 SYS_getdents64 Uses [ENOMEM];
    process_vm_readv SYS_process_vm_readv Uses [ENOMEM, EPERM];
    kcmp SYS_kcmp Uses [EPERM];
    ppoll SYS_ppoll Uses [EINTR, ENOMEM];
    pselect6 SYS_pselect6 Uses [EINTR, ENOMEM];
    epoll_pwait SYS_epoll_pwait Uses [EINTR];
    epoll_pwait2 SYS_epoll_pwait2 Uses [EINTR, EPERM];
    futex SYS_futex Uses [EINTR];
    nanosleep SYS_nanosleep Uses [EINTR];
    clock_nanosleep SYS_clock_nanosleep Uses [EINTR];
    wait4 SYS_wait4 Uses [EINTR];
    waitid SYS_waitid Uses [EINTR];
    io_uring_enter SYS_io_uring_enter Uses [EINTR, EAGAIN, EBUSY, ENOMEM];
    #[cfg(target_arch = "x86_64")]
    open SYS_open Acquires [EMFILE, ENFILE, ENOMEM];
    #[cfg(target_arch = "x86_64")]
    pipe SYS_pipe Acquires [EMFILE, ENFILE];
    #[cfg(target_arch = "x86_64")]
    dup2 SYS_dup2 Acquires [EMFILE, EBUSY, EINTR];
    #[cfg(target_arch = "x86_64")]
    fork SYS_fork Acquires [EAGAIN, ENOMEM];
    #[cfg(target_arch = "x86_64")]
    vfork SYS_vfork Acquires [EAGAIN, ENOMEM];
    #[cfg(target_arch = "x86_64")]
    mkdir SYS_mkdir Acquires [ENOSPC, ENOMEM];
    #[cfg(target_arch = "x86_64")]
    rename SYS_rename Acquires [ENOSPC, ENOMEM];
    #[cfg(target_arch = "x86_64")]
    stat SYS_stat Uses [ENOMEM];
    #[cfg(target_arch = "x86_64")]
    lstat SYS_lstat Uses [ENOMEM];
    #[cfg(target_arch = "x86_64")]
    readlink SYS_readlink Uses [ENOMEM];
    #[cfg(target_arch = "x86_64")]
    poll SYS_poll Uses [EINTR, ENOMEM];
    #[cfg(target_arch = "x86_64")]
    select SYS_select Uses [EINTR, ENOMEM];
    #[cfg(target_arch = "x86_64")]
    epoll_wait SYS_epoll_wait Uses [EINTR];
    munmap SYS_munmap Marks [];
    sigaltstack SYS_sigaltstack Marks [];
    getppid SYS_getppid Marks [];
}

/// Returns the numbers of all calls of the table.
pub(crate) fn numbers() -> impl Iterator<Item = i64> {
    CALLS.iter().map(|call| call.number)
}

/// Returns the call with a number.
pub(crate) fn find(number: i64) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.number == number)
}

/// Returns the call of a name.
pub(crate) fn named(name: &str) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.name == name && call.role != Role::Marks)
}

/// Whether a call with these arguments may fail. Output on the standard descriptors is the
/// program's report, of the commands of fcntl(2) and futex(2) only those that duplicate and wait
/// fail, and ftruncate(2) to zero cannot.
pub(crate) fn may_fail(call: &Call, arguments: &[u64; 6]) -> bool {
    const FUTEX_COMMAND: u64 = 0x7f;
    let [first, second, ..] = *arguments;
    match call.number {
        _ if call.role == Role::Marks => false,
        libc::SYS_write | libc::SYS_writev => first > 2,
        libc::SYS_fcntl => [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&(second as i32)),
        libc::SYS_futex => {
            let command = (second & FUTEX_COMMAND) as i32;
            [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET].contains(&command)
        }
        libc::SYS_epoll_ctl => second as i32 != libc::EPOLL_CTL_DEL,
        _ => true,
    }
}

/// Returns the name of an errno of the table.
pub(crate) fn errno_name(errno: i32) -> &'static str {
    macro_rules! names {
        ($($name:ident)+) => {
            match errno {
                $(libc::$name => stringify!($name),)+
                _ => "?",
            }
        };
    }
    names!(EAGAIN EADDRINUSE EBUSY ECONNABORTED EINTR EIO EMFILE ENFILE ENOBUFS ENOMEM ENOSPC EPERM
           ETOOMANYREFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_has_a_name_and_no_call_is_listed_twice() {
        for (index, call) in CALLS.iter().enumerate() {
            assert!(call.errnos.iter().all(|errno| errno_name(*errno) != "?"), "{}", call.name);
            assert_eq!(call.errnos.is_empty(), call.role == Role::Marks, "{}", call.name);
            assert!(CALLS[..index].iter().all(|other| other.number != call.number));
        }
    }
}
