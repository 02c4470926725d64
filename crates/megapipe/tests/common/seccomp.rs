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
    let mut program = vec![load(std::mem::offset_of!(libc::seccomp_data, nr))];
    for call in calls {
        program.extend([skip_unless(*call as u32, 1), refuse(errno)]);
    }
    install(program);
}

/// Makes the calls of io_uring_register(2) with this opcode fail, in the same way.
pub(crate) fn block_register(opcode: u32, errno: i32) {
    // The opcode is the second argument, with a flag if the ring is a registered one.
    let argument = std::mem::offset_of!(libc::seccomp_data, args) + size_of::<u64>();
    let low_half = argument + if cfg!(target_endian = "big") { 4 } else { 0 };
    install(vec![
        load(std::mem::offset_of!(libc::seccomp_data, nr)),
        skip_unless(libc::SYS_io_uring_register as u32, 4),
        load(low_half),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, i32::MAX as u32),
        skip_unless(opcode, 1),
        refuse(errno),
    ]);
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(offset: usize) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32)
}

/// Skips that many statements unless the loaded word has this value.
fn skip_unless(value: u32, statements: u8) -> libc::sock_filter {
    let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    libc::sock_filter { jf: statements, ..statement(code, value) }
}

fn refuse(errno: i32) -> libc::sock_filter {
    let error = libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA);
    statement(libc::BPF_RET | libc::BPF_K, error)
}

/// Installs a filter that allows all other calls. The numbers are the same on every architecture,
/// so the architecture is not checked.
fn install(mut program: Vec<libc::sock_filter>) {
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
