//! Endpoints, listeners and the connection to the daemon, seen from outside.

mod daemon;
mod rig;
