//! Tests of `iobench-external`: every runtime, library and server that the full build has.

mod http;
mod ipc;
mod runtimes;
