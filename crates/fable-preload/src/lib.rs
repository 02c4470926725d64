//! A preload library that carries TCP connections of unmodified programs on one host through shared
//! memory.
//!
//! The library interposes functions of the C library (LD_PRELOAD, as `fable run` sets it). An
//! application's descriptor stays its own TCP socket until it is closed; so a connection whose use
//! the library does not support can go back to TCP at any time. The invariants:
//!
//! - An end puts only the application's bytes into TCP until it has seen that the other end uses
//!   the shared page (`rendezvous`).
//! - Each direction switches to its ring at a position that its sender publishes, and back at most
//!   once (`connection`).
//! - A doorbell is sent only to an end that asked for it, once for each request, and is counted
//!   before it is sent (`connection`, doorbells).
//! - What the peer writes into the page is read once and checked; an impossible value resets the
//!   connection.
//! - No lock is held while sleeping. A call on a descriptor that is not the library's costs one
//!   read of the table (`table`).
//!
//! # Modules
//!
//! - `hooks`: the functions of the C library that the library interposes.
//! - `table`, `counted`: the state of each descriptor, and the objects behind descriptors.
//! - `rendezvous`: how two programs detect that both run this library.
//! - `connection`, `page`: one connection, its rings in shared memory, and its return to TCP.
//! - `epoll`, `poll`: epoll(7) and poll(2) over connections in shared memory.
//! - `borrowed`: children of vfork(2), which run in their parent's memory.
//! - `signals`, `spin`: signals while the library sleeps, and how long it spins.
//! - `settings`, `statistics`: the environment that `fable run` sets, and `--statistics`.
//! - `cursor`, `sys`: lists of buffers, system calls.
//!
//! After FABLE (Smith et al., section 3), which left unmodified programs open.

use core::sync::atomic::{AtomicU32, Ordering};

mod borrowed;
mod connection;
mod counted;
mod cursor;
mod epoll;
mod hooks;
mod page;
mod poll;
mod rendezvous;
mod settings;
mod signals;
mod spin;
mod statistics;
mod sys;
mod table;

use connection::Connection;
use epoll::Set;
use preload::lock;
use rendezvous::Listener;

/// Initialises the library; runs before the program's own code.
extern "C" fn start() {
    settings::start();
    statistics::start();
    table::admit::<Connection>();
    table::admit::<Listener>();
    table::admit::<Set>();
    connection::notify_with(epoll::notify);
    table::start();
    // SAFETY: the functions belong to this library and have the right signatures.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_here), Some(after_fork_in_child));
    }
}

/// Runs when the program exits: ends the connections, because unread doorbells in their sockets
/// would reset them.
pub(crate) extern "C" fn finish() {
    if borrowed::is_here() {
        return;
    }
    for (fd, connection) in table::entries::<Connection>(0, i32::MAX) {
        connection.let_go(fd);
    }
    statistics::finish();
}

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn before_fork() {
    connection::hold_pool();
    epoll::hold();
    // The locks are held, so there is one fork at a time.
    let fork = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    for (_, connection) in table::entries::<Connection>(0, i32::MAX) {
        connection.share(fork);
    }
    for (_, listener) in table::entries::<Listener>(0, i32::MAX) {
        listener.admit_offers();
    }
}

extern "C" fn after_fork_here() {
    epoll::let_go(false);
    connection::let_go_of_pool();
}

extern "C" fn after_fork_in_child() {
    lock::forget_thread();
    borrowed::forget();
    epoll::let_go(true);
    connection::let_go_of_pool();
    connection::forget_sleepers();
    statistics::start_child();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
