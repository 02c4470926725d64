//! Under unmodified programs: TCP through the interface of a user-level stack.
//!
//! The library stands in front of the C library (LD_PRELOAD, as `mtcp run` arranges). A socket
//! begins as the kernel's. It becomes the stack's when it is bound to an address of the stack,
//! listens on all addresses, or connects to where the stack's interface leads; from then on every
//! call on its number goes to the stack, and the kernel's socket behind it, which is never
//! connected, keeps the number. On all addresses it listens, too (`listener`). The invariants:
//!
//! - A descriptor that is not the stack's costs one look (`table`) and goes to the kernel.
//! - One lock (`state`) is around the stack's sockets. Nobody holds it while sleeping, and what the
//!   stack itself calls finds descriptors that are not the stack's, so it never asks for the lock
//!   again.
//! - Who sleeps (`wait`) is on a list; whoever used the stack since gets all on the list up, so no
//!   event is lost between threads.
//! - What is not understood fails with an errno: the kernel's socket behind the number answers
//!   `ENOTCONN`, and never with data.
//!
//! The stack has a thread of its own (the paired mode of mTCP, section 4.1): a program that was not
//! written for the stack computes, sleeps and reads files as long as it likes, and its connections
//! must be acknowledged, repeated and closed meanwhile. `mtcp run --complete` does without the
//! thread for programs that wait often enough.

mod address;
mod adopt;
mod epoll;
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

/// Runs before the program's own code.
extern "C" fn start() {
    process::start();
    settings::start();
    // SAFETY: the functions are ours and have the right signatures.
    unsafe {
        libc::pthread_atfork(Some(fork::before), Some(fork::in_parent), Some(fork::in_child))
    };
}

/// Runs when the program ends by itself.
extern "C" fn finish() {
    state::finish();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
