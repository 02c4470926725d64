//! Starts a program with a preload library (LD_PRELOAD, ld.so(8)): finds the library and the
//! program, and detects programs that the library does not support.

mod library;
mod program;

pub use self::library::{Library, LibraryError, preload};
pub use self::program::{Obstacle, execute_remedy, find, obstacle};
