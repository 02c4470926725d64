//! Differential fuzzer of the channel: runs random scripts of operations over the io_uring and the
//! epoll driver of [`megapipe`], against a peer that makes plain system calls.
//!
//! A [`Script`] is a list of operations on up to four links (sockets, pipes, terminals, files,
//! listeners, timers, wake-ups), made from a seed by [`script()`] and carried out by a
//! [`Campaign`].
//! Two things are checked:
//!
//! - each driver by itself: one last completion per request, contents by position in both
//!   directions, nothing after a handle is gone, all descriptors, requests and buffers back at the
//!   end (`arrive`, `finish`, `model`). What is allowed is stated in `semantics`.
//! - the drivers against each other, request by request (`compare`). What may differ has a
//!   [`Rule`], whose uses are counted.
//!
//! The same for the channel over the user-level stack of [`mtcp`], in each mode of its engine
//! ([`Stacks`]), which is compared with the kernel: connections and listeners of TCP, beside what
//! the kernel's driver has below it. The peer is the kernel in all cases.
//!
//! A script runs in lockstep (after each operation, completions are dispatched until none comes) or
//! loosely; only in lockstep the drivers are compared. A case that fails is shrunk.
//!
//! The fuzzer does not look at signals, transfers to the application's memory, partitioned
//! listeners, or installed drivers.

mod arrive;
mod campaign;
mod compare;
mod event;
mod finish;
mod generate;
mod link;
mod model;
mod operate;
mod options;
mod peer;
mod road;
mod rules;
mod run;
mod script;
mod semantics;
mod setup;
mod stacks;
mod write;

pub use campaign::{Campaign, Drivers, Report};
pub use generate::{script, tcp_script};
pub use rules::Rule;
pub use script::{LinkKind, Op, Script, Settings, Verb};
pub use stacks::Stacks;
