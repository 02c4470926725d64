//! Differential fuzzer of socket calls: runs random scripts of calls by two processes plainly and
//! with a preload library under them, or under one of them, and compares.
//!
//! A [`Script`] is a list of calls on connections between two processes and their forked children,
//! made from a seed by [`script()`] and carried out by a [`Campaign`]. The processes are agents
//! (`agent`), which make the C library's calls one by one as the controller says (`host`, `pair`).
//! Two things are checked:
//!
//! - each way by itself: bytes by their positions, and that no good end follows missing bytes
//!   (`model`, `absorb`, `finish`).
//! - the ways against each other, call by call (`judge`). What may differ has a [`Rule`], whose
//!   uses are counted.
//!
//! A script runs in lockstep: a call that blocks gets a thread of its own, and after each operation
//! the pending calls are looked at (`run`). A case that fails is shrunk.
//!
//! The fuzzer does not look at times, urgent data's signals, or datagrams.

mod absorb;
mod agent;
mod campaign;
mod finish;
mod generate;
mod host;
mod hosts;
mod judge;
mod known;
mod model;
mod pair;
mod plan;
mod processes;
mod protocol;
mod rules;
mod run;
mod script;
mod stack;
mod way;

pub use agent::serve;
pub use campaign::{Campaign, Report};
pub use generate::{Dialect, script, script_of};
pub use rules::Rule;
pub use script::{LinkKind, Op, Script, Verb};
pub use way::Way;
