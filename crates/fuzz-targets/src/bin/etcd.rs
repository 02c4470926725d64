//! Fuzzes the answers of etcd, and the copy of a zone's records that they make.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(fabled::cluster::fuzzing::etcd_answers);
