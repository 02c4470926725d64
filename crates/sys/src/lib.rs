//! Wrappers for kernel interfaces that several crates need and the standard library does not offer.
//! They use [`rustix`] or, if that has no such call, the C library.
//!
//! # Modules
//!
//! - [`capabilities`]: the capabilities that a thread keeps.
//! - [`clock`]: the kernel's clocks in nanoseconds.
//! - [`cpus`]: the CPUs that a thread may run on.
//! - [`device`]: requests about a network device.
//! - [`limits`]: the limit of open files.
//! - [`namespace`]: network namespaces without a name.
//! - [`netlink`]: requests to the kernel about networks, and its answers.
//! - [`seccomp`]: filters of the system calls of threads.
//! - [`signals`]: signals that threads block and wait for.
//! - [`user`]: users of the system, and the change of a process to another one.
//!
//! Only the clocks are for the data path. The crate `preload` does not use this crate: it calls the
//! functions of the C library behind its own hooks.

pub mod capabilities;
pub mod clock;
pub mod cpus;
pub mod device;
pub mod limits;
pub mod namespace;
pub mod netlink;
pub mod seccomp;
pub mod signals;
pub mod user;
