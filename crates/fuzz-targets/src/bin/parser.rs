//! Fuzzes the parsers: the input is a frame, a packet, a segment, or a message.

#![cfg_attr(fuzzing, no_main)]

#[path = "../../../mtcp-proto/tests/wire/parsers.rs"]
mod parsers;

fuzz_targets::target!(parsers::check);
