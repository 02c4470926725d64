//! Selects the driver of a channel.

use crate::failure::Failure;
use crate::types::mp_driver_choice;
use channel::{DriverChoice, Error};
use stack::driver::{NAME, install_from_environment};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Returns the driver of `enum mp_driver_choice`. If only the stack can be meant, which C cannot
/// install, installs the stack for the first channel that asks for it.
pub(crate) fn driver_of(choice: u32) -> Result<DriverChoice, Failure> {
    const AUTO: u32 = mp_driver_choice::MP_DRIVER_AUTO as u32;
    const URING: u32 = mp_driver_choice::MP_DRIVER_URING as u32;
    const EPOLL: u32 = mp_driver_choice::MP_DRIVER_EPOLL as u32;
    const MTCP: u32 = mp_driver_choice::MP_DRIVER_MTCP as u32;
    Ok(match choice {
        AUTO => {
            if sys::environment::variable("MEGAPIPE_DRIVER").is_some_and(|name| name == NAME) {
                install_stack()?;
            }
            DriverChoice::Auto
        }
        URING => DriverChoice::Uring,
        EPOLL => DriverChoice::Epoll,
        MTCP => {
            install_stack()?;
            DriverChoice::Installed(NAME)
        }
        _ => return Err(Failure::invalid("mp_options.driver must be one of MP_DRIVER_...")),
    })
}

/// Installs the stack if that was not done before. Each channel that asks for it gets the error of
/// a failed attempt, and the next channel tries again.
fn install_stack() -> Result<(), Failure> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        install_from_environment().map_err(|error| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
            Error::Installed { name: NAME, source }
        })?;
        *installed = true;
    }
    Ok(())
}
