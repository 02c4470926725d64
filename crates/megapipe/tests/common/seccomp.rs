//! Taking io_uring away from a thread, as container run-times do.

use std::io;

/// Makes `io_uring_setup` fail with `errno` in the calling thread and what it starts from now on.
pub fn block_io_uring(errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let mut is_setup = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0);
    is_setup.k = libc::SYS_io_uring_setup as u32;
    is_setup.jf = 1;
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number),
        is_setup,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0, "no_new_privs: {}", io::Error::last_os_error());
    // SAFETY: the filter and its program outlive the call, which copies them.
    let result = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0)
    };
    assert_eq!(result, 0, "seccomp: {}", io::Error::last_os_error());
}
