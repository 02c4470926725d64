//! Runs over many hosts: one process serves, the others load, and MPI transfers their messages.
//!
//! `control` is the interface for messages between the processes, `mpi` its implementation. `clock`
//! relates the hosts' clocks and agrees on a start, `addresses` finds an address of rank 0 that all
//! reach, `share` divides the load and merges the results. `command` checks a set-up.

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

/// Fails: this build has no MPI.
#[cfg(not(feature = "mpi"))]
pub(crate) fn with_control<T>(_: impl FnOnce(&dyn Control) -> Result<T>) -> Result<T> {
    Err(Error::setup(
        "this iobench was built without MPI, which several hosts need",
        "install openmpi-bin, libopenmpi-dev and clang, then build with --features mpi",
    ))
}
