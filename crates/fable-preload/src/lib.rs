//! Under unmodified programs: TCP connections between two of them on one host go through memory.
//!
//! The library stands in front of the C library (LD_PRELOAD, as `fable run` arranges). An
//! application's descriptor stays its own TCP socket for life; so whatever is not followed here can
//! go back to it in mid-connection. The invariants:
//!
//! - Neither side puts anything but the application's bytes into TCP before it has seen that the
//!   other uses the shared page (`rendezvous`).
//! - Each direction goes over to its ring at a position that its sender publishes, and back at most
//!   once (`connection`).
//! - A doorbell is sent only to an end that asked for it, once for each time it asked, and is
//!   counted before it is sent (`connection`, doorbells).
//! - What the peer writes into the page is read once and checked; nonsense is a reset connection.
//! - No lock is held while sleeping; a descriptor that is not ours costs one look (`table`).
//!
//! After FABLE (Smith et al., section 3), which left unmodified programs open.

use core::sync::atomic::{AtomicU32, Ordering};

mod borrowed;
mod connection;
mod counted;
mod cursor;
mod epoll;
mod hooks;
mod lock;
mod page;
mod poll;
mod rendezvous;
mod settings;
mod signals;
mod spin;
mod statistics;
mod sys;
mod table;

/// Runs before the program's own code.
extern "C" fn start() {
    settings::start();
    statistics::start();
    table::start();
    // SAFETY: the functions are ours and have the right signatures.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_here), Some(after_fork_in_child));
    }
}

/// Runs when the program ends by itself: what lies in sockets unread would reset the connections.
pub(crate) extern "C" fn finish() {
    if borrowed::is_here() {
        return;
    }
    for (fd, connection) in table::connections(0, i32::MAX) {
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
    for (_, connection) in table::connections(0, i32::MAX) {
        connection.share(fork);
    }
}

extern "C" fn after_fork_here() {
    epoll::let_go(false);
    connection::let_go_of_pool();
}

extern "C" fn after_fork_in_child() {
    lock::forget_thread_number();
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
