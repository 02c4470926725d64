//! Differential fuzzer of the channel. Runs random scripts of operations over the io_uring and the
//! epoll driver of [`megapipe`], against a peer that makes plain system calls.
//!
//! A [`Script`] is a list of operations on up to four links (sockets, pipes, terminals, files,
//! listeners, timers, wake-ups), made from a seed by [`script()`] and executed by a [`Campaign`].
//! Two things are checked:
//!
//! - each driver by itself: one last completion per request, contents by position in both
//!   directions, no completion after a handle has ended, all descriptors, requests and buffers
//!   released at the end (`arrive`, `finish`, `model`). `semantics` states what is allowed.
//! - the drivers against each other, request by request (`compare`). Each allowed difference has a
//!   [`Rule`], whose uses are counted.
//!
//! The fuzzer does the same for the channel over the user-level stack of [`mtcp`], in each mode of
//! its engine ([`Stacks`]), which is compared with the kernel: connections and listeners of TCP,
//! and other sources over the kernel's driver below it. The peer is the kernel in all cases.
//!
//! A script runs in lockstep (after each operation, completions are dispatched until none arrives)
//! or not; the drivers are compared only in lockstep. A failing case is shrunk.
//!
//! The fuzzer does not test signals, transfers to the application's memory, partitioned listeners,
//! or other installed drivers.
//!
//! # Modules
//!
//! - `script`, `generate`: the operations of a case, and how a seed generates them.
//! - `campaign`, `run`, `finish`: many cases, one script over one driver, and the end of a run.
//! - `setup`, `link`, `peer`, `options`: connections, both ends of a link, socket options.
//! - `operate`, `write`: execute the operations of a script.
//! - `arrive`, `event`, `model`, `semantics`: check completions against the channel's guarantees.
//! - `compare`, `rules`: compare drivers, and the allowed differences.
//! - `addresses`, `stacks`: the drivers under test, and the user-level stacks.

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
mod rules;
mod run;
mod script;
mod semantics;
mod setup;
mod stacks;
mod target;
mod write;

pub use campaign::{Campaign, Drivers};
pub use generate::{script, tcp_script};
pub use rules::Rule;
pub use script::{LinkKind, Op, Script, Settings, Verb};
pub use stacks::Stacks;
