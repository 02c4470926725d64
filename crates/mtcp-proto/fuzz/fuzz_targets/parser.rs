//! The bytes are whatever a device may hand over: a frame, a packet, a segment, a message.

#![no_main]

#[path = "../../tests/wire/parsers.rs"]
mod parsers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| parsers::check(bytes));
