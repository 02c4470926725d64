//! The bytes are the calls of two applications, and what the network does between their stacks.

#![no_main]

#[path = "../../tests/drivers/mod.rs"]
mod drivers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drivers::play("calls", bytes));
