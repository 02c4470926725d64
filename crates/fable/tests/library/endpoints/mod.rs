//! Tests of the public interface: endpoints, listeners, the daemon connection, and waiting.

mod alone;
mod daemon;
mod flows;
mod foreign;
mod rig;
mod waiting;
