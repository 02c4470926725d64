//! Traits of other crates, each behind a feature of its name.
//!
//! Those for streams copy between the caller's memory and the channel's buffers, without filling
//! either with zeros before.

#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "quinn")]
pub mod quinn;
#[cfg(feature = "tokio-io")]
mod tokio;
