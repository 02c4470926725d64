//! Lists the calls that sandboxes refuse and old kernels lack.

/// A system call, or one with certain arguments, that a program may not have.
#[derive(Debug, PartialEq, Eq)]
pub struct Optional {
    /// The call's name, with what its arguments are in parentheses.
    pub name: &'static str,
    pub(crate) number: i64,
    /// What the low 32 bits of arguments are, by their index.
    arguments: &'static [(usize, Argument)],
}

#[derive(Debug, PartialEq, Eq)]
enum Argument {
    Is(i32),
    IsNotZero,
}

impl Optional {
    /// Returns the call of this name.
    pub fn find(name: &str) -> Option<&'static Optional> {
        ALL.iter().find(|call| call.name == name)
    }

    pub(crate) fn matches(&self, number: i64, arguments: &[u64; 6]) -> bool {
        let holds = |(index, wanted): &(usize, Argument)| match *wanted {
            Argument::Is(value) => arguments[*index] as i32 == value,
            Argument::IsNotZero => arguments[*index] != 0,
        };
        self.number == number && self.arguments.iter().all(holds)
    }
}

macro_rules! optional {
    (
        calls { $($call:ident $call_number:ident)* }
        first { $($first:ident $first_number:ident { $($value:ident)* })* }
        options { $($level:ident { $($option:ident)* })* }
    ) => {
        /// The calls, in the order of their names in each group.
        pub const ALL: &[Optional] = &[
            $(Optional { name: stringify!($call), number: libc::$call_number, arguments: &[] },)*
            $($(Optional {
                name: concat!(stringify!($first), "(", stringify!($value), ")"),
                number: libc::$first_number,
                arguments: &[(position(libc::$first_number), Argument::Is(libc::$value))],
            },)*)*
            $($(Optional {
                name: concat!("setsockopt(", stringify!($option), ")"),
                number: libc::SYS_setsockopt,
                arguments: &[
                    (1, Argument::Is(libc::$level)),
                    (2, Argument::Is(libc::$option)),
                ],
            },)*)*
            Optional {
                name: "prlimit64(SET)",
                number: libc::SYS_prlimit64,
                arguments: &[(2, Argument::IsNotZero)],
            },
        ];
    };
}

/// The index of the argument that says what a call does.
const fn position(number: i64) -> usize {
    match number {
        libc::SYS_fcntl => 1,
        _ => 0,
    }
}

// Not here: calls that every Linux has and no usual sandbox refuses, such as read(2) or mmap(2).
optional! {
    calls {
        accept4 SYS_accept4
        bpf SYS_bpf
        capget SYS_capget
        capset SYS_capset
        chroot SYS_chroot
        clone3 SYS_clone3
        close_range SYS_close_range
        copy_file_range SYS_copy_file_range
        epoll_pwait2 SYS_epoll_pwait2
        eventfd2 SYS_eventfd2
        faccessat2 SYS_faccessat2
        fallocate SYS_fallocate
        fchmodat2 SYS_fchmodat2
        futex_waitv SYS_futex_waitv
        get_mempolicy SYS_get_mempolicy
        getcpu SYS_getcpu
        getrandom SYS_getrandom
        inotify_init1 SYS_inotify_init1
        io_uring_enter SYS_io_uring_enter
        io_uring_register SYS_io_uring_register
        io_uring_setup SYS_io_uring_setup
        kcmp SYS_kcmp
        landlock_add_rule SYS_landlock_add_rule
        landlock_create_ruleset SYS_landlock_create_ruleset
        landlock_restrict_self SYS_landlock_restrict_self
        madvise SYS_madvise
        mbind SYS_mbind
        membarrier SYS_membarrier
        memfd_create SYS_memfd_create
        mlock SYS_mlock
        mlock2 SYS_mlock2
        mlockall SYS_mlockall
        mount SYS_mount
        name_to_handle_at SYS_name_to_handle_at
        openat2 SYS_openat2
        perf_event_open SYS_perf_event_open
        personality SYS_personality
        pidfd_getfd SYS_pidfd_getfd
        pidfd_open SYS_pidfd_open
        pidfd_send_signal SYS_pidfd_send_signal
        preadv2 SYS_preadv2
        process_madvise SYS_process_madvise
        process_vm_readv SYS_process_vm_readv
        process_vm_writev SYS_process_vm_writev
        pwritev2 SYS_pwritev2
        recvmmsg SYS_recvmmsg
        renameat2 SYS_renameat2
        rseq SYS_rseq
        sched_getaffinity SYS_sched_getaffinity
        sched_setaffinity SYS_sched_setaffinity
        sched_setattr SYS_sched_setattr
        sched_setscheduler SYS_sched_setscheduler
        seccomp SYS_seccomp
        sendfile SYS_sendfile
        sendmmsg SYS_sendmmsg
        set_mempolicy SYS_set_mempolicy
        set_robust_list SYS_set_robust_list
        setgroups SYS_setgroups
        setns SYS_setns
        setpriority SYS_setpriority
        setresgid SYS_setresgid
        setresuid SYS_setresuid
        signalfd4 SYS_signalfd4
        splice SYS_splice
        statx SYS_statx
        sysinfo SYS_sysinfo
        tee SYS_tee
        timerfd_create SYS_timerfd_create
        umount2 SYS_umount2
        unshare SYS_unshare
        userfaultfd SYS_userfaultfd
        vmsplice SYS_vmsplice
    }
    first {
        fcntl SYS_fcntl { F_ADD_SEALS F_SETPIPE_SZ }
        prctl SYS_prctl {
            PR_CAPBSET_DROP PR_CAPBSET_READ PR_CAP_AMBIENT PR_SET_CHILD_SUBREAPER PR_SET_DUMPABLE
            PR_SET_KEEPCAPS PR_SET_NAME PR_SET_NO_NEW_PRIVS PR_SET_PDEATHSIG PR_SET_PTRACER
            PR_SET_SECCOMP PR_SET_SECUREBITS PR_SET_TIMERSLACK PR_SET_VMA
        }
        socket SYS_socket { AF_NETLINK AF_PACKET AF_XDP }
    }
    options {
        IPPROTO_IP { IP_BIND_ADDRESS_NO_PORT }
        IPPROTO_TCP {
            TCP_CONGESTION TCP_CORK TCP_DEFER_ACCEPT TCP_FASTOPEN TCP_FASTOPEN_CONNECT
            TCP_NOTSENT_LOWAT TCP_QUICKACK TCP_ULP TCP_USER_TIMEOUT
        }
        SOL_SOCKET {
            SO_ATTACH_BPF SO_ATTACH_FILTER SO_ATTACH_REUSEPORT_CBPF SO_ATTACH_REUSEPORT_EBPF
            SO_BINDTODEVICE SO_BUSY_POLL SO_INCOMING_CPU SO_LINGER SO_MARK SO_PASSCRED
            SO_PREFER_BUSY_POLL SO_PRIORITY SO_RCVBUFFORCE SO_REUSEPORT SO_SNDBUFFORCE SO_ZEROCOPY
        }
    }
}
