//! Implements a deterministic simulator: stacks on a network in virtual time, all of it generated
//! from a seed.
//!
//! [`scenario`] generates a run, [`world`] executes it with a [`host`] at each end of two
//! [`link`]s, [`watch`], [`model`] and [`verdict`] check it, and [`report`] shows failures.

pub(crate) mod application;
pub(crate) mod attack;
mod content;
mod device;
mod host;
mod model;
mod packet;
mod pcap;
pub(crate) mod report;
pub(crate) mod scenario;
mod verdict;
mod watch;
mod world;

pub(crate) use testkit::{link, random};
