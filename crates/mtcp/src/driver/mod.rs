//! The stack as a driver of `megapipe`'s channel: the same server runs over io_uring, epoll or this
//! stack, by configuration alone.
//!
//! ```no_run
//! // Once, at the beginning of the program:
//! mtcp::driver::install_from_environment()?;
//! // And then, wherever a channel is made (or with MEGAPIPE_DRIVER=mtcp in the environment):
//! let config = megapipe::Config {
//!     driver: megapipe::DriverChoice::Installed(mtcp::driver::NAME),
//!     ..megapipe::Config::default()
//! };
//! let channel: megapipe::Channel<()> = megapipe::Channel::with_config(config)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which connections are the stack's
//!
//! - **A listening TCP socket** that is bound to an address of the stack's, or to all addresses,
//!   listens in the stack as well as in the kernel: connections come from both, in one accept. (A
//!   socket of the kernel's is bound to an address that only the stack has by way of
//!   `IP_FREEBIND`.)
//! - **A TCP socket that connects** to a destination behind the stack's interface connects in the
//!   stack; the kernel's socket is closed when that has succeeded.
//! - **Everything else**, from files to signals, goes to the kernel's driver, in which the channel
//!   also sleeps.
//!
//! # What is different
//!
//! - **Descriptors.** A connection of the stack's has none: `descriptor` fails with `EOPNOTSUPP`,
//!   `unregister` gives `None` and closes it with the next `flush` or `dispatch`, and an accept of
//!   descriptors brings connections without one all the same.
//! - **Messages.** `send_message` writes to a connection of the stack's as `write` does and refuses
//!   descriptors; other control data ends with `EOPNOTSUPP`. `receive_message` reads as `read`
//!   does.
//! - **Lightweight sockets.** All accepted connections are
//!   [lightweight](megapipe::Socket::is_lightweight). Registering one with another channel fails
//!   with `EXDEV` and closes it.
//! - **A listener before it is registered** does not listen in the stack, which refuses connections
//!   until then. **After it is unregistered** its descriptor goes on with the kernel's connections;
//!   those of the stack's that wait come back with it, further ones are refused.
//! - **Partitioned listeners.** Connections of the stack's belong to the core that a hash of their
//!   addresses names, and so to its channel, whatever the channel's CPUs are. Every core of the
//!   stack needs a channel that listens. Nothing is stolen from other channels or inherited.
//! - **Channels.** A channel takes an engine and gives it back when it ends; one more than there
//!   are engines cannot be made.
//! - **A shutdown before the connect** fails with `ENOTCONN` and is forgotten. The kernel keeps it:
//!   the connection that follows cannot send, or finds the end of what it receives at once, without
//!   a word to the peer.
//! - **A connect that is cancelled** ends: the next one begins another connection, where the
//!   kernel's goes on with the first.
//! - **Progress.** In the mode `complete` the stack moves only in the channel's `dispatch` and
//!   `flush`; a thread that blocks elsewhere stops it. In the mode `paired` it moves by itself.
//! - **The end of a channel.** In the mode `complete` data that is still to be sent has
//!   [`Config::grace`](crate::Config::grace) for it, and goes on when another channel takes the
//!   engine.
//! - **The end of the device.** Once it has gone, every `dispatch` fails with its error.
//!
//! Nothing else is known to differ: `channelfuzz --driver mtcp` compares random operations on
//! connections and listeners of the stack with the kernel's. Its rules for the stack alone are
//! `NoDescriptor` and `ShutBeforeConnect`, for the points above, and `ResetBehindEnd`, which is a
//! matter of time.
//!
//! Nothing is sent to the device for a request: each `dispatch` and `flush` ends with one batch.

mod address;
mod engines;
mod entry;
mod reach;
mod road;
mod seat;

pub use self::engines::{Engines, InstallError};

use crate::Config;
use crate::start::Mtcp;

/// The name of the driver.
pub const NAME: &str = "mtcp";

/// Installs the stacks of a process below all channels that ask for the driver `mtcp`.
///
/// # Errors
/// [`InstallError`]: it was done before.
pub fn install(mtcp: Mtcp) -> Result<(), InstallError> {
    let engines = Engines::new(mtcp);
    megapipe::road::install(NAME, move |below| engines.driver(below))?;
    Ok(())
}

/// Starts the stacks that the file in the environment variable `MTCP_CONFIG` describes, and
/// installs them.
///
/// # Errors
/// [`InstallError`] names the setting, or what the system lacks.
pub fn install_from_environment() -> Result<(), InstallError> {
    install(Mtcp::start(Config::from_environment()?)?)
}
