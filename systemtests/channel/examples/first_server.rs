//! The first server of the repository's README, as it stands there.

include!(concat!(env!("OUT_DIR"), "/first_server.rs"));
