//! Fuzzes experiment files, and the points that they describe.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(iobench::fuzzing::experiment);
