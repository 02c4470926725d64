use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Weak};

use super::driver::{Driver, Shared, lock};
use super::moves::Basis;
use crate::agent::Agent;
use crate::error::{Error, Result};
use crate::identity::FlowId;
use crate::kind::Kind;
use crate::orders::Orders;
use crate::protocol::Announcement;

/// A handle on a flow for other threads, such as the one that serves the daemon connection. It does
/// not keep the flow alive.
#[derive(Clone)]
pub struct FlowHandle {
    pub(crate) flow: FlowId,
    pub(crate) shared: Weak<Shared>,
    pub(crate) driver: Weak<Mutex<Driver>>,
}

impl std::fmt::Debug for FlowHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FlowHandle").field("flow", &self.flow).finish_non_exhaustive()
    }
}

impl FlowHandle {
    /// Returns the flow's identifier.
    pub fn id(&self) -> FlowId {
        self.flow
    }

    /// Requests a move to this transport for the application. The reporter and the flow's events
    /// report the outcome. Does nothing if the flow is closed.
    ///
    /// # Errors
    /// [`Error::System`] if this process cannot have an agent thread.
    pub fn request_move(&self, kind: Kind, reason: &str) -> Result<()> {
        let reason = reason.to_owned();
        self.run(move |driver| driver.want_as_application(kind, &reason))
    }

    /// Moves the flow by the daemon's order; `basis` is what the daemon knew about the flow.
    pub(crate) fn order_move(&self, kind: Kind, reason: &str, basis: Basis) -> Result<()> {
        let reason = reason.to_owned();
        self.run(move |driver| driver.want(kind, &reason, basis))
    }

    /// Merges the orders that the daemon has sent.
    pub(crate) fn adopt(&self, orders: Orders) -> Result<()> {
        self.run(move |driver| driver.adopt(&orders))
    }

    /// Returns the orders that this end knows, or `None` if the flow is closed.
    pub(crate) fn orders(&self) -> Option<Orders> {
        self.driver.upgrade().map(|driver| lock(&driver).orders().clone())
    }

    fn run(&self, work: impl FnOnce(&mut Driver) + Send + 'static) -> Result<()> {
        let driver = self.driver.clone();
        Agent::get()?.run(move || {
            if let Some(driver) = driver.upgrade() {
                work(&mut lock(&driver));
            }
        });
        Ok(())
    }

    /// Sets whether only encrypted transports may be used between hosts, for later moves.
    pub fn set_protected(&self, protected: bool) {
        if let Some(shared) = self.shared.upgrade() {
            shared.protected.store(protected, Ordering::Relaxed);
        }
    }

    /// Returns what a restarted daemon must know, with the flow page; `None` if the flow is closed,
    /// or has no path yet.
    ///
    /// # Errors
    /// [`Error::System`] if the page's descriptor cannot be duplicated.
    pub fn describe(&self) -> Result<Option<(Announcement, OwnedFd)>> {
        let Some(shared) = self.shared.upgrade() else { return Ok(None) };
        let epoch = shared.epoch.load(Ordering::Relaxed);
        if epoch == 0 {
            return Ok(None);
        }
        let page = shared.page.try_clone().map_err(Error::system("duplicating a flow's page"))?;
        let transport = Kind::ALL[shared.transport.load(Ordering::Relaxed) as usize];
        let announcement = Announcement {
            flow: shared.id,
            name: shared.name.clone(),
            role: shared.role,
            peer: shared.peer.clone(),
            epoch,
            transport: transport.to_string(),
            trust: shared.own_trust,
            protected: shared.protected.load(Ordering::Relaxed),
            local: shared.local,
        };
        Ok(Some((announcement, page)))
    }
}
