//! Fuzzes a stack, with connections in every state, with segments of a peer that the input chooses.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(fuzz_targets::drivers::play_segments);
