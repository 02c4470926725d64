//! Installs seccomp filters that forbid system calls, as container runtimes do.

/// Makes io_uring_setup(2), io_uring_enter(2) and io_uring_register(2) fail with `errno`, for the
/// calling thread and the threads and processes that it starts from now on. This cannot be undone:
/// call it in a thread of its own.
pub(crate) fn block_io_uring(errno: i32) {
    let io_uring =
        [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    block(&io_uring, errno);
}

/// Makes the calls of these numbers fail, in the same way.
pub(crate) fn block(calls: &[libc::c_long], errno: i32) {
    let refuse = libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA);
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let number_at = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    // The numbers are the same on every architecture, so the architecture is not checked.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number_at)];
    for call in calls {
        let mut jump = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32);
        jump.jf = 1;
        program.extend([jump, statement(libc::BPF_RET | libc::BPF_K, refuse)]);
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: these arguments of prctl(2) are numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0, "PR_SET_NO_NEW_PRIVS: {}", std::io::Error::last_os_error());
    // SAFETY: the program is readable, and the kernel copies it.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    assert_eq!(result, 0, "SECCOMP_SET_MODE_FILTER: {}", std::io::Error::last_os_error());
}
