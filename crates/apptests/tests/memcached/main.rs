//! The adapted memcached, as its clients see it; every test over both drivers.

mod connections;
mod lifetime;
mod server;
mod values;
