//! The name daemon of FABLE, and what its command line does.

pub mod run;
