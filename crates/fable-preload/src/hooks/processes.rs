//! Processes: forking shares a connection, executing ends our knowledge of it.

use core::ffi::{c_char, c_int, c_void};
use preload::real;

use libc::pid_t;

use crate::statistics::Why;
use crate::{borrowed, settings, sys, table};

type List = *const *const c_char;

/// Before another program takes this one's place: it finds plain TCP.
fn executing() {
    handing_over(true);
}

/// Before another program starts with descriptors of this one: it finds plain TCP.
fn spawning() {
    handing_over(false);
}

fn handing_over(ends_here: bool) {
    for (fd, connection) in table::connections(0, c_int::MAX) {
        if !table::closes_on_exec(fd) {
            connection.leave(fd, Why::Execute);
        } else if ends_here && !borrowed::is_here() {
            connection.let_go(fd);
        }
    }
}

/// Where vfork(2) cannot be followed, fork(2) may stand for it.
#[cfg_attr(not(target_arch = "x86_64"), unsafe(export_name = "vfork"))]
unsafe extern "C" fn fork_instead() -> pid_t {
    // SAFETY: no arguments.
    unsafe { real::fork() }
}

/// vfork(2) in front of the kernel itself: no function of this library may have a frame on the
/// stack when the child returns into the application, because the child then overwrites it.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {lend}",
        "add rsp, 8",
        "test eax, eax",
        "jz {fork_instead}",
        // The address to return to, which the kernel keeps for both.
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test eax, eax",
        "jz 2f",
        "mov edi, eax",
        "sub rsp, 8",
        "call {take_back}",
        "add rsp, 8",
        "2:",
        "ret",
        lend = sym borrowed::lend,
        fork_instead = sym fork_instead,
        take_back = sym take_back,
        number = const libc::SYS_vfork,
    )
}

#[cfg(target_arch = "x86_64")]
extern "C" fn take_back(result: c_int) -> c_int {
    if borrowed::take_back() {
        for (fd, connection) in table::connections(0, c_int::MAX) {
            if connection.own().has_left() {
                connection.become_plain(fd);
            }
        }
    }
    if result < 0 {
        sys::set_errno(-result);
        return -1;
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: List,
    environment: List,
) -> c_int {
    executing();
    // SAFETY: the arguments are the application's, as in all functions here.
    unsafe { real::execve(path, arguments, environment) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn execv(path: *const c_char, arguments: List) -> c_int {
    executing();
    // SAFETY: as above.
    unsafe { real::execv(path, arguments) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn execvp(path: *const c_char, arguments: List) -> c_int {
    executing();
    // SAFETY: as above.
    unsafe { real::execvp(path, arguments) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn execvpe(
    path: *const c_char,
    arguments: List,
    environment: List,
) -> c_int {
    executing();
    // SAFETY: as above.
    unsafe { real::execvpe(path, arguments, environment) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
    executing();
    // SAFETY: as above.
    unsafe { real::fexecve(fd, arguments, environment) }
}

/// Functions with any number of arguments: what is due is done, and the next definition is entered
/// with registers and stack as they were.
#[cfg(target_arch = "x86_64")]
mod lists {
    use preload::real::Symbol;

    extern "C" fn before(which: u64) -> usize {
        static NEXT: [Symbol; 3] =
            [Symbol::new(c"execl"), Symbol::new(c"execlp"), Symbol::new(c"execle")];
        super::executing();
        NEXT[which as usize].address()
    }

    macro_rules! enter {
        ($name:ident, $which:literal) => {
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    concat!("mov edi, ", $which),
                    "call {before}",
                    "mov r11, rax",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp r11",
                    before = sym before,
                )
            }
        };
    }

    enter!(execl, "0");
    enter!(execlp, "1");
    enter!(execle, "2");
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_spawn(
    child: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    spawning();
    // SAFETY: as above.
    unsafe { real::posix_spawn(child, path, actions, attributes, arguments, environment) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_spawnp(
    child: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    spawning();
    // SAFETY: as above.
    unsafe { real::posix_spawnp(child, path, actions, attributes, arguments, environment) }
}

/// Called before posix_spawn(3) for a descriptor that the new program is to have: even one that
/// would be closed on executing.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    to: c_int,
) -> c_int {
    if let Some(connection) = table::connection(fd) {
        connection.leave(fd, Why::Execute);
    }
    // SAFETY: as above.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn system(command: *const c_char) -> c_int {
    spawning();
    // SAFETY: as above.
    unsafe { real::system(command) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    spawning();
    // SAFETY: as above.
    unsafe { real::popen(command, mode) }
}

/// Sockets of several network namespaces in one process: addresses no longer tell connections
/// apart.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    settings::stop();
    // SAFETY: as above.
    unsafe { real::setns(fd, kind) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_NEWNET != 0 {
        settings::stop();
    }
    // SAFETY: as above.
    unsafe { real::unshare(flags) }
}
