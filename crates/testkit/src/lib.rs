//! Provides helpers that the tests of several crates share; only tests depend on it.
//!
//! # Modules
//!
//! - `skip`, `requirements`: [`skip()`], [`is_root`], [`can_make_networks`]: tests that cannot run
//!   everywhere, and what they need.
//! - `namespace`, `shell`: [`Namespace`], networks without a name, connected by veth pairs.
//! - [`process`]: programs that are built if necessary and end with the test.
//! - `wait`: [`eventually`], [`within`]: waiting for a condition, with a time-out.
//! - `refusal`: [`assert_refusals`], [`assert_texts!`]: answers to wrong command lines, texts of
//!   errors.
//! - `restricted`: [`try_call`], [`bar_calls`], [`of_threads`]: processes with fewer rights, and
//!   what the kernel knows of their threads.
//! - `attacks`: [`assert_attacks`]: what a filter answers to attacks, and what the page says.
//! - `retried`: [`retried()`], calls that signals interrupt. `handshakes`: [`await_handshakes`].
//! - `cpus`, `limits`: [`allowed_cpus`], [`two_cpus`], [`pin`], [`raise_descriptor_limit`]: CPUs
//!   and descriptors of the process.
//! - `reference`: [`documented`], [`field_names`], [`expected_fields`]: names in the reference
//!   pages, and in the code.
//! - `broken`: [`BrokenOutput`], [`assert_result_is_not_lost`]: outputs that take no data.
//! - [`link`], [`random`]: a network that loses, delays and changes packets, and the generator of
//!   its chances.
//! - [`stalled`]: clients that read no answers, and what a server holds for them.
//! - `content`: [`content()`], bytes in which a lost or repeated block is detected.
//!
//! Functions panic if the test has failed, with the caller's location where that is more useful.

mod attacks;
mod broken;
mod content;
mod cpus;
mod handshakes;
mod limits;
pub mod link;
mod namespace;
pub mod process;
pub mod random;
mod reference;
mod refusal;
mod requirements;
mod restricted;
mod retried;
mod shell;
mod skip;
pub mod stalled;
mod wait;

pub use attacks::assert_attacks;
pub use broken::{BrokenOutput, assert_result_is_not_lost};
pub use content::content;
pub use cpus::{allowed_cpus, on_one_cpu, pin, two_cpus};
pub use handshakes::await_handshakes;
pub use limits::raise_descriptor_limit;
pub use namespace::Namespace;
pub use reference::{documented, expected_fields, field_names};
pub use refusal::{Refusal, assert_refusals, assert_sentence, refusal, refusal_status};
pub use requirements::{can_make_networks, is_root};
pub use restricted::{
    CallOutcome, bar_call_in_thread, bar_calls, bar_seccomp, of_threads, try_call,
};
pub use retried::retried;
pub use skip::skip;
pub use wait::{eventually, within};
