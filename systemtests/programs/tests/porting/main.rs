//! Tests what `docs/porting.md` describes: the installed C library, a ported program, and the
//! bindings of other languages, all through the installation.

mod bindings;
mod clients;
mod install;
mod rinetd;

/// The values of MEGAPIPE_DRIVER.
const DRIVERS: [&str; 2] = ["uring", "epoll"];
