//! What starting a program with a library under it (LD_PRELOAD, ld.so(8)) takes: to find the
//! library and the program, and to know which programs it cannot help.

mod library;
mod program;

pub use self::library::{Library, LibraryError, preload};
pub use self::program::{Obstacle, find, obstacle};
