//! Fuzzes logs of latencies, which `iobench log` exports.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(iobench::fuzzing::latency_log);
