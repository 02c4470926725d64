//! Wrappers for kernel interfaces that several crates need and the standard library does not offer.
//! They use [`rustix`] or, if that has no such call, the C library.
//!
//! # Modules
//!
//! - [`capabilities`]: the capabilities that a thread keeps.
//! - [`clock`]: the kernel's clocks in nanoseconds.
//! - [`cpus`]: the CPUs of the machine, and those that a thread may run on.
//! - [`device`]: requests about a network device.
//! - [`environment`]: environment variables, ignored under more rights than the user's.
//! - [`limits`]: the limit of open files.
//! - [`name_services`]: the code that looks names of hosts up, loaded before a filter.
//! - [`namespace`]: network namespaces without a name.
//! - [`netlink`]: requests to the kernel about networks, and its answers.
//! - [`output`]: messages on standard error and standard output.
//! - [`output_file`]: files for results and logs, by names that a user gives.
//! - [`random`]: random numbers, also where getrandom(2) is refused.
//! - [`seccomp`]: filters of the system calls of threads.
//! - [`signals`]: signals that threads block and wait for.
//! - [`socket_address`]: IP addresses and ports in the kernel's format.
//! - [`user`]: users of the system, and the change of a process to another one.
//!
//! Only the clocks are for the data path. The crate `preload` does not use this crate: it calls the
//! functions of the C library behind its own hooks.

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!(
    "MegaPipe needs Linux with glibc and 64 bits; use a target such as x86_64-unknown-linux-gnu"
);

/// Where counters begin that wrap in the course of time: at 0 or, with debug assertions, three
/// before the wrap of any integer that it is cast to. So tests reach what else happens after years.
pub const START: u64 = if cfg!(debug_assertions) { u64::MAX - 2 } else { 0 };

/// Returns whether a system call that some kernels lack is not available: they, and filters that do
/// not know it, refuse it with one of these numbers. The caller falls back to an older call, which
/// reports what is wrong with arguments.
pub fn is_refusal(errno: i32) -> bool {
    matches!(errno, libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL)
}

pub mod capabilities;
pub mod clock;
pub mod cpus;
pub mod device;
pub mod environment;
pub mod limits;
pub mod name_services;
pub mod namespace;
pub mod netlink;
pub mod output;
pub mod output_file;
pub mod random;
pub mod seccomp;
pub mod signals;
pub mod socket_address;
pub mod user;
