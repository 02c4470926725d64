//! Traits of other crates for the streams, each behind a feature of its name.
//!
//! They copy between the caller's memory and the channel's buffers, without filling either with
//! zeros before.

#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "tokio-io")]
mod tokio;
