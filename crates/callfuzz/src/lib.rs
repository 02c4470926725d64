//! Differential fuzzer of socket calls. Runs random scripts of calls by two processes plainly and
//! with a preload library under both or one of them, and compares.
//!
//! A [`Script`] is a list of calls on connections between two processes and their forked children,
//! made from a seed by [`script()`] and executed by a [`Campaign`]. The processes are agents
//! (`agent`), which make the C library's calls one by one as the controller requests (`host`,
//! `pair`). Two things are checked:
//!
//! - each way by itself: bytes by their positions, and that no normal end follows missing bytes
//!   (`model`, `absorb`, `finish`).
//! - the ways against each other, call by call (`judge`). Each allowed difference has a [`Rule`],
//!   whose uses are counted.
//!
//! A script runs in lockstep: a call that blocks gets a thread of its own, and after each operation
//! the run checks the pending calls (`run`). A failing case is shrunk.
//!
//! The fuzzer does not test times, signals of urgent data, or datagrams.
//!
//! # Modules
//!
//! - `script`, `generate`: the operations of a case, and how a seed generates them.
//! - `campaign`, `run`, `finish`: many cases, one script in lockstep, and the end of a run.
//! - `plan`, `processes`: requests of operations, and operations on processes.
//! - `agent`, `protocol`: the process that makes the calls, and its messages with the controller.
//! - `host`, `hosts`, `pair`, `mode`: agents' processes, their namespaces, and the library under
//!   them.
//! - `model`, `absorb`: the controller's model of descriptors and bytes, and how it is updated.
//! - `judge`, `rules`, `known`, `stack`: comparison, allowed differences, and documented limits.

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
mod run_mode;
mod script;
mod stack;

pub use agent::serve;
pub use campaign::{Campaign, Pairs};
pub use generate::{Dialect, script, script_of};
pub use rules::Rule;
pub use run_mode::RunMode;
pub use script::{LinkKind, Op, Script, Verb};
