//! The objects that the agent watches for a flow: its control link, its peer's process, and its TLS
//! handshakes.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use super::{Driver, lock};
use crate::agent::{Agent, WatchOutcome, Watched};
use crate::control::link::Link;
use crate::error::Result as FableResult;
use crate::transport::tls::Handshake;

/// The agent's entry for a TLS handshake.
pub(super) struct Introduction {
    pub(super) handshake: Option<Handshake>,
    pub(super) driver: Weak<Mutex<Driver>>,
    pub(super) epoch: u32,
    pub(super) deadline: Instant,
}

impl Watched for Introduction {
    fn descriptor(&self) -> RawFd {
        self.handshake.as_ref().map_or(-1, |handshake| handshake.readiness().0)
    }

    fn events(&self) -> i16 {
        self.handshake.as_ref().map_or(0, |handshake| handshake.readiness().1)
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.deadline)
    }

    fn ready(&mut self, _events: i16) -> WatchOutcome {
        let (Some(mut handshake), Some(driver)) = (self.handshake.take(), self.driver.upgrade())
        else {
            return WatchOutcome::Not;
        };
        let mut driver = lock(&driver);
        if driver.prepared_kind(self.epoch).is_none() {
            return WatchOutcome::Not;
        }
        let outcome = match handshake.go_on() {
            Ok(false) if self.deadline > Instant::now() => {
                self.handshake = Some(handshake);
                return WatchOutcome::Watching;
            }
            Ok(false) => Err("the TLS handshake takes too long".to_owned()),
            Ok(true) => handshake.into_transport().map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        driver.introduced(self.epoch, outcome);
        WatchOutcome::Not
    }
}

/// Makes the agent watch a driver.
pub(crate) fn watch(driver: &Arc<Mutex<Driver>>) -> FableResult<()> {
    let agent = Agent::get()?;
    // The lock holds back changes until the agent can be informed of them.
    let mut locked = lock(driver);
    locked.places.push(agent.watch(Box::new(DriverWatch(Arc::clone(driver)))));
    Ok(())
}

/// Makes the agent watch the peer's process by its pidfd.
pub(crate) fn watch_process(driver: &Arc<Mutex<Driver>>, process: OwnedFd) -> FableResult<()> {
    let agent = Agent::get()?;
    let mut locked = lock(driver);
    let watch = ProcessWatch { process, driver: Arc::downgrade(driver) };
    locked.places.push(agent.watch(Box::new(watch)));
    Ok(())
}

/// The agent's entry for the peer's process.
struct ProcessWatch {
    process: OwnedFd,
    driver: Weak<Mutex<Driver>>,
}

impl Watched for ProcessWatch {
    fn descriptor(&self) -> RawFd {
        self.process.as_raw_fd()
    }

    fn events(&self) -> i16 {
        libc::POLLIN
    }

    fn deadline(&self) -> Option<Instant> {
        let is_over = |driver: Arc<Mutex<Driver>>| lock(&driver).link.is_none();
        self.driver.upgrade().is_none_or(is_over).then(Instant::now)
    }

    fn ready(&mut self, events: i16) -> WatchOutcome {
        if events != 0
            && let Some(driver) = self.driver.upgrade()
        {
            lock(&driver).peer_died();
        }
        WatchOutcome::Not
    }
}

/// The agent's entry for a driver.
struct DriverWatch(Arc<Mutex<Driver>>);

impl Watched for DriverWatch {
    fn descriptor(&self) -> RawFd {
        lock(&self.0).link.as_ref().map_or(-1, |link| link.socket().as_raw_fd())
    }

    fn events(&self) -> i16 {
        let wants_to_send = lock(&self.0).link.as_ref().is_some_and(Link::wants_to_send);
        if wants_to_send { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN }
    }

    fn deadline(&self) -> Option<Instant> {
        let driver = lock(&self.0);
        if driver.link.is_none() { Some(Instant::now()) } else { driver.deadline }
    }

    fn ready(&mut self, events: i16) -> WatchOutcome {
        let mut driver = lock(&self.0);
        if events != 0 {
            driver.receive();
        }
        if driver.deadline.is_some_and(|at| at <= Instant::now()) {
            driver.deadline = None;
            driver.moves.expired();
            driver.act();
        }
        if driver.link.is_some() { WatchOutcome::Watching } else { WatchOutcome::Not }
    }
}
