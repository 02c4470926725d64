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

/// A flow seen from other threads: what the daemon's connection needs of it. Does not keep the
/// flow alive.
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
    /// The flow.
    pub fn id(&self) -> FlowId {
        self.flow
    }

    /// Asks in the application's name for a move to this transport; the reporter and the flow's
    /// events tell of the outcome. Does nothing if the flow is closed.
    ///
    /// # Errors
    /// [`Error::System`] if this process cannot have an agent thread.
    pub fn request_move(&self, kind: Kind, reason: &str) -> Result<()> {
        let reason = reason.to_owned();
        self.run(move |driver| driver.want_as_application(kind, &reason))
    }

    /// The daemon's order to move, with what it knows of the flow.
    pub(crate) fn order_move(&self, kind: Kind, reason: &str, basis: Basis) -> Result<()> {
        let reason = reason.to_owned();
        self.run(move |driver| driver.want(kind, &reason, basis))
    }

    /// The daemon says what is ordered.
    pub(crate) fn adopt(&self, orders: Orders) -> Result<()> {
        self.run(move |driver| driver.adopt(&orders))
    }

    /// What is ordered, as far as this end knows; `None` if the flow is closed.
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

    /// Changes whether only protected transports may be used beyond this host, for later moves.
    pub fn set_protected(&self, protected: bool) {
        if let Some(shared) = self.shared.upgrade() {
            shared.protected.store(protected, Ordering::Relaxed);
        }
    }

    /// What a restarted daemon must know, with the flow's page; `None` if the flow is closed, or
    /// has no path yet.
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
