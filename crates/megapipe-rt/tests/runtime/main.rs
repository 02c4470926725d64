//! Tests the runtime: tasks, timers, sockets, pipes, files and signals, over both kernel drivers.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod blocking;
mod copy;
mod dump;
mod endings;
mod executor;
mod exhaustion;
mod files;
mod full_channel;
mod gathering;
mod groups;
mod io_traits;
mod main_macro;
mod pipes;
mod spans;
mod tcp;
mod udp;
mod unix;
mod unix_datagrams;
