//! Fuzzes the control link of a flow: the input is what a peer sends on it.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(fable::fuzzing::control_link);
