//! Hooks for processes: a fork shares connections with the child; executing or starting a program
//! returns them to TCP.

use core::ffi::{c_char, c_int, c_void};
use preload::real;

use libc::pid_t;

use crate::connection::Connection;
use crate::statistics::Why;
use crate::{borrowed, settings, sys, table};

type List = *const *const c_char;

/// Called before another program replaces this one: the inherited connections become plain TCP.
fn executing() {
    handing_over(true);
}

/// Called before another program starts with descriptors of this process: they become plain TCP.
fn spawning() {
    handing_over(false);
}

fn handing_over(ends_here: bool) {
    for (fd, connection) in table::entries::<Connection>(0, c_int::MAX) {
        if !table::closes_on_exec(fd) {
            connection.leave(fd, Why::Execute);
        } else if ends_here && !borrowed::is_here() {
            connection.let_go(fd);
        }
    }
}

/// Calls fork(2) in place of a vfork(2) that the library cannot support.
#[cfg_attr(not(target_arch = "x86_64"), unsafe(export_name = "vfork"))]
unsafe extern "C" fn fork_instead() -> pid_t {
    // SAFETY: no arguments.
    unsafe { real::fork() }
}

/// vfork(2), as a direct system call: no function of this library may have a frame on the stack
/// when the child returns into the application, because the child then overwrites it.
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
        // The return address, which the kernel preserves for parent and child.
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
        for (fd, connection) in table::entries::<Connection>(0, c_int::MAX) {
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
    // SAFETY: the arguments are the application's, as all arguments of hooks.
    unsafe { real::execve(path, arguments, environment) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn execv(path: *const c_char, arguments: List) -> c_int {
    executing();
    // SAFETY: the arguments are the application's.
    unsafe { real::execv(path, arguments) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn execvp(path: *const c_char, arguments: List) -> c_int {
    executing();
    // SAFETY: the arguments are the application's.
    unsafe { real::execvp(path, arguments) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn execvpe(
    path: *const c_char,
    arguments: List,
    environment: List,
) -> c_int {
    executing();
    // SAFETY: the arguments are the application's.
    unsafe { real::execvpe(path, arguments, environment) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
    executing();
    // SAFETY: the arguments are the application's.
    unsafe { real::fexecve(fd, arguments, environment) }
}

/// Functions with any number of arguments: each prepares the connections, and then jumps to the
/// real function with registers and stack as they were.
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
    // SAFETY: the arguments are the application's.
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
    // SAFETY: the arguments are the application's.
    unsafe { real::posix_spawnp(child, path, actions, attributes, arguments, environment) }
}

/// Returns a connection to TCP whose descriptor a program of posix_spawn(3) will have, even if it
/// has close-on-exec.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    to: c_int,
) -> c_int {
    if let Some(connection) = table::get::<Connection>(fd) {
        connection.leave(fd, Why::Execute);
    }
    // SAFETY: the arguments are the application's.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn system(command: *const c_char) -> c_int {
    spawning();
    // SAFETY: the arguments are the application's.
    unsafe { real::system(command) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    spawning();
    // SAFETY: the arguments are the application's.
    unsafe { real::popen(command, mode) }
}

/// Stops upgrades: with sockets of several network namespaces in one process, addresses no longer
/// identify a connection.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    settings::stop();
    // SAFETY: the arguments are the application's.
    unsafe { real::setns(fd, kind) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_NEWNET != 0 {
        settings::stop();
    }
    // SAFETY: the call takes a number and no pointer.
    unsafe { real::unshare(flags) }
}
