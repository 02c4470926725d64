//! Defines why an engine can no longer run.

use crate::system::errno;
use std::io;

/// The reason why an engine has failed for good: the operation, with its errno. Every later call of
/// its sockets that needs the engine fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineFailure {
    /// Frames cannot be received.
    #[error("cannot receive from the packet device: {}", errno(*.0))]
    Receive(i32),
    /// Frames cannot be sent.
    #[error("cannot send to the packet device: {}", errno(*.0))]
    Send(i32),
    /// The kernel's messages about the interface cannot be read, or the interface is gone.
    #[error("cannot follow the state of the interface: {}", errno(*.0))]
    Watch(i32),
    /// The engine cannot wait for its device.
    #[error("cannot wait for the packet device: {}", errno(*.0))]
    Wait(i32),
    /// The engine's thread has ended by a panic.
    #[error("the engine's thread has panicked; its message is on standard error")]
    Panicked,
}

impl From<EngineFailure> for io::Error {
    /// The error of calls on sockets: `ENXIO` if the interface is gone, otherwise `ENETDOWN`, whose
    /// meaning for a program does not depend on the cause.
    fn from(failure: EngineFailure) -> io::Error {
        match failure {
            EngineFailure::Receive(libc::ENXIO)
            | EngineFailure::Send(libc::ENXIO)
            | EngineFailure::Watch(libc::ENXIO) => errno(libc::ENXIO),
            _ => errno(libc::ENETDOWN),
        }
    }
}
