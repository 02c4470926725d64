//! Fuzzes result files: reading, comparing, and the page about them.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(iobench::fuzzing::result_file);
