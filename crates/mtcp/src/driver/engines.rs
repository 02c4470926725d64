//! Engines for channels: each channel has one while it lives.

use super::reach::Reach;
use super::road::Road;
use super::seat::Seat;
use crate::config::{ConfigError, Mode};
use crate::engine::{Application, Engine, start_paired};
use crate::start::{Mtcp, StartError};
use megapipe::road::{Below, Driver};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Why the driver cannot be installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The stacks.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It was installed before.
    #[error(transparent)]
    Install(#[from] megapipe::road::InstallError),
}

/// An engine that no channel has.
enum Idle {
    Complete(Box<Engine>),
    Paired(Box<Application>),
}

/// Those that there are.
struct Stock {
    /// Stands by itself while the engines are used.
    mtcp: Mtcp,
    idle: VecDeque<Idle>,
    /// The first core whose engine was never taken.
    next: usize,
}

/// The engines of a process's stacks, which channels take and give back. Clones are the same stock.
#[derive(Clone)]
pub struct Engines(Arc<Mutex<Stock>>);

impl std::fmt::Debug for Engines {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Engines").finish_non_exhaustive()
    }
}

impl Engines {
    /// All engines of these stacks that have not been taken otherwise.
    pub fn new(mtcp: Mtcp) -> Engines {
        Engines(Arc::new(Mutex::new(Stock { mtcp, idle: VecDeque::new(), next: 0 })))
    }

    /// A driver for a channel, with an engine of its own; for a factory that is
    /// [installed](megapipe::road::install) under another name, or chooses among several stacks.
    ///
    /// # Errors
    /// `EBUSY`: all engines are taken. Of the kernel's driver, threads and netlink.
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
                Box::new(Road::new(below, seat, reach, options)?)
            }
            Idle::Paired(application) => {
                let home = Box::new(move |mut port: Application| {
                    // The process may end before the engine's thread would have come to it.
                    port.sync();
                    give_back(Idle::Paired(Box::new(port)));
                });
                // Its thread goes on by itself.
                let grace = Duration::ZERO;
                let seat = Seat::new(*application, home, grace);
                Box::new(Road::new(below, seat, reach, options)?)
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
            // One that somebody else has taken is passed by.
            let Ok(engine) = self.mtcp.engine(core) else { continue };
            return match self.mtcp.config().engine.mode {
                Mode::Complete => Ok(Idle::Complete(Box::new(engine))),
                Mode::Paired => {
                    let cpu = self.mtcp.config().engine.cpus.get(core).copied();
                    start_paired(engine, cpu).map(Box::new).map(Idle::Paired)
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
