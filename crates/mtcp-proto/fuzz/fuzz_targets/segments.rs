//! The bytes are the segments that a peer sends into a stack whose connections are in every state.

#![no_main]

#[path = "../../tests/drivers/mod.rs"]
mod drivers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drivers::play("segments", bytes));
