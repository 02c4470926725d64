//! A deterministic simulator: stacks on a network in virtual time, all of it drawn from a seed.
//!
//! [`scenario`] draws what happens, [`world`] lets it happen with a [`host`] at each end of two
//! [`link`]s, [`watch`], [`model`] and [`verdict`] say what must hold, [`report`] shows what did
//! not.

pub(crate) mod application;
pub(crate) mod attack;
mod content;
mod device;
mod host;
pub(crate) mod link;
mod model;
mod packet;
mod pcap;
mod random;
pub(crate) mod report;
pub(crate) mod scenario;
mod verdict;
mod watch;
mod world;
