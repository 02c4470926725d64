//! Implements a preload library that runs TCP connections of unmodified programs over the
//! user-level stack of `mtcp`.
//!
//! The library interposes functions of the C library (LD_PRELOAD, as `mtcp run` sets it). A socket
//! begins as the kernel's. It becomes the stack's when it is bound to an address of the stack,
//! listens on all addresses, or connects to where the stack's interface leads. From then on every
//! call on its number goes to the stack. The kernel socket behind it keeps the number; it is never
//! connected, but a listener on all addresses listens there too (`listener`). The invariants:
//!
//! - A call on a descriptor that is not the stack's costs one read of the table (`table`) and goes
//!   to the kernel.
//! - One lock (`state`) protects the stack's sockets. It is never held while sleeping. Calls of the
//!   stack itself use descriptors that are not the stack's, so they never take the lock again.
//! - A thread that sleeps (`wait`) is on a list; a thread that has used the stack wakes all threads
//!   on the list, so no event is lost between threads.
//! - A call that the library does not support fails with an errno: the kernel socket behind the
//!   number answers `ENOTCONN`, and never with data.
//!
//! The stack has a thread of its own (mTCP, pairwise threading). A program that was not written for
//! the stack computes, sleeps and reads files for any time. In the meantime its connections must be
//! acknowledged, retransmitted and closed. `mtcp run --complete` does not use the thread, for
//! programs that wait often enough.
//!
//! # Modules
//!
//! - `hooks`: the functions of the C library that the library interposes.
//! - `table`: the state of each descriptor. `state`: the stack of the process, and its lock.
//! - `stream`, `vectors`: reading and writing, and the application's buffers.
//! - `epoll`, `poll`: epoll(7) and poll(2) over sockets of the stack and descriptors of the kernel.
//! - `wait`, `waker`, `signals`: sleeping, waking threads, signals that end a sleep.
//! - `listener`, `adopt`, `options`, `shutdowns`: sockets of the kernel that become the stack's.
//! - `process`, `fork`, `peer_reset`: forked children, and connections of a killed program.
//! - `settings`: the environment that `mtcp run` sets. `report`, `failure`: messages to the user.
//! - `address`, `outcome`: C's addresses, results and errno.

mod address;
mod adopt;
mod epoll;
mod failure;
mod fork;
mod hooks;
mod listener;
mod options;
mod outcome;
mod peer_reset;
mod poll;
mod process;
mod report;
mod settings;
mod shutdowns;
mod signals;
mod state;
mod stream;
mod table;
mod vectors;
mod wait;
mod waker;

/// Initialises the library; runs before the program's own code.
extern "C" fn start() {
    process::start();
    settings::start();
    // SAFETY: the functions are ours and have the signatures that the calls require.
    unsafe {
        libc::pthread_atfork(Some(fork::before), Some(fork::in_parent), Some(fork::in_child))
    };
}

/// Runs when the program exits.
extern "C" fn finish() {
    state::finish();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
