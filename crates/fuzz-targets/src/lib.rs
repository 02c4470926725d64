//! Fuzz targets for the parsers of foreign bytes: each passes an input to one parser and checks
//! properties that hold for all inputs.
//!
//! `cargo xtask fuzz` builds the program with libFuzzer, which chooses the inputs by the coverage
//! that they reach. Built in any other way, it runs the inputs in the files that its command line
//! names, for a debugger.
//!
//! - `targets`: the list. `drivers`, `offers`, `page`: those that need more code.

mod drivers;
mod offers;
mod page;
mod targets;

// Code of other crates that is not in their libraries' interfaces.
#[path = "../../fable/tests/hostile_peer/mod.rs"]
mod hostile_peer;
#[path = "../../mtcp-proto/tests/protocol/wire/parsers.rs"]
mod parsers;
#[path = "../../fable-preload/src/sys.rs"]
#[allow(dead_code, unused_imports, reason = "parts that no target uses")]
mod sys;

pub use targets::{Check, TARGETS, target};

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
