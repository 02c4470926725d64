//! Fuzzes the parsers of the packets between processes and the name daemon.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(fable::fuzzing::packets);
