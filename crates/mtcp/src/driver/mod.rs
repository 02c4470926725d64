//! Implements a driver of `megapipe`'s channel: the same server runs over io_uring, epoll or this
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
//! - **A listening TCP socket** that is bound to an address of the stack, or to all addresses,
//!   listens in the stack as well as in the kernel. One accept returns connections of both. (A
//!   socket of the kernel is bound to an address that only the stack has by `IP_FREEBIND`.)
//! - **A TCP socket that connects** to a destination behind the stack's interface connects in the
//!   stack. The kernel's socket is closed when that has succeeded.
//! - **Everything else**, from files to signals, goes to the kernel driver, in which the channel
//!   also sleeps.
//!
//! # What is different
//!
//! - **Descriptors.** A connection of the stack has none: `descriptor` fails with `EOPNOTSUPP`.
//!   `unregister` returns `None` and closes the connection with the next `flush` or `dispatch`. An
//!   accept of descriptors nevertheless returns connections without one.
//! - **Messages.** On a connection of the stack, `send_message` writes like `write` and refuses
//!   descriptors; other control data fails with `EOPNOTSUPP`. `receive_message` reads like `read`.
//! - **Lightweight sockets.** All accepted connections are
//!   [lightweight](megapipe::Socket::is_lightweight). Registering one with another channel fails
//!   with `EXDEV` and closes it.
//! - **A listener before it is registered** does not listen in the stack, which refuses connections
//!   until then. **After it is unregistered** its descriptor continues with the kernel's
//!   connections. Waiting connections of the stack are returned with it; further ones are refused.
//! - **Partitioned listeners.** A connection of the stack belongs to the core that a hash of its
//!   addresses selects, and so to that core's channel, whatever the channel's CPUs are. Every core
//!   of the stack needs a channel that listens. There is no stealing from other channels, and no
//!   channel inherits connections.
//! - **Channels.** A channel takes an engine and returns it when it ends. There cannot be more
//!   channels than engines.
//! - **A shutdown before the connect** fails with `ENOTCONN` and has no effect. The kernel keeps
//!   it: the connection that follows cannot send, or reads the end of the stream at once, without
//!   informing the peer.
//! - **A cancelled connect** ends, and the next one begins another connection. In the kernel the
//!   next one continues the first.
//! - **Progress.** In mode `complete` the stack runs only in the channel's `dispatch` and `flush`;
//!   a thread that blocks elsewhere stops it. In mode `paired` it runs by itself.
//! - **The end of a channel.** In mode `complete` unsent data has
//!   [`Config::grace`](crate::Config::grace) to be sent, and continues when another channel takes
//!   the engine.
//! - **The end of the device.** Once the interface is gone, every `dispatch` fails with `ENXIO`;
//!   if the device has failed for another reason, with `ENETDOWN`.
//!
//! No other difference is known: `channelfuzz --driver mtcp` compares random operations on
//! connections and listeners of the stack with those of the kernel. Its rules for the stack alone
//! are `NoDescriptor` and `ShutBeforeConnect`, for the points above, and `ResetBehindEnd`, for a
//! difference in timing.
//!
//! No request causes a transmission of its own: each `dispatch` and `flush` ends with one batch to
//! the device.

mod address;
mod engines;
mod entry;
mod reach;
mod seat;
mod stack_driver;

pub use self::engines::{Engines, InstallError};

use crate::Config;
use crate::start::Mtcp;

/// The name of the driver.
pub const NAME: &str = "mtcp";

/// Installs the stacks of a process as the driver `mtcp`, for all channels that ask for it.
///
/// # Errors
/// [`InstallError`] if a driver of this name was installed before.
pub fn install(mtcp: Mtcp) -> Result<(), InstallError> {
    let engines = Engines::new(mtcp);
    megapipe::driver_api::install(NAME, move |below| engines.driver(below))?;
    Ok(())
}

/// Starts the stacks that the file named by the environment variable `MTCP_CONFIG` describes, and
/// installs them.
///
/// # Errors
/// [`InstallError`] with the setting, or with the system's reason.
pub fn install_from_environment() -> Result<(), InstallError> {
    install(Mtcp::start(Config::from_environment()?)?)
}
