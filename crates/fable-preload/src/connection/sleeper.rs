//! Handles calls that sleep while another thread closes or replaces their descriptor.
//!
//! In the kernel such a call continues, because it uses the file, not only the descriptor's number.
//! A call of this library has only the number. Closing a descriptor for which calls sleep therefore
//! leaves a duplicate, which these calls use and the last of them closes. Until then the connection
//! stays open, as in the kernel.

use core::ffi::c_int;
use preload::real;

use super::Connection;
use crate::counted::CountedRef;
use crate::{sys, table};

/// The calls of this process that sleep, or have slept, for a connection.
pub(crate) struct Sleeping {
    calls: u32,
    /// The descriptor that they continue with; -1 if none is needed.
    spare: c_int,
}

impl Sleeping {
    /// No sleeping calls.
    pub(super) const NONE: Sleeping = Sleeping { calls: 0, spare: -1 };
}

/// A registered call, whose descriptor may be closed.
pub(crate) struct Sleeper<'a>(&'a Connection);

impl Sleeper<'_> {
    /// Returns the descriptor to continue with.
    pub(crate) fn descriptor(&self, fd: c_int) -> c_int {
        let spare = self.0.sleeping.take().map_or(-1, |sleeping| sleeping.spare);
        let is_ours = || {
            table::get::<Connection>(fd).is_some_and(|held| core::ptr::eq(held.object(), self.0))
        };
        if spare < 0 || is_ours() { fd } else { spare }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let Some(mut sleeping) = self.0.sleeping.take() else { return };
        sleeping.calls -= 1;
        if sleeping.calls > 0 || sleeping.spare < 0 {
            return;
        }
        let spare = core::mem::replace(&mut sleeping.spare, -1);
        drop(sleeping);
        self.0.drop_spare(spare);
    }
}

impl Connection {
    /// Registers a call that is about to sleep for the first time. Returns `None` in a signal
    /// handler that interrupted the owner of the lock.
    pub(crate) fn sleeper(&self) -> Option<Sleeper<'_>> {
        self.sleeping.take()?.calls += 1;
        Some(Sleeper(self))
    }

    /// Returns whether calls sleep for the connection.
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleeping.take().is_some_and(|sleeping| sleeping.calls > 0)
    }

    /// Called before a descriptor is closed: makes a duplicate for its sleeping calls. If that
    /// fails, they end with EBADF.
    pub(crate) fn keep_for_sleepers(connection: &CountedRef<Connection>, fd: c_int) {
        let Some(mut sleeping) = connection.sleeping.take() else { return };
        if sleeping.calls == 0 || sleeping.spare >= 0 {
            return;
        }
        // SAFETY: the command takes a number, and the descriptor is open.
        let spare = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, sys::lowest_descriptor()) };
        if spare < 0 {
            return;
        }
        if table::covers(spare) {
            table::put(spare, connection.clone());
            sleeping.spare = spare;
        } else {
            sys::close(spare);
        }
    }

    /// Clears the sleepers in a forked child, which has none of these threads.
    pub(super) fn forget_sleepers(&self) {
        self.sleeping.let_go();
        let Some(mut sleeping) = self.sleeping.take() else { return };
        let Sleeping { spare, .. } = core::mem::replace(&mut *sleeping, Sleeping::NONE);
        drop(sleeping);
        if spare >= 0 {
            self.drop_spare(spare);
        }
    }

    fn drop_spare(&self, spare: c_int) {
        let _keep = sys::KeepErrno::new();
        self.before_close(spare);
        table::forget(spare);
        sys::close(spare);
    }
}

/// Clears the sleepers of all connections, in a forked child.
pub(crate) fn forget_sleepers() {
    for (_, connection) in table::entries::<Connection>(0, c_int::MAX) {
        connection.forget_sleepers();
    }
}
