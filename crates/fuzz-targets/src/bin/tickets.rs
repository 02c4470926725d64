//! Fuzzes tickets: the input is the line of a process on another host, or the content that is
//! signed.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(fabled::cluster::fuzzing::ticket);
