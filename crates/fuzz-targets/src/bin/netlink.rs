//! Fuzzes the parsers of netlink, and the state of an interface that its messages make.

#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(stack::network::fuzzing::datagram);
