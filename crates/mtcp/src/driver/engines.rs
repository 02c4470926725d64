//! Assigns engines to channels; each channel has one while it lives.

use super::reach::Reach;
use super::seat::Seat;
use super::stack_driver::MtcpDriver;
use crate::config::{ConfigError, Mode};
use crate::engine::{Application, Engine, start_paired};
use crate::start::{Mtcp, StartError};
use megapipe::driver_api::{Below, Driver};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The reason why the driver cannot be installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The stacks cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A driver of this name was installed before.
    #[error(transparent)]
    Install(#[from] megapipe::driver_api::InstallError),
}

/// An engine that no channel uses.
enum Idle {
    Complete(Box<Engine>),
    Paired(Box<Application>),
}

/// The engines that channels may take.
struct Stock {
    /// Keeps the stacks' shared state while the engines are used.
    mtcp: Mtcp,
    idle: VecDeque<Idle>,
    /// The first core whose engine was never taken.
    next: usize,
}

/// The engines of a process's stacks, which channels take and return. Clones share the same
/// engines.
#[derive(Clone)]
pub struct Engines(Arc<Mutex<Stock>>);

impl std::fmt::Debug for Engines {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Engines").finish_non_exhaustive()
    }
}

impl Engines {
    /// All engines of these stacks that are not taken yet.
    pub fn new(mtcp: Mtcp) -> Engines {
        Engines(Arc::new(Mutex::new(Stock { mtcp, idle: VecDeque::new(), next: 0 })))
    }

    /// Creates a driver for a channel, with an engine of its own. Serves factories that are
    /// [installed](megapipe::driver_api::install) under another name, or that choose among several
    /// stacks.
    ///
    /// # Errors
    /// `EBUSY` if all engines are taken; the errors of the kernel driver, of threads and of
    /// netlink.
    pub fn driver(&self, below: Below) -> io::Result<Box<dyn Driver>> {
        let (idle, config) = {
            let mut stock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (stock.take()?, stock.mtcp.config().clone())
        };
        let reach = Reach::new(&config).map_err(io::Error::other)?;
        let (options, grace) = (config.tcp.options, config.grace);
        let stock = Arc::clone(&self.0);
        let give_back = move |idle| {
            let mut stock = stock.lock().unwrap_or_else(PoisonError::into_inner);
            stock.idle.push_front(idle);
        };
        Ok(match idle {
            Idle::Complete(engine) => {
                let home = Box::new(move |engine| give_back(Idle::Complete(Box::new(engine))));
                let seat = Seat::new(*engine, home, grace);
                Box::new(MtcpDriver::new(below, seat, reach, options)?)
            }
            Idle::Paired(application) => {
                let home = Box::new(move |mut port: Application| {
                    // The process may end before the engine's thread executes the commands.
                    port.sync();
                    give_back(Idle::Paired(Box::new(port)));
                });
                // Its thread continues by itself.
                let grace = Duration::ZERO;
                let seat = Seat::new(*application, home, grace);
                Box::new(MtcpDriver::new(below, seat, reach, options)?)
            }
        })
    }
}

impl Stock {
    fn take(&mut self) -> io::Result<Idle> {
        if let Some(idle) = self.idle.pop_front() {
            return Ok(idle);
        }
        while self.next < self.mtcp.cores() {
            let core = self.next;
            self.next += 1;
            // Skips an engine that other code has taken.
            let Ok(engine) = self.mtcp.engine(core) else { continue };
            return match self.mtcp.config().engine.mode {
                Mode::Complete => Ok(Idle::Complete(Box::new(engine))),
                Mode::Paired => {
                    let cpu = self.mtcp.config().engine.cpus.get(core).copied();
                    let has_filter = self.mtcp.config().engine.seccomp;
                    let started = start_paired(engine, cpu, has_filter);
                    started.map(Box::new).map(Idle::Paired).map_err(io::Error::other)
                }
            };
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!(
                "all {} engines of the stack have their channels: raise engine.cores, and give \
                 each core a channel",
                self.mtcp.cores()
            ),
        ))
    }
}
