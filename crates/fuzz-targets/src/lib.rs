//! Fuzz targets for the parsers of foreign bytes: each program in `src/bin` passes an input to one
//! parser and checks properties that hold for all inputs.
//!
//! `cargo xtask fuzz` builds the programs with libFuzzer, which chooses the inputs by the coverage
//! that they reach. Built in any other way, a program runs the inputs in the files that its command
//! line names, for a debugger.
//!
//! This library has the entry point of a program, [`target!`], [`Choices`], and the [`drivers`] of
//! stacks.

pub mod drivers;

#[cfg(not(fuzzing))]
use std::process::ExitCode;

#[cfg(fuzzing)]
#[doc(hidden)]
pub use libfuzzer_sys;

/// Defines the entry point of a program that passes each input to a function.
///
/// The function panics if a property does not hold.
#[macro_export]
macro_rules! target {
    ($check:expr) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(
            init: $crate::ignore_sigpipe(),
            |bytes: &[u8]| $check(bytes)
        );

        #[cfg(not(fuzzing))]
        fn main() -> std::process::ExitCode {
            $crate::run_files($check)
        }
    };
}

/// Ignores SIGPIPE, which `vmsplice` to a closed peer raises. Rust programs do so before `main`,
/// which libFuzzer replaces.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn ignore_sigpipe() {
    // SAFETY: a plain system call, before there are other threads.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Runs the inputs in the files that the command line names.
#[cfg(not(fuzzing))]
#[doc(hidden)]
pub fn run_files(check: impl Fn(&[u8])) -> ExitCode {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        eprintln!("name files with inputs; `cargo xtask fuzz` finds new ones");
        return ExitCode::FAILURE;
    }
    for file in files {
        match std::fs::read(&file) {
            Ok(bytes) => check(&bytes),
            Err(error) => {
                eprintln!("cannot read {}: {error}; name readable files", file.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Reads an input as choices; zeros when it is used up.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// Reads from the first byte of an input.
    pub fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices(bytes)
    }

    /// Returns whether the input is used up.
    pub fn are_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Takes a number of eight bytes.
    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Takes up to so many bytes.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
