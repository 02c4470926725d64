//! Handles children of vfork(2). Until it executes a program or ends, such a child runs in its
//! parent's memory, on the stack of the calling thread, which waits meanwhile.
//!
//! The child has its own descriptors, but shares its parent's table: nothing that the child does
//! changes the table. A connection that is passed to the program that the child executes returns to
//! TCP for its parent too; the parent records that when it continues.

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, pid_t};

use preload::lock;

const WORD_BITS: usize = u64::BITS as usize;
/// The number of descriptors whose closing is recorded individually.
const NOTED: usize = 1024;

/// The number of threads of this process that wait for a child in their memory.
static CHILDREN: AtomicUsize = AtomicUsize::new(0);

/// The state of a thread whose vfork child runs in its memory.
struct Loan {
    /// The process whose thread waits for a child; 0 if there is none.
    lender: Cell<pid_t>,
    /// Descriptors that the child has closed or replaced, one bit each.
    closed: [Cell<u64>; NOTED / WORD_BITS],
    /// Whether the child has closed or replaced a descriptor that has no bit.
    closed_above: Cell<bool>,
    /// Whether a connection returned to TCP.
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

/// Returns whether this code runs in a child that has its parent's memory.
#[inline]
pub(crate) fn is_here() -> bool {
    CHILDREN.load(Ordering::Relaxed) > 0 && is_child()
}

#[cold]
fn is_child() -> bool {
    // SAFETY: getpid(2) has no arguments. (A signal handler may run in the parent just before or
    // after vfork.)
    LOAN.with(|loan| loan.lender.get() != 0 && loan.lender.get() != unsafe { libc::getpid() })
}

/// Records that the child's descriptor is no longer what the table says.
pub(crate) fn note_closed(fd: c_int) {
    let Ok(index) = usize::try_from(fd) else { return };
    LOAN.with(|loan| match loan.closed.get(index / WORD_BITS) {
        Some(word) => word.set(word.get() | 1 << (index % WORD_BITS)),
        None => loan.closed_above.set(true),
    });
}

/// Returns whether this code runs in such a child and the child has closed or replaced the
/// descriptor.
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

/// Records that a connection returned to TCP.
pub(crate) fn note_left() {
    LOAN.with(|loan| loan.left.set(true));
}

/// Called before vfork(2). Returns whether the thread may run a child in its memory; a thread that
/// is itself in such a child may not.
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn lend() -> c_int {
    if is_here() {
        return 0;
    }
    // For the locks, the child's thread is this thread.
    lock::Owner::this_thread();
    LOAN.with(|loan| {
        loan.closed.iter().for_each(|word| word.set(0));
        loan.closed_above.set(false);
        loan.left.set(false);
        // SAFETY: getpid(2) has no arguments.
        loan.lender.set(unsafe { libc::getpid() });
    });
    CHILDREN.fetch_add(1, Ordering::Relaxed);
    1
}

/// Called when the parent continues, after the child or because there is none. Returns whether a
/// connection returned to TCP meanwhile.
#[cfg(target_arch = "x86_64")]
pub(crate) fn take_back() -> bool {
    CHILDREN.fetch_sub(1, Ordering::Relaxed);
    LOAN.with(|loan| {
        loan.lender.set(0);
        loan.left.replace(false)
    })
}

/// Called in the child after fork(2), which has its own memory.
pub(crate) fn forget() {
    CHILDREN.store(0, Ordering::Relaxed);
    LOAN.with(|loan| loan.lender.set(0));
}
