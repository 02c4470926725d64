//! Fuzzes the calls of two applications, and the network between their stacks; the input chooses
//! both.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(fuzz_targets::drivers::play_calls);
