//! Implements the hooks for functions that create descriptors. If the table still has an entry for
//! a new number, its old file was closed without calling this library (by a direct system call, or
//! inside the C library). The entry ends now, so it is never taken for the new descriptor.

use super::descriptors;
use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{mode_t, sigset_t};
use preload::real::Symbol;

/// Records one new number; a negative one is ignored.
fn one(fd: c_int) -> c_int {
    descriptors::arrived(fd);
    fd
}

/// Records two new numbers, if the call has succeeded.
///
/// # Safety
/// After success, `ends` points to two descriptors.
unsafe fn two(result: c_int, ends: *const c_int) -> c_int {
    if result == 0 {
        for index in 0..2 {
            // SAFETY: the caller guarantees this.
            descriptors::arrived(unsafe { ends.add(index).read() });
        }
    }
    result
}

/// Records the descriptor of a stream of the C library.
fn of_stream(stream: *mut c_void) -> *mut c_void {
    if !stream.is_null() {
        // SAFETY: the C library has just created the stream.
        descriptors::arrived(unsafe { libc::fileno(stream.cast()) });
    }
    stream
}

fn of_directory(directory: *mut c_void) -> *mut c_void {
    if !directory.is_null() {
        // SAFETY: the C library has just created the directory stream.
        descriptors::arrived(unsafe { libc::dirfd(directory.cast()) });
    }
    directory
}

macro_rules! makers {
    ($($name:ident = $symbol:literal ($($argument:ident: $kind:ty),*) -> $result:ty, $then:expr;)*)
    => {$(
        // Since Rust 1.99 the lint wants `open` to be variadic, as stable Rust cannot define it.
        #[allow(unknown_lints, invalid_runtime_symbol_definitions)]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            static NEXT: Symbol = Symbol::new($symbol);
            // SAFETY: the C library defines this name with this signature, or a function that
            // fails stands for it; the arguments are the application's.
            let result = unsafe {
                let next: unsafe extern "C" fn($($kind),*) -> $result =
                    core::mem::transmute(NEXT.address());
                next($($argument),*)
            };
            let then: fn($result) -> $result = $then;
            then(result)
        }
    )*};
}

// Variadic functions get one more argument, as large as a register.
makers! {
    open = c"open" (path: *const c_char, flags: c_int, mode: c_uint) -> c_int, one;
    open64 = c"open64" (path: *const c_char, flags: c_int, mode: c_uint) -> c_int, one;
    __open_2 = c"__open_2" (path: *const c_char, flags: c_int) -> c_int, one;
    __open64_2 = c"__open64_2" (path: *const c_char, flags: c_int) -> c_int, one;
    openat = c"openat" (at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, one;
    openat64 = c"openat64"
        (at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, one;
    __openat_2 = c"__openat_2" (at: c_int, path: *const c_char, flags: c_int) -> c_int, one;
    __openat64_2 = c"__openat64_2" (at: c_int, path: *const c_char, flags: c_int) -> c_int, one;
    creat = c"creat" (path: *const c_char, mode: mode_t) -> c_int, one;
    creat64 = c"creat64" (path: *const c_char, mode: mode_t) -> c_int, one;
    mkstemp = c"mkstemp" (path: *mut c_char) -> c_int, one;
    mkstemp64 = c"mkstemp64" (path: *mut c_char) -> c_int, one;
    mkostemp = c"mkostemp" (path: *mut c_char, flags: c_int) -> c_int, one;
    mkostemp64 = c"mkostemp64" (path: *mut c_char, flags: c_int) -> c_int, one;
    memfd_create = c"memfd_create" (name: *const c_char, flags: c_uint) -> c_int, one;
    eventfd = c"eventfd" (count: c_uint, flags: c_int) -> c_int, one;
    timerfd_create = c"timerfd_create" (clock: c_int, flags: c_int) -> c_int, one;
    inotify_init = c"inotify_init" () -> c_int, one;
    inotify_init1 = c"inotify_init1" (flags: c_int) -> c_int, one;
    fopen = c"fopen" (path: *const c_char, mode: *const c_char) -> *mut c_void, of_stream;
    fopen64 = c"fopen64" (path: *const c_char, mode: *const c_char) -> *mut c_void, of_stream;
    freopen = c"freopen" (path: *const c_char, mode: *const c_char, stream: *mut c_void)
        -> *mut c_void, of_stream;
    freopen64 = c"freopen64" (path: *const c_char, mode: *const c_char, stream: *mut c_void)
        -> *mut c_void, of_stream;
    tmpfile = c"tmpfile" () -> *mut c_void, of_stream;
    tmpfile64 = c"tmpfile64" () -> *mut c_void, of_stream;
    popen = c"popen" (command: *const c_char, mode: *const c_char) -> *mut c_void, of_stream;
    opendir = c"opendir" (path: *const c_char) -> *mut c_void, of_directory;
}

macro_rules! makers_of_two {
    ($($name:ident = $symbol:literal ($($argument:ident: $kind:ty),*) $ends:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            static NEXT: Symbol = Symbol::new($symbol);
            // SAFETY: the C library defines this name with this signature, or a function that fails
            // stands for it; the call has written two numbers if it succeeded.
            unsafe {
                let next: unsafe extern "C" fn($($kind),*) -> c_int =
                    core::mem::transmute(NEXT.address());
                two(next($($argument),*), $ends)
            }
        }
    )*};
}

makers_of_two! {
    pipe = c"pipe" (ends: *mut c_int) ends;
    pipe2 = c"pipe2" (ends: *mut c_int, flags: c_int) ends;
    socketpair = c"socketpair" (family: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) ends;
}

/// Records the number only if the call creates one, that is, if `fd` is negative.
#[unsafe(no_mangle)]
unsafe extern "C" fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int {
    static NEXT: Symbol = Symbol::new(c"signalfd");
    // SAFETY: the C library defines this name with this signature; the arguments are the
    // application's.
    let result = unsafe {
        let next: unsafe extern "C" fn(c_int, *const sigset_t, c_int) -> c_int =
            core::mem::transmute(NEXT.address());
        next(fd, mask, flags)
    };
    if fd < 0 { one(result) } else { result }
}
