//! Tests the installed C library, and the
//! bindings of other languages over it.

mod bindings;
mod clients;
mod install;

/// The values of MEGAPIPE_DRIVER.
const DRIVERS: [&str; 2] = ["uring", "epoll"];
