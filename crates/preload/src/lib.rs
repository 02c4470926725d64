//! Implements the shared parts of the preload libraries (LD_PRELOAD, ld.so(8)): the functions of
//! the C library that they define, the real functions behind these, and the start of a program with
//! a library.
//!
//! # Modules
//!
//! - [`real`]: the real functions behind the hooks.
//! - [`hooks`]: the functions that a library interposes.
//! - [`deadline`], [`errno`], [`fortify`], [`signals`]: support for the hooks: deadlines, `errno`,
//!   checks of the fortified variants, and signals that interrupt a sleep.
//! - [`lock`]: locks that survive the death of their owner.
//! - [`launch`]: finds the library and the program, and detects programs that it does not support.

pub mod deadline;
pub mod errno;
pub mod fortify;
pub mod hooks;
pub mod launch;
pub mod lock;
pub mod real;
pub mod signals;
