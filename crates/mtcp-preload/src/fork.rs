//! Implements the handlers of fork(2): connections stay with the parent, and the child discards the
//! stack.

use crate::state;
use crate::table;
use core::ffi::c_int;

pub(crate) extern "C" fn before() {
    state::hold();
}

pub(crate) extern "C" fn in_parent() {
    // The child can set options of a socket that both processes have.
    for (fd, _) in table::known(0, c_int::MAX) {
        table::note_options(fd);
    }
    state::let_go();
}

pub(crate) extern "C" fn in_child() {
    state::begin_child();
}
