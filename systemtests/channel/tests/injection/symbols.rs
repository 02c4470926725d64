//! Defines functions of the C library in this program. These definitions come before the library's
//! for every crate that is linked into the program, megapipe, io-uring and std among them.
//!
//! Each asks the [layer](crate::layer) whether it has to fail, and otherwise calls the library's
//! function, which dlsym(3) finds as the next definition.

use crate::layer::{self, Call};
use crate::memory;
use libc::{c_int, c_long, c_uint, c_void, off_t, size_t, socklen_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The library's definition of a function, found at the first call.
struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the function, whose type is `F`.
    ///
    /// # Safety
    ///
    /// `F` is a pointer to a function with the signature of the library's.
    unsafe fn function<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: `F` is a pointer to a function with this signature; the sizes are the same.
        unsafe { std::mem::transmute_copy(&self.address()) }
    }

    fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // SAFETY: the call takes no pointers. A panic would need the functions that are
            // missing.
            unsafe { libc::abort() };
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

fn fail(errno: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Defines functions that fail by returning a value and setting errno.
macro_rules! interpose {
    ($(
        $call:ident $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $failure:expr;
    )+) => {
        $(
            // SAFETY: the signature is that of the C library; callers guarantee the arguments,
            // which are passed on unchanged.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                static REAL: Real = Real::new(
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    },
                );
                if let Some(errno) = layer::admit(Call::$call) {
                    fail(errno);
                    return $failure;
                }
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                // SAFETY: the library's function has this signature.
                let real = unsafe { REAL.function::<Function>() };
                // SAFETY: the caller's arguments are valid for the library's function.
                unsafe { real($($argument),*) }
            }
        )+
    };
}

interpose! {
    EpollCreate1 epoll_create1(flags: c_int) -> c_int = -1;
    EpollCtl epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut c_void) -> c_int = -1;
    EpollWait epoll_wait(epoll: c_int, events: *mut c_void, most: c_int, pause: c_int) -> c_int
        = -1;
    Madvise madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int = -1;
    Eventfd eventfd(count: c_uint, flags: c_int) -> c_int = -1;
    Fstat fstat(fd: c_int, stat: *mut c_void) -> c_int = -1;
    Socket socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = -1;
    Bind bind(fd: c_int, address: *const c_void, bytes: socklen_t) -> c_int = -1;
    Listen listen(fd: c_int, backlog: c_int) -> c_int = -1;
    Getsockname getsockname(fd: c_int, address: *mut c_void, bytes: *mut socklen_t) -> c_int = -1;
    Getpeername getpeername(fd: c_int, address: *mut c_void, bytes: *mut socklen_t) -> c_int = -1;
    Setsockopt setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: socklen_t
    ) -> c_int = -1;
    Getsockopt getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut socklen_t
    ) -> c_int = -1;
    Accept4 accept4(fd: c_int, address: *mut c_void, bytes: *mut socklen_t, flags: c_int) -> c_int
        = -1;
    Connect connect(fd: c_int, address: *const c_void, bytes: socklen_t) -> c_int = -1;
    Shutdown shutdown(fd: c_int, how: c_int) -> c_int = -1;
    Recv recv(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t = -1;
    Recvmsg recvmsg(fd: c_int, message: *mut c_void, flags: c_int) -> ssize_t = -1;
    Send send(fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int) -> ssize_t = -1;
    Sendmsg sendmsg(fd: c_int, message: *const c_void, flags: c_int) -> ssize_t = -1;
    Read read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t = -1;
    Readv readv(fd: c_int, parts: *const c_void, count: c_int) -> ssize_t = -1;
    Preadv2 preadv2(
        fd: c_int, parts: *const c_void, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t = -1;
    Sendfile sendfile(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t = -1;
    Writev writev(fd: c_int, parts: *const c_void, count: c_int) -> ssize_t = -1;
    Pwritev pwritev(fd: c_int, parts: *const c_void, count: c_int, offset: off_t) -> ssize_t = -1;
    Pwritev2 pwritev2(
        fd: c_int, parts: *const c_void, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t = -1;
    Fsync fsync(fd: c_int) -> c_int = -1;
    Fdatasync fdatasync(fd: c_int) -> c_int = -1;
    Poll poll(descriptors: *mut c_void, count: libc::nfds_t, pause: c_int) -> c_int = -1;
}

/// Distinguishes writes to an eventfd, which cannot fail, from others.
// SAFETY: it has the name and the signature of the C library's function, which it calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    static REAL: Real = Real::new(c"write");
    let call = if layer::is_armed() && is_eventfd(fd) { Call::Ring } else { Call::Write };
    if let Some(errno) = layer::admit(call) {
        fail(errno);
        return -1;
    }
    type Function = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
    // SAFETY: the library's function has this signature.
    let real = unsafe { REAL.function::<Function>() };
    // SAFETY: the caller's arguments are valid for the library's function.
    unsafe { real(fd, buffer, bytes) }
}

/// Returns whether a descriptor is an eventfd, by /proc; allocates nothing.
fn is_eventfd(fd: c_int) -> bool {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0";
    if std::io::Write::write_fmt(&mut &mut path[14..21], format_args!("{fd}")).is_err() {
        return false;
    }
    let mut target = [0_u8; 32];
    // SAFETY: the path ends with a zero byte, and `target` has that many bytes.
    let bytes =
        unsafe { libc::readlink(path.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    bytes > 0 && target[..bytes as usize].starts_with(b"anon_inode:[eventfd]")
}

/// Fails after the descriptor is closed, as Linux does.
// SAFETY: it has the name and the signature of the C library's function, which it calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    static REAL: Real = Real::new(c"close");
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: the library's function has this signature.
    let real = unsafe { REAL.function::<Function>() };
    // SAFETY: the caller's arguments are valid for the library's function.
    let result = unsafe { real(fd) };
    match layer::admit(Call::Close) {
        Some(errno) => {
            fail(errno);
            -1
        }
        None => result,
    }
}

/// Passes the third argument on in any case, which most commands have.
// SAFETY: on Linux's ABIs a variadic call passes integers where this function expects them.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    static REAL: Real = Real::new(c"fcntl");
    let call = match command {
        libc::F_DUPFD_CLOEXEC | libc::F_DUPFD => Some(Call::Dup),
        libc::F_GETFL | libc::F_SETFL => Some(Call::Flags),
        _ => None,
    };
    if let Some(errno) = call.and_then(layer::admit) {
        fail(errno);
        return -1;
    }
    type Function = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
    // SAFETY: the library's function has this signature.
    let real = unsafe { REAL.function::<Function>() };
    // SAFETY: the caller's arguments are valid for the library's function.
    unsafe { real(fd, command, argument) }
}

/// A caller may pass fewer arguments; the kernel does not use the values in their place.
// SAFETY: on Linux's ABIs a variadic call passes integers where this function expects them.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    static REAL: Real = Real::new(c"syscall");
    if number == libc::SYS_membarrier && layer::is_armed() {
        // The call waits some milliseconds for other CPUs, which do nothing in a scenario.
        return 0;
    }
    let call = match number {
        libc::SYS_io_uring_setup => Some(Call::IoUringSetup),
        libc::SYS_io_uring_register => Some(Call::IoUringRegister),
        libc::SYS_io_uring_enter => Some(Call::IoUringEnter),
        libc::SYS_epoll_pwait2 => Some(Call::EpollPwait2),
        _ => None,
    };
    if let Some(errno) = call.and_then(layer::admit) {
        fail(errno);
        return -1;
    }
    type Function = unsafe extern "C" fn(c_long, ...) -> c_long;
    // SAFETY: the library's function has this signature.
    let real = unsafe { REAL.function::<Function>() };
    // SAFETY: the caller's arguments are valid for the library's function.
    unsafe { real(number, a, b, c, d, e, f) }
}

/// Skips the channel's pauses: they wait for other CPUs and peers, none of which does anything in a
/// scenario.
// SAFETY: it has the name and the signature of the C library's function, which it calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    pause: *const c_void,
    left: *mut c_void,
) -> c_int {
    static REAL: Real = Real::new(c"clock_nanosleep");
    if layer::is_armed() {
        return 0;
    }
    type Function = unsafe extern "C" fn(c_int, c_int, *const c_void, *mut c_void) -> c_int;
    // SAFETY: the library's function has this signature.
    let real = unsafe { REAL.function::<Function>() };
    // SAFETY: the caller's arguments are valid for the library's function.
    unsafe { real(clock, flags, pause, left) }
}

/// Maps memory; the [memory check](crate::memory) records what armed threads map.
// SAFETY: it has the name and the signature of the C library's function, which it calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    static REAL: Real = Real::new(c"mmap");
    if let Some(errno) = layer::admit(Call::Mmap) {
        fail(errno);
        return libc::MAP_FAILED;
    }
    type Function =
        unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    // SAFETY: the library's function has this signature.
    let real = unsafe { REAL.function::<Function>() };
    // SAFETY: the caller's arguments are valid for the library's function.
    let mapped = unsafe { real(address, bytes, protection, flags, fd, offset) };
    if mapped != libc::MAP_FAILED && layer::is_armed() {
        memory::note_mapping(mapped.cast(), bytes, flags & libc::MAP_ANONYMOUS != 0);
    }
    mapped
}

/// Unmaps memory, but keeps anonymous memory of the channel to detect writes to it.
// SAFETY: it has the name and the signature of the C library's function, which it calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    static REAL: Real = Real::new(c"munmap");
    if memory::note_unmapping(address.cast()) {
        return 0;
    }
    type Function = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
    // SAFETY: the library's function has this signature.
    let real = unsafe { REAL.function::<Function>() };
    // SAFETY: the caller's arguments are valid for the library's function.
    unsafe { real(address, bytes) }
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// The function and the argument of a thread of the channel.
struct Errand {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn run_armed(errand: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` below made it by `Box::into_raw`, for this thread alone.
    let errand = unsafe { Box::from_raw(errand.cast::<Errand>()) };
    layer::arm_thread();
    (errand.start)(errand.argument)
}

/// Creates a thread; one that an armed thread creates is armed.
// SAFETY: it has the name and the signature of the C library's function, which it calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const c_void,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    static REAL: Real = Real::new(c"pthread_create");
    if let Some(errno) = layer::admit(Call::PthreadCreate) {
        return errno;
    }
    type Function =
        unsafe extern "C" fn(*mut libc::pthread_t, *const c_void, Start, *mut c_void) -> c_int;
    // SAFETY: the library's function has this signature.
    let real = unsafe { REAL.function::<Function>() };
    if !layer::is_armed() {
        // SAFETY: the caller's arguments are valid for the library's function.
        return unsafe { real(thread, attributes, start, argument) };
    }
    let errand = Box::into_raw(Box::new(Errand { start, argument }));
    // SAFETY: the caller's arguments are valid; the errand lives until the thread takes it.
    let error = unsafe { real(thread, attributes, run_armed, errand.cast()) };
    if error != 0 {
        // SAFETY: no thread was created that would take the errand.
        drop(unsafe { Box::from_raw(errand) });
    }
    error
}
