//! What the tests of several crates share; a dependency of tests alone.
//!
//! - [`skip`]: tests that cannot run everywhere, with the reason.
//! - [`Namespace`]: networks without a name, joined by virtual cables.
//! - [`process`]: programs that are built if need be and end with the test.
//! - [`eventually`], [`within`]: waiting for something, with a time limit.
//! - [`retried`]: calls that signals interrupt.
//! - [`content`]: bytes in which a lost or repeated block shows.
//!
//! Everything panics where a test has failed, with the place of its caller where that tells more.

mod content;
mod namespace;
pub mod process;
mod retried;
mod shell;
mod skip;
mod wait;

pub use content::content;
pub use namespace::Namespace;
pub use retried::retried;
pub use skip::skip;
pub use wait::{eventually, within};
