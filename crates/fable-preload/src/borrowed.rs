//! Children of vfork(2): until it executes a program or ends, such a child runs in its parent's
//! memory, on the stack of the thread that called, which waits meanwhile.
//!
//! The child has descriptors of its own, but the table is its parent's: nothing that the child does
//! changes it. A connection that goes to the program that the child executes goes back to TCP for
//! its parent, too; the parent takes note of that when it goes on.

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, pid_t};

use crate::lock;

const WORD_BITS: usize = u64::BITS as usize;
/// Descriptors whose closing is noted one by one.
const NOTED: usize = 1024;

/// How many threads of this process wait for a child that has their memory.
static CHILDREN: AtomicUsize = AtomicUsize::new(0);

/// What a thread lends to its child.
struct Loan {
    /// The process that lends; 0 if the thread does not.
    lender: Cell<pid_t>,
    /// Descriptors that the child has closed or made something else of: a bit each.
    closed: [Cell<u64>; NOTED / WORD_BITS],
    /// Whether it has done so with one that has no bit.
    closed_above: Cell<bool>,
    /// Whether a connection went back to TCP.
    left: Cell<bool>,
}

thread_local! {
    static LOAN: Loan = const {
        Loan {
            lender: Cell::new(0),
            closed: [const { Cell::new(0) }; NOTED / WORD_BITS],
            closed_above: Cell::new(false),
            left: Cell::new(false),
        }
    };
}

/// Whether this runs in a child that has its parent's memory.
#[inline]
pub(crate) fn is_here() -> bool {
    CHILDREN.load(Ordering::Relaxed) > 0 && is_child()
}

#[cold]
fn is_child() -> bool {
    // SAFETY: no arguments. A handler of a signal may run in the parent just before or after.
    LOAN.with(|loan| loan.lender.get() != 0 && loan.lender.get() != unsafe { libc::getpid() })
}

/// The child's descriptor is not what the table says.
pub(crate) fn note_closed(fd: c_int) {
    let Ok(index) = usize::try_from(fd) else { return };
    LOAN.with(|loan| match loan.closed.get(index / WORD_BITS) {
        Some(word) => word.set(word.get() | 1 << (index % WORD_BITS)),
        None => loan.closed_above.set(true),
    });
}

/// Whether this runs in such a child, and it has noted that of the descriptor.
#[inline]
pub(crate) fn has_closed(fd: c_int) -> bool {
    is_here() && is_noted(fd)
}

fn is_noted(fd: c_int) -> bool {
    let index = usize::try_from(fd).unwrap_or(usize::MAX);
    LOAN.with(|loan| match loan.closed.get(index / WORD_BITS) {
        Some(word) => word.get() >> (index % WORD_BITS) & 1 != 0,
        None => loan.closed_above.get(),
    })
}

/// A connection went back to TCP.
pub(crate) fn note_left() {
    LOAN.with(|loan| loan.left.set(true));
}

/// Before vfork(2). Whether the thread may lend its memory: one that has it itself may not.
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn lend() -> c_int {
    if is_here() {
        return 0;
    }
    // The child's thread is this one, as far as locks are concerned.
    lock::thread_number();
    LOAN.with(|loan| {
        loan.closed.iter().for_each(|word| word.set(0));
        loan.closed_above.set(false);
        loan.left.set(false);
        // SAFETY: no arguments.
        loan.lender.set(unsafe { libc::getpid() });
    });
    CHILDREN.fetch_add(1, Ordering::Relaxed);
    1
}

/// The parent goes on, after the child or because there is none. Whether a connection went back to
/// TCP meanwhile.
#[cfg(target_arch = "x86_64")]
pub(crate) fn take_back() -> bool {
    CHILDREN.fetch_sub(1, Ordering::Relaxed);
    LOAN.with(|loan| {
        loan.lender.set(0);
        loan.left.replace(false)
    })
}

/// After fork(2), in the child: it has memory of its own.
pub(crate) fn forget() {
    CHILDREN.store(0, Ordering::Relaxed);
    LOAN.with(|loan| loan.lender.set(0));
}
