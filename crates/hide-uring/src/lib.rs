//! A preload library that hides single features of io_uring from a program: the running kernel
//! then answers as one that lacks them.
//!
//! ```sh
//! LD_PRELOAD=libhide_uring.so HIDE_URING='op=27 ioprio&2' iobench doctor    # no multishot recv
//! ```
//!
//! `HIDE_URING` holds rules, separated by semicolons; see `Rules`. The library stands in front of
//! syscall(2) and mmap(2) of the C library. It learns where a ring's requests lie when the program
//! maps them, and gives each request that a rule hides an opcode or a command that no kernel knows
//! before the program hands it over, so that the kernel itself answers `EINVAL` or `EOPNOTSUPP`.
//! Register calls and set-up flags fail with `EINVAL` at once, and feature bits are cleared in what
//! io_uring_setup(2) returns.
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

/// The rules of the environment; a mistake in them ends the program.
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

/// Reads the rules when the library is loaded: nginx, for one, empties the environment later.
#[unsafe(link_section = ".init_array")]
#[used]
static AT_START: extern "C" fn() = {
    extern "C" fn read_rules() {
        rules();
    }
    read_rules
};

fn refuse() -> c_long {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = libc::EINVAL };
    -1
}

/// The C library's syscall(2). A caller may pass fewer arguments; what is passed on in place of the
/// others is not used.
///
/// # Safety
/// As syscall(2).
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
    // SAFETY: as the caller promises.
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
                // SAFETY: the kernel has just filled this structure in, of which there is one.
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

/// The C library's mmap(2).
///
/// # Safety
/// As mmap(2).
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
    // SAFETY: as the caller promises.
    let mapped = unsafe { next(address, bytes, protection, flags, fd, offset) };
    if mapped != libc::MAP_FAILED && flags & libc::MAP_ANONYMOUS == 0 {
        rings().mapped(fd, offset, mapped.cast());
    }
    mapped
}
