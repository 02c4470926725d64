//! Opens a flow: from its parts to its first path.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use megapipe::fork::CreatorProcess;

use super::core::{Core, State};
use super::counters::Counters;
use super::parts::{FlowParts, FlowSettings, Timeouts};
use super::path::Path;
use super::{Flow, FlowHandle};
use crate::agent::Agent;
use crate::control::driver::{self, Driver, Shared};
use crate::control::link::Link;
use crate::control::mailbox::{FlowMessage, Mailbox, Permit};
use crate::control::moves::{Basis, Rules};
use crate::error::{Error, Result};
use crate::identity::{FlowId, Peer, Role};
use crate::kind::Kind;
use crate::name::Name;
use crate::page::{Counter, Page};
use crate::transport::Transport;

type Control = (Arc<Shared>, Arc<Mutex<Driver>>);

/// A flow whose first path the agent is opening. It can be sent to the thread that is going to use
/// the flow, so that a listener with several of these does not wait for a slow peer. Dropping it
/// closes the control link.
pub struct Opening {
    control: Control,
    /// The flow page; `None` once the flow has it.
    page: Option<Page>,
    creator: CreatorProcess,
    timeouts: Timeouts,
    undelivered: Arc<AtomicU64>,
    deadline: Instant,
}

impl std::fmt::Debug for Opening {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Opening").field("id", &self.control.0.id).finish_non_exhaustive()
    }
}

/// The descriptors and objects of this process that an opening needs.
type ProcessParts = (CreatorProcess, Page, &'static Agent, Mailbox);

/// Returns the handle on the flow with this control link.
pub(super) fn handle_of(control: &Control) -> FlowHandle {
    let (shared, driver) = control;
    FlowHandle { flow: shared.id, shared: Arc::downgrade(shared), driver: Arc::downgrade(driver) }
}

impl Opening {
    /// Starts to open the first path, on the agent's thread.
    ///
    /// # Errors
    /// [`Error::Transport`] if the page is not valid, [`Error::System`]. The follower is sent the
    /// reason why the leader cannot open the flow.
    pub fn start(parts: FlowParts) -> Result<Opening> {
        let gather = || -> Result<ProcessParts> {
            Ok((creator()?, Page::open(parts.page.as_fd())?, Agent::get()?, Mailbox::new()?))
        };
        match gather() {
            Ok(means) => Opening::start_with(parts, means),
            Err(error) => {
                if parts.role == Role::Leader {
                    Link::decline(parts.link, parts.local, parts.first, &error.to_string());
                }
                Err(error)
            }
        }
    }

    fn start_with(
        parts: FlowParts,
        (creator, page, agent, mailbox): ProcessParts,
    ) -> Result<Opening> {
        let rules = Rules {
            local: parts.local,
            protected: parts.protected,
            own_trust: parts.own_trust,
            peer_trust: parts.peer_trust,
        };
        let shared = Arc::new(Shared {
            id: parts.id,
            name: parts.name,
            role: parts.role,
            peer: parts.peer,
            local: parts.local,
            own_trust: parts.own_trust,
            mailbox: Arc::new(mailbox),
            reporter: parts.reporter,
            page: parts.page,
            path: parts.path,
            offer_timeout: parts.timeouts.offer,
            silence_timeout: parts.timeouts.silence,
            protected: AtomicBool::new(parts.protected),
            epoch: AtomicU32::new(0),
            transport: AtomicU32::new(0),
        });
        let driver = Driver::new(Arc::clone(&shared), parts.link, rules);
        if parts.role == Role::Leader {
            let (driver, first, reason) = (Arc::clone(&driver), parts.first, parts.reason);
            agent.run(move || driver::lock(&driver).want(first, &reason, Basis::default()));
        }
        driver::watch(&driver)?;
        Ok(Opening {
            control: (shared, driver),
            page: Some(page),
            creator,
            timeouts: parts.timeouts,
            undelivered: parts.undelivered,
            deadline: Instant::now() + parts.timeouts.offer,
        })
    }

    /// Watches the peer's process by its pidfd: when it becomes readable, the peer is gone, even if
    /// a child of that process still has the control link.
    pub(crate) fn watch_process(&self, process: OwnedFd) -> Result<()> {
        driver::watch_process(&self.control.1, process)
    }

    /// Returns a descriptor that becomes readable when [`Opening::finish`] will not wait, because
    /// the path is open or has failed.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.control.0.mailbox.bell()
    }

    /// Returns whether `finish` will not wait.
    pub fn is_ready(&self) -> bool {
        self.control.0.mailbox.wants_attention() || self.deadline <= Instant::now()
    }

    /// Returns a handle on the flow for other threads.
    pub fn handle(&self) -> FlowHandle {
        handle_of(&self.control)
    }

    /// Waits for the first path and returns the flow. Call it on the thread that will use the flow.
    ///
    /// # Errors
    /// [`Error::Refused`] if the path cannot be opened, [`Error::TimedOut`] after
    /// [`Timeouts::offer`],
    /// [`Error::PeerDied`], [`Error::Corrupt`], [`Error::Forked`].
    pub fn finish(mut self) -> Result<Flow> {
        if !self.creator.is_here() {
            return Err(Error::Forked);
        }
        let ((epoch, kind, transport, permit), rest) = self.first_path()?;
        let counters = Counters::new(self.page.take(), self.control.0.role);
        let path = Rc::new(Path::new(epoch, transport, self.creator, Some(permit)));
        let shared = Arc::clone(&self.control.0);
        let (name, peer) = (shared.name.clone(), shared.peer.clone());
        let (mailbox, undelivered) = (Arc::clone(&shared.mailbox), Arc::clone(&self.undelivered));
        let core = Core {
            id: shared.id,
            role: shared.role,
            spin: shared.path.spin,
            control: Some(self.control.clone()),
            counters,
            ..Core::new(path, name, peer, self.timeouts, mailbox, undelivered)
        };
        core.counters.write(Counter::EpochWritten, epoch.into());
        core.counters.write(Counter::EpochRead, epoch.into());
        shared.tell_epoch(epoch, kind);
        shared.reporter.moved(shared.id, epoch, kind, 0);
        core.take_mails(rest);
        Ok(Flow { core: Rc::new(core), _thread: PhantomData })
    }

    fn first_path(&self) -> Result<(First, VecDeque<FlowMessage>)> {
        loop {
            let mut mails = self.control.0.mailbox.take();
            match mails.pop_front() {
                None => self.wait()?,
                Some(FlowMessage::Path { epoch, kind, transport, permit, .. }) => {
                    return Ok(((epoch, kind, transport, permit), mails));
                }
                Some(FlowMessage::Failed { kind, reason }) => {
                    let reason =
                        format!("the first path, over {kind}, does not come about: {reason}");
                    return Err(Error::Refused { reason });
                }
                Some(FlowMessage::Gone | FlowMessage::Silent) => return Err(Error::PeerDied),
                Some(FlowMessage::Broken { what }) => return Err(Error::Corrupt { what }),
            }
        }
    }

    fn wait(&self) -> Result<()> {
        if self.deadline <= Instant::now() {
            return Err(Error::TimedOut);
        }
        crate::poll::wait_for(self.descriptor().as_raw_fd(), libc::POLLIN, Some(self.deadline))
            .map(drop)
            .map_err(Error::system("ppoll"))
    }
}

type First = (u32, Kind, Box<dyn Transport>, Permit);

impl Drop for Opening {
    fn drop(&mut self) {
        // The flow has taken the page and everything else.
        if self.page.is_none() || !self.creator.is_here() {
            return;
        }
        let (shared, driver) = &self.control;
        shared.reporter.ended(shared.id, "not opened");
        let driver = Arc::clone(driver);
        if let Ok(agent) = Agent::get() {
            agent.run(move || driver::lock(&driver).abandon());
        }
    }
}

fn creator() -> Result<CreatorProcess> {
    CreatorProcess::here().map_err(Error::system("a page that fork wipes"))
}

/// Makes the state of a flow without control link.
pub(super) fn foreign(
    transport: Box<dyn Transport>,
    name: Name,
    peer: Peer,
    settings: FlowSettings,
) -> Result<Core> {
    let path = Rc::new(Path::new(1, transport, creator()?, None));
    let (FlowSettings { timeouts, undelivered, .. }, mailbox) = (settings, Mailbox::new()?);
    Ok(Core::new(path, name, peer, timeouts, Arc::new(mailbox), undelivered))
}

impl Core {
    /// Creates the state of a flow without control link on its only path.
    fn new(
        path: Rc<Path>,
        name: Name,
        peer: Peer,
        timeouts: Timeouts,
        mailbox: Arc<Mailbox>,
        undelivered: Arc<AtomicU64>,
    ) -> Core {
        Core {
            id: FlowId(0),
            name,
            role: Role::Follower,
            peer,
            creator: path.creator,
            timeouts,
            spin: Duration::ZERO,
            mailbox,
            control: None,
            counters: Counters::new(None, Role::Follower),
            state: RefCell::new(State::new(path)),
            watch: RefCell::new(None),
            write_buffers: Cell::new(0),
            wants_room: Cell::new(false),
            is_busy: Cell::new(false),
            is_closed: Cell::new(false),
            undelivered,
        }
    }
}
