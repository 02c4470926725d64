//! Shared parts of the differential fuzzers: repeatable random numbers and contents, rules for
//! allowed differences, shrinking, a watchdog, and the command line around a campaign.
//!
//! A fuzzer provides its cases ([`Case`]), its rules ([`rules!`]), and its [`Subject`], which runs
//! and compares a case.
//!
//! # Modules
//!
//! - `campaign`: runs many cases, confirms and shrinks failing ones.
//! - `command_line`: the options that every fuzzer has.
//! - [`pattern`]: contents in which every position differs from its neighbours.
//! - `random`: SplitMix64, so that a seed means the same script on every machine.
//! - `rules`: allowed differences, each with its reason, and how often each was used.
//! - `shrink`: makes a failing list of operations smaller.
//! - `watchdog`: ends the program, with the script and its log, when a run hangs.
//! - `words`: enums whose values have a text in scripts.

mod campaign;
mod command_line;
pub mod pattern;
mod random;
mod rules;
mod shrink;
mod watchdog;
mod words;

pub use campaign::{Attempt, Campaign, Case, Failure, Finding, Limit, Report, Subject};
pub use command_line::{CaseOptions, seed_of_clock};
pub use random::{Random, mix};
pub use rules::{RuleCounts, RuleSet};
pub use shrink::shrink_list;
pub use watchdog::Watch;
