//! Implements the hooks for streams of the C library (stdio(3)) on sockets of the stack. The C
//! library reads and writes descriptors without calling this library. A stream of a socket
//! therefore gets its own functions (fopencookie(3)), and output to a descriptor is formatted here
//! first.

use super::Library;
use crate::report;
use crate::table::{self, Kind};
use core::ffi::{c_char, c_int, c_void};
use libc::{size_t, ssize_t};
use preload::errno::set_errno;
use preload::hooks::{descriptors, transfers};
use preload::real::Symbol;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut c_void;
    fn __vasprintf_chk(
        text: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        list: *mut c_void,
    ) -> c_int;
}

/// The streams of sockets, by address, and their numbers.
static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());
/// The number of these streams, which is zero in most programs.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn streams(change: impl FnOnce(&mut Vec<(usize, c_int)>)) {
    let mut all = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut all);
    COUNT.store(all.len(), Ordering::Release);
}

unsafe extern "C" fn read_cookie(cookie: *mut c_void, to: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the C library passes a valid buffer.
    unsafe { transfers::read::<Library>(cookie as usize as c_int, to.cast(), length) }
}

/// Writes to the socket; returns 0 on failure, as fopencookie(3) requires.
unsafe extern "C" fn write_cookie(
    cookie: *mut c_void,
    from: *const c_char,
    length: size_t,
) -> ssize_t {
    // SAFETY: the C library passes a valid buffer.
    unsafe { transfers::write::<Library>(cookie as usize as c_int, from.cast(), length) }.max(0)
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    streams(|all| all.retain(|(_, other)| *other != fd));
    // SAFETY: close takes only a number.
    unsafe { descriptors::close::<Library>(fd) }
}

/// Implements fdopen(3) for a socket; `None`: the descriptor is not a socket of the stack.
///
/// # Safety
/// As fdopen(3).
pub(super) unsafe fn open(fd: c_int, mode: *const c_char) -> Option<*mut c_void> {
    match table::kind(fd) {
        Kind::Inherited => {
            report::note(format_args!("fdopen(3) of a connection of the parent's: EOPNOTSUPP"));
            set_errno(libc::EOPNOTSUPP);
            Some(ptr::null_mut())
        }
        // A fresh socket may become the stack's later, so the functions check each time.
        Kind::Socket(_) | Kind::Fresh => {
            let functions = Functions {
                read: read_cookie,
                write: write_cookie,
                seek: None,
                close: close_cookie,
            };
            // SAFETY: the application's string; the functions have the signatures of the manual
            // page.
            let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
            if !stream.is_null() {
                streams(|all| all.push((stream as usize, fd)));
            }
            Some(stream)
        }
        _ => None,
    }
}

/// Returns the descriptor of a socket's stream.
fn number_of(stream: *mut c_void) -> Option<c_int> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let all = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|(other, _)| *other == stream as usize).map(|(_, fd)| *fd)
}

macro_rules! numbers_of_streams {
    ($($name:ident = $symbol:literal;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(stream: *mut c_void) -> c_int {
            static NEXT: Symbol = Symbol::new($symbol);
            if let Some(fd) = number_of(stream) {
                return fd;
            }
            // SAFETY: the C library defines this name with this signature; the stream is the
            // application's, valid as the manual page requires.
            unsafe {
                let next: unsafe extern "C" fn(*mut c_void) -> c_int =
                    core::mem::transmute(NEXT.address());
                next(stream)
            }
        }
    )*};
}

numbers_of_streams! {
    fileno = c"fileno";
    fileno_unlocked = c"fileno_unlocked";
}

/// Formats the arguments, and writes the whole text.
///
/// # Safety
/// The format is valid as vdprintf(3) requires. `list` is the `va_list` of the application, which
/// is passed by its address on the architectures that the library supports.
unsafe fn write_formatted(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    let mut text: *mut c_char = ptr::null_mut();
    // SAFETY: the caller guarantees this.
    let length = unsafe { __vasprintf_chk(&raw mut text, flag, format, list) };
    let Ok(length) = usize::try_from(length) else { return -1 };
    let mut done = 0;
    while done < length {
        // SAFETY: the text has `length` bytes.
        let bytes =
            unsafe { transfers::write::<Library>(fd, text.add(done).cast(), length - done) };
        let Ok(bytes) = usize::try_from(bytes) else { break };
        done += bytes;
    }
    // SAFETY: the C library has allocated the text.
    unsafe { libc::free(text.cast()) };
    if done == length { length as c_int } else { -1 }
}

/// Writes formatted output. If `flag` is greater than 0, the C library refuses formats that write
/// to memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    static NEXT: Symbol = Symbol::new(c"__vdprintf_chk");
    if matches!(table::kind(fd), Kind::Socket(_) | Kind::Inherited) {
        // SAFETY: the application's arguments, valid as the manual page requires.
        return unsafe { write_formatted(fd, flag, format, list) };
    }
    // SAFETY: the C library defines this name with this signature.
    let next: unsafe extern "C" fn(c_int, c_int, *const c_char, *mut c_void) -> c_int =
        unsafe { core::mem::transmute(NEXT.address()) };
    // SAFETY: the application's arguments, valid as the manual page requires.
    unsafe { next(fd, flag, format, list) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    // SAFETY: the application's arguments, valid as the manual page requires.
    unsafe { __vdprintf_chk(fd, 0, format, list) }
}

/// Variadic functions: each builds a `va_list` from registers and stack (System V ABI for x86-64,
/// section 3.5.7), and passes it on.
#[cfg(target_arch = "x86_64")]
mod lists {
    macro_rules! enter {
        ($name:ident, $named:literal, $list:literal, $next:ident) => {
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "sub rsp, 216",
                    // The registers with the values at the function's entry.
                    "mov [rsp + 32], rdi",
                    "mov [rsp + 40], rsi",
                    "mov [rsp + 48], rdx",
                    "mov [rsp + 56], rcx",
                    "mov [rsp + 64], r8",
                    "mov [rsp + 72], r9",
                    "test al, al",
                    "je 2f",
                    "movaps [rsp + 80], xmm0",
                    "movaps [rsp + 96], xmm1",
                    "movaps [rsp + 112], xmm2",
                    "movaps [rsp + 128], xmm3",
                    "movaps [rsp + 144], xmm4",
                    "movaps [rsp + 160], xmm5",
                    "movaps [rsp + 176], xmm6",
                    "movaps [rsp + 192], xmm7",
                    "2:",
                    // The list: offsets of the used registers of both kinds, the stack, the
                    // registers.
                    concat!("mov dword ptr [rsp], 8 * ", $named),
                    "mov dword ptr [rsp + 4], 48",
                    "lea rax, [rsp + 224]",
                    "mov [rsp + 8], rax",
                    "lea rax, [rsp + 32]",
                    "mov [rsp + 16], rax",
                    concat!("mov ", $list, ", rsp"),
                    "call {next}",
                    "add rsp, 216",
                    "ret",
                    next = sym super::$next,
                )
            }
        };
    }

    enter!(dprintf, "2", "rdx", vdprintf);
    enter!(__dprintf_chk, "3", "rcx", __vdprintf_chk);
}
