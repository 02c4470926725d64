//! Hides single features of io_uring from a program, by a preload library. The program then runs as
//! on a kernel that lacks these features.
//!
//! ```sh
//! LD_PRELOAD=libhide_uring.so HIDE_URING='op=27 ioprio&2' iobench doctor    # no multishot recv
//! ```
//!
//! # Modules
//!
//! - `rules`: parses `HIDE_URING`, and decides which requests, calls and flags are hidden.
//! - `rings`: tracks the rings of the program and where their requests are in memory.
//!
//! `HIDE_URING` holds rules, separated by semicolons; see `Rules`. The library interposes
//! syscall(2) and mmap(2) of the C library. It learns where a ring's requests are when the program
//! maps them. In each request that a rule hides it writes an opcode or a command that no kernel
//! supports, before the program hands the request over, so that the kernel itself answers `EINVAL`
//! or `EOPNOTSUPP`. Register calls and set-up flags fail with `EINVAL` at once, and feature bits
//! are cleared in the result of io_uring_setup(2).
//!
//! It sees only rings that are entered through the C library's `syscall`, as the crate `io-uring`
//! does, and whose requests are taken in their order in memory.

mod rings;
mod rules;

use preload::real;
use rules::Rules;

use core::ffi::{c_int, c_long, c_void};
use libc::{off_t, size_t};
use rings::Rings;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Flag of io_uring_enter(2): the descriptor is the index of a registered ring.
const ENTER_REGISTERED_RING: c_long = 1 << 4;
/// Register call that registers rings.
const REGISTER_RING_FDS: c_long = 20;

static RINGS: Mutex<Rings> = Mutex::new(Rings::new());

fn rings() -> MutexGuard<'static, Rings> {
    RINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the rules of the environment; a mistake in them ends the program.
fn rules() -> &'static Rules {
    static RULES: OnceLock<Rules> = OnceLock::new();
    RULES.get_or_init(|| {
        let text = std::env::var("HIDE_URING").unwrap_or_default();
        text.parse().unwrap_or_else(|error| {
            eprintln!("hide_uring: HIDE_URING: {error}");
            std::process::exit(2);
        })
    })
}

/// Reads the rules when the library is loaded, because some programs, such as nginx, empty the
/// environment later.
#[unsafe(link_section = ".init_array")]
#[used]
static AT_START: extern "C" fn() = {
    extern "C" fn read_rules() {
        rules();
    }
    read_rules
};

fn refuse() -> c_long {
    // SAFETY: the location is the calling thread's own `errno`.
    unsafe { *libc::__errno_location() = libc::EINVAL };
    -1
}

/// Replaces the C library's syscall(2). A caller may pass fewer arguments; the kernel does not use
/// the values in their place.
///
/// # Safety
/// The conditions of syscall(2).
// SAFETY: on Linux's ABIs a variadic call passes integers where this function expects them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the caller guarantees the conditions of syscall(2).
    let call = || unsafe {
        real::syscall(
            number, a as usize, b as usize, c as usize, d as usize, e as usize, f as usize,
        )
    };
    match number {
        libc::SYS_io_uring_setup => {
            // SAFETY: the second argument of io_uring_setup(2) is its parameters.
            let parameters = unsafe { &mut *(b as *mut rings::Parameters) };
            if rules().hide_set_up(parameters.flags) {
                return refuse();
            }
            let fd = call();
            if fd >= 0 {
                parameters.features &= !rules().hidden_features();
                rings().created(fd as c_int, parameters);
            }
            fd
        }
        libc::SYS_io_uring_register => {
            if rules().hide_register(b as u32) {
                return refuse();
            }
            let result = call();
            if b == REGISTER_RING_FDS && result == 1 {
                // SAFETY: the argument points to one structure, which the kernel has just filled
                // in.
                let update = unsafe { *(c as *const rings::ResourceUpdate) };
                rings().registered(update.data as c_int, update.offset);
            }
            result
        }
        libc::SYS_io_uring_enter => {
            let is_index = d & ENTER_REGISTERED_RING != 0;
            rings().for_each_queued(a as c_int, is_index, |request| rules().apply(request));
            call()
        }
        _ => call(),
    }
}

/// Replaces the C library's mmap(2).
///
/// # Safety
/// The conditions of mmap(2).
// SAFETY: the signature is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    type Mmap =
        unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    static NEXT: real::Symbol = real::Symbol::new(c"mmap");
    // SAFETY: the C library defines this name with this signature.
    let next = unsafe { core::mem::transmute::<usize, Mmap>(NEXT.address()) };
    // SAFETY: the caller guarantees the conditions of mmap(2).
    let mapped = unsafe { next(address, bytes, protection, flags, fd, offset) };
    if mapped != libc::MAP_FAILED && flags & libc::MAP_ANONYMOUS == 0 {
        rings().mapped(fd, offset, mapped.cast());
    }
    mapped
}
