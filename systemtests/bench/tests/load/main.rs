//! Tests of the servers of `iobench`, and of its load against known servers. They may run beside
//! others.

mod bare_systems;
mod known_servers;
mod load;
mod open;
mod servers;
