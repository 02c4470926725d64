//! What the libraries under unmodified programs (LD_PRELOAD, ld.so(8)) share.
//!
//! - [`real`]: the functions of the C library that a library stands in front of.
//! - [`hooks`]: the functions that a library defines under the C library's names.
//! - [`deadline`], [`errno`], [`fortify`], [`signals`]: what these hooks need: until when a call
//!   waits, how it fails, what the checked variants of functions do, and what interrupts a sleep.
//! - [`launch`]: how a program is started with a library under it.

pub mod deadline;
pub mod errno;
pub mod fortify;
pub mod hooks;
pub mod launch;
pub mod real;
pub mod signals;
