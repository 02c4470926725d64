//! Lists of system calls by purpose, from which programs compose their filters.
//!
//! x86-64 has calls that newer architectures replace by more general ones (`poll` by `ppoll`, say).
//! They have lists of their own here, which are empty elsewhere.

use super::{Mask, Refusal};
use std::ffi::c_long;

/// What the C library and the standard library need in any thread: memory, locks, clocks, signals
/// of the thread itself, random numbers, and the end. Does not start threads.
pub const RUNTIME: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_futex,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_prctl,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_tgkill,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getrlimit,
];

/// Threads are started. Every filter refuses new processes; clone3(2), whose arguments a filter
/// cannot see, is not here.
pub const THREADS: &[c_long] = &[libc::SYS_clone];

/// Files and directories are opened and read: configuration, `/proc`, what a backtrace needs.
/// [`READ_ONLY`] refuses the rest of openat(2).
pub const READ_FILES: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

/// Sockets that exist are used, and connections accepted.
pub const USE_SOCKETS: &[c_long] = &[
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
];

/// Threads wait for descriptors.
pub const WAIT: &[c_long] = &[
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// The user of all threads is changed by the C library: it makes each thread call these, and aborts
/// if one fails (nptl(7)).
pub const CHANGE_USER: &[c_long] = &[
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
];

/// Calls that end the process: other programs, other processes' memory, the system as a whole.
pub const FATAL: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// prctl(2): name the thread; name memory (glibc's and other allocators); what libcap makes each
/// thread do; read. None of these gives a thread more rights.
const THREAD_CONTROLS: &[u32] = &[
    libc::PR_SET_NAME as u32,
    libc::PR_GET_NAME as u32,
    libc::PR_SET_VMA as u32,
    libc::PR_GET_DUMPABLE as u32,
    libc::PR_GET_NO_NEW_PRIVS as u32,
    libc::PR_SET_NO_NEW_PRIVS as u32,
    libc::PR_GET_KEEPCAPS as u32,
    libc::PR_SET_KEEPCAPS as u32,
    libc::PR_CAPBSET_READ as u32,
    libc::PR_CAPBSET_DROP as u32,
    libc::PR_CAP_AMBIENT as u32,
];

/// ioctl(2): what a terminal is asked for to know that it is one; non-blocking; bytes that can be
/// read; close-on-exec. Commands of devices, input that a terminal is made to believe, and commands
/// that make the kernel send signals (`FIOSETOWN`, `SIOCSPGRP`, `FIOASYNC`), are not here.
const DESCRIPTOR_COMMANDS: &[u32] = &[
    libc::TCGETS as u32,
    libc::FIONBIO as u32,
    libc::FIONREAD as u32,
    libc::FIOCLEX as u32,
    libc::FIONCLEX as u32,
];

/// Whether two descriptors are the same open file, since Linux 6.10.
const F_DUPFD_QUERY: u32 = 1027;

/// fcntl(2): copies of descriptors, their flags, and seals. The commands that make the kernel send
/// signals, to any process that the descriptor names as its owner, are not here (`F_SETOWN`,
/// `F_SETOWN_EX`, `F_SETSIG`, `F_NOTIFY`, `F_SETLEASE`).
const FILE_COMMANDS: &[u32] = &[
    libc::F_DUPFD as u32,
    libc::F_DUPFD_CLOEXEC as u32,
    F_DUPFD_QUERY,
    libc::F_GETFD as u32,
    libc::F_SETFD as u32,
    libc::F_GETFL as u32,
    libc::F_SETFL as u32,
    libc::F_ADD_SEALS as u32,
    libc::F_GET_SEALS as u32,
];

/// What every filter refuses: new processes, memory that is or becomes executable (so nothing is
/// loaded by dlopen(3) any more), commands of devices, signals by way of descriptors, other
/// processes' limits.
pub(super) const REFUSED: &[Refusal<'static>] = &[
    Refusal::If(libc::SYS_clone, 0, Mask::clear(libc::CLONE_THREAD as u32)),
    Refusal::If(libc::SYS_mprotect, 2, Mask::set(libc::PROT_EXEC as u32)),
    Refusal::If(libc::SYS_mmap, 2, Mask::set(libc::PROT_EXEC as u32)),
    Refusal::Unless(libc::SYS_prctl, 0, THREAD_CONTROLS),
    Refusal::Unless(libc::SYS_fcntl, 1, FILE_COMMANDS),
    Refusal::Command(libc::SYS_fcntl, libc::F_SETFL as u32, Mask::set(libc::O_ASYNC as u32)),
    Refusal::Unless(libc::SYS_ioctl, 1, DESCRIPTOR_COMMANDS),
    Refusal::Unless(libc::SYS_prlimit64, 0, &[0]),
];

/// Opens files for reading only.
pub const READ_ONLY: &[Refusal<'static>] = &[
    Refusal::If(libc::SYS_openat, 2, Mask::set(libc::O_WRONLY as u32)),
    Refusal::If(libc::SYS_openat, 2, Mask::set(libc::O_RDWR as u32)),
    Refusal::If(libc::SYS_openat, 2, Mask::set(libc::O_CREAT as u32)),
    Refusal::If(libc::SYS_openat, 2, Mask::set(libc::O_TRUNC as u32)),
    #[cfg(target_arch = "x86_64")]
    Refusal::If(libc::SYS_open, 1, Mask::set(libc::O_WRONLY as u32)),
    #[cfg(target_arch = "x86_64")]
    Refusal::If(libc::SYS_open, 1, Mask::set(libc::O_RDWR as u32)),
    #[cfg(target_arch = "x86_64")]
    Refusal::If(libc::SYS_open, 1, Mask::set(libc::O_CREAT as u32)),
    #[cfg(target_arch = "x86_64")]
    Refusal::If(libc::SYS_open, 1, Mask::set(libc::O_TRUNC as u32)),
];
