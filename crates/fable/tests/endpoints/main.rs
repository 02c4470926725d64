//! Endpoints, listeners, the connection to the daemon, and waiting, seen from outside.

mod alone;
mod daemon;
mod flows;
mod foreign;
mod programs;
mod rig;
mod waiting;
