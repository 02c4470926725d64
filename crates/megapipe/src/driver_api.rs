//! Registers drivers of other crates by name, and builds them for channels.
//!
//! **Unstable between versions**: this is the channel's internal interface, made public for drivers
//! in crates of their own.
//!
//! An installed [`Driver`] is a layer *over* the kernel driver. It gets the io_uring or epoll
//! driver of the channel, forwards all operations that are not its own, and lets the channel sleep
//! in that driver. It passes its own wake-up conditions to the kernel driver: a descriptor as an
//! [`Operation::Poll`] with a tag from [`INSTALLED_TAG`] on, whose outcome it does not forward; a
//! deadline as the time-out of [`Driver::collect`]. [`install`] gives the driver a name, which
//! [`Config::driver`] or the environment variable `MEGAPIPE_DRIVER` can choose.
//!
//! [`Config::driver`]: crate::Config::driver

pub use crate::driver::{
    Driver, Full, INSTALLED_TAG, INTERNAL_TAG, NO_OFFSET, Object, Operation, Outcome, Output,
    Pools, Unattached, Wake,
};
pub use crate::pool::Room;
pub use crate::source::{Discarded, Endpoint, NumberedSocket};

use crate::config::{Config, DriverChoice};
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

/// The parts from which an installed driver is built.
pub struct Below {
    /// The channel's io_uring or epoll driver.
    pub kernel: Box<dyn Driver>,
    /// Buffers in the channel's classes for the driver's own receives. They are separate from the
    /// kernel driver's buffers, because its ring may hold all of those.
    pub pools: Pools,
    /// The channel's settings, already checked.
    pub config: Config,
}

/// Makes a driver for a channel, in the channel's thread.
type Factory = dyn Fn(Below) -> io::Result<Box<dyn Driver>> + Send + Sync;

/// The installed drivers.
static INSTALLED: Mutex<Vec<(&'static str, Arc<Factory>)>> = Mutex::new(Vec::new());

/// The reason why a driver cannot be installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The name is reserved for a driver of this crate.
    #[error(
        "cannot install the driver {0:?}: the name is that of a built-in driver; choose another one"
    )]
    Reserved(&'static str),
    /// The name is in use.
    #[error("cannot install the driver {0:?}: the process has one of that name; install it once")]
    Taken(&'static str),
}

/// Installs a driver for all channels of the process that choose it from now on. The channel calls
/// the factory once, in its own thread; an error of the factory becomes the channel's.
///
/// # Errors
/// [`InstallError`], which names the cause.
pub fn install(
    name: &'static str,
    factory: impl Fn(Below) -> io::Result<Box<dyn Driver>> + Send + Sync + 'static,
) -> Result<(), InstallError> {
    if matches!(name, "auto" | "uring" | "epoll") {
        return Err(InstallError::Reserved(name));
    }
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if installed.iter().any(|(taken, _)| *taken == name) {
        return Err(InstallError::Taken(name));
    }
    installed.push((name, Arc::new(factory)));
    Ok(())
}

/// Returns the installed names.
pub fn installed() -> Vec<&'static str> {
    let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    installed.iter().map(|(name, _)| *name).collect()
}

/// Builds an installed driver; `None` if no driver has this name.
pub(crate) fn build(name: &str, below: Below) -> Option<io::Result<Box<dyn Driver>>> {
    let factory = {
        let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, factory) = installed.iter().find(|(known, _)| *known == name)?;
        Arc::clone(factory)
    };
    Some(factory(below))
}

/// Parses `auto`, `uring`, `epoll`, or the name of an installed driver.
impl FromStr for DriverChoice {
    type Err = UnknownDriver;

    fn from_str(name: &str) -> Result<DriverChoice, UnknownDriver> {
        match name {
            "auto" => Ok(DriverChoice::Auto),
            "uring" => Ok(DriverChoice::Uring),
            "epoll" => Ok(DriverChoice::Epoll),
            _ => match installed().into_iter().find(|known| *known == name) {
                Some(known) => Ok(DriverChoice::Installed(known)),
                None => Err(UnknownDriver(name.chars().take(64).collect())),
            },
        }
    }
}

/// A driver name that is neither `auto`, `uring` nor `epoll`, nor that of an installed driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDriver(pub(crate) String);

impl fmt::Display for UnknownDriver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "unknown driver {:?} (Config::driver or MEGAPIPE_DRIVER); use auto, uring, epoll",
            self.0
        )?;
        match &installed()[..] {
            [] => out.write_str("; no other driver is installed in this program"),
            names => write!(out, ", or an installed one: {}", names.join(", ")),
        }
    }
}

impl std::error::Error for UnknownDriver {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_names() {
        assert_eq!("uring".parse(), Ok(DriverChoice::Uring));
        let error = "kqueue".parse::<DriverChoice>().unwrap_err();
        assert!(error.to_string().contains("kqueue") && error.to_string().contains("auto"));
    }
}
