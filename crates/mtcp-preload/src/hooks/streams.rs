//! Streams of the C library (stdio(3)) on sockets. The C library reads and writes numbers without
//! our knowledge; so a stream of a socket gets functions of its own (fopencookie(3)), and formatted
//! output to a number is formatted first.

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
/// How many there are: most programs have none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn streams(change: impl FnOnce(&mut Vec<(usize, c_int)>)) {
    let mut all = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut all);
    COUNT.store(all.len(), Ordering::Release);
}

unsafe extern "C" fn read_cookie(cookie: *mut c_void, to: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { transfers::read::<Library>(cookie as usize as c_int, to.cast(), length) }
}

/// 0 is how such a function fails.
unsafe extern "C" fn write_cookie(
    cookie: *mut c_void,
    from: *const c_char,
    length: size_t,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { transfers::write::<Library>(cookie as usize as c_int, from.cast(), length) }.max(0)
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    streams(|all| all.retain(|(_, other)| *other != fd));
    // SAFETY: a plain number.
    unsafe { descriptors::close::<Library>(fd) }
}

/// Does what fdopen(3) does for a socket; `None`: it is none.
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
        // Whose the second one will be, is not known yet; the functions ask each time.
        Kind::Socket(_) | Kind::Fresh => {
            let functions = Functions {
                read: read_cookie,
                write: write_cookie,
                seek: None,
                close: close_cookie,
            };
            // SAFETY: the application's string; the functions are those of the manual.
            let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
            if !stream.is_null() {
                streams(|all| all.push((stream as usize, fd)));
            }
            Some(stream)
        }
        _ => None,
    }
}

/// The number of a socket's stream.
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
            // SAFETY: the C library defines this name with this signature; the application's
            // stream.
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

/// Formats, and writes all of it.
///
/// # Safety
/// As vdprintf(3) asks; `list` is the `va_list` of the application, which is passed by its address
/// on the processors that the library is for.
unsafe fn write_formatted(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    let mut text: *mut c_char = ptr::null_mut();
    // SAFETY: promised by the caller.
    let length = unsafe { __vasprintf_chk(&raw mut text, flag, format, list) };
    let Ok(length) = usize::try_from(length) else { return -1 };
    let mut done = 0;
    while done < length {
        // SAFETY: the text has so many bytes.
        let bytes =
            unsafe { transfers::write::<Library>(fd, text.add(done).cast(), length - done) };
        let Ok(bytes) = usize::try_from(bytes) else { break };
        done += bytes;
    }
    // SAFETY: the C library has allocated the text.
    unsafe { libc::free(text.cast()) };
    if done == length { length as c_int } else { -1 }
}

/// `flag` is greater than 0 if the C library shall refuse formats that write to memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    static NEXT: Symbol = Symbol::new(c"__vdprintf_chk");
    if matches!(table::kind(fd), Kind::Socket(_) | Kind::Inherited) {
        // SAFETY: the application's arguments.
        return unsafe { write_formatted(fd, flag, format, list) };
    }
    // SAFETY: the C library defines this name with this signature.
    let next: unsafe extern "C" fn(c_int, c_int, *const c_char, *mut c_void) -> c_int =
        unsafe { core::mem::transmute(NEXT.address()) };
    // SAFETY: the application's arguments.
    unsafe { next(fd, flag, format, list) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { __vdprintf_chk(fd, 0, format, list) }
}

/// Functions with any number of arguments: a `va_list` is made of registers and stack (System V
/// ABI for x86-64, section 3.5.7), and handed on.
#[cfg(target_arch = "x86_64")]
mod lists {
    macro_rules! enter {
        ($name:ident, $named:literal, $list:literal, $next:ident) => {
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "sub rsp, 216",
                    // The registers, as the function found them.
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
                    // The list: what was used of both kinds of registers, the stack, the registers.
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
