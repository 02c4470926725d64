//! Many hosts: one process serves, the others load, and MPI carries what they must agree on.
//!
//! `control` is the way between the processes, `mpi` its implementation. `clock` relates the hosts'
//! clocks and agrees on a start, `addresses` finds where rank 0 is reached, `share` divides the
//! load and merges what was measured. `command` lets people check their set-up.

pub(crate) mod addresses;
pub(crate) mod clock;
mod command;
pub(crate) mod control;
#[cfg(feature = "mpi")]
mod mpi;
pub(crate) mod share;
#[cfg(test)]
mod threads;

pub(crate) use command::run;
#[cfg(feature = "mpi")]
pub(crate) use mpi::with_control;

#[cfg(not(feature = "mpi"))]
use self::control::Control;
#[cfg(not(feature = "mpi"))]
use crate::error::{Error, Result};

/// Runs `work` with the way to the other processes, which this build does not have.
#[cfg(not(feature = "mpi"))]
pub(crate) fn with_control<T>(_: impl FnOnce(&dyn Control) -> Result<T>) -> Result<T> {
    Err(Error::setup(
        "this iobench was built without MPI, which many hosts need",
        "install openmpi-bin, libopenmpi-dev and clang, then build with --features mpi",
    ))
}
