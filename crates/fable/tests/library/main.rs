//! Tests of the public interface within one process: transports, endpoints, and peers that
//! do what they should not.

#[path = "../common/mod.rs"]
mod common;
mod endpoints;
mod hostile;
#[path = "../hostile_peer/mod.rs"]
mod hostile_peer;
#[path = "../common/keys.rs"]
mod keys;
#[path = "../common/missing.rs"]
mod missing;
#[path = "../common/pairs.rs"]
mod pairs;
#[path = "../common/random.rs"]
mod random;
mod transports;
