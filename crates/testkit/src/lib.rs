//! What the tests of several crates share; a dependency of tests alone.
//!
//! - [`skip()`], [`is_root`], [`can_make_networks`], [`two_cpus`]: tests that cannot run
//!   everywhere, and what they need.
//! - [`Namespace`]: networks without a name, joined by virtual cables.
//! - [`process`]: programs that are built if need be and end with the test.
//! - [`eventually`], [`within`]: waiting for something, with a time limit.
//! - [`retried()`]: calls that signals interrupt.
//! - [`allowed_cpus`], [`pin`], [`raise_descriptor_limit`]: what the kernel grants the process.
//! - [`content()`]: bytes in which a lost or repeated block shows.
//!
//! Everything panics where a test has failed, with the place of its caller where that tells more.

mod content;
mod cpus;
mod limits;
mod namespace;
pub mod process;
mod requirements;
mod retried;
mod shell;
mod skip;
mod wait;

pub use content::content;
pub use cpus::{allowed_cpus, pin, two_cpus};
pub use limits::raise_descriptor_limit;
pub use namespace::Namespace;
pub use requirements::{can_make_networks, is_root};
pub use retried::retried;
pub use skip::skip;
pub use wait::{eventually, within};
