//! Tests of the adapted memcached by clients; every test runs over both drivers.

mod connections;
mod lifetime;
mod releases;
mod server;
mod values;
