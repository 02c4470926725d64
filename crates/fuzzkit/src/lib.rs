//! What the differential fuzzers share: random numbers and contents that repeat from a seed, rules
//! for allowed differences, shrinking, the watchdog, and the command line around a campaign.
//!
//! A fuzzer brings its cases ([`Case`]), its rules ([`rules!`]) and what runs and compares a case.

mod campaign;
mod command_line;
pub mod pattern;
mod random;
mod rules;
mod shrink;
mod watchdog;
mod words;

pub use campaign::{Case, Failure, Finding, Limit, Report, SHRINK_TRIES, for_seeds, shrink_case};
pub use command_line::{CaseOptions, seed_of_clock};
pub use random::{Random, mix};
pub use rules::{RuleCounts, RuleSet};
pub use shrink::shrink_list;
pub use watchdog::Watch;
