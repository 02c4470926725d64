//! Measures a flow of `fable`: its two ends without a daemon, over a control link and a flow page
//! that the first process creates. The difference from the transport alone is the cost of buffers,
//! epochs and counters.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fable::flow::{FlowParts, KeysAnswer, Opening, Reporter, Timeouts};
use fable::protocol::{FlowId, Peer, Role, Trust};
use fable::transport::PathOptions;
use fable::{Flow, Form, Kind, packet, page};
use ipcload::{End, Invitation, TIME_LIMIT};

use crate::sys::signals::wait_for_any_within;

/// One end. Opening the first path needs both processes, so the end opens when it is first used.
pub(crate) struct FlowEnd {
    state: State,
    batch: u32,
}

enum State {
    Opening(Opening),
    Open(Flow),
    /// Opening failed; the error has been returned.
    Failed,
}

impl FlowEnd {
    /// Creates the leader, which decides about the transport and its memory.
    pub(crate) fn create(
        kind: Kind,
        path: PathOptions,
        batch: u32,
    ) -> ipcload::Result<(FlowEnd, Invitation)> {
        let (leader, follower) = packet::pair().map_err(ipcload::Error::transport)?;
        let page = page::create().map_err(ipcload::Error::transport)?;
        let shared = page.try_clone().map_err(ipcload::Error::transport)?;
        let end = FlowEnd::start(parts(Role::Leader, kind, leader, page, path)?, batch)?;
        Ok((end, Invitation::by_numbers(vec![follower, shared])))
    }

    /// Opens the follower.
    pub(crate) fn open(
        kind: Kind,
        descriptors: Vec<OwnedFd>,
        path: PathOptions,
        batch: u32,
    ) -> ipcload::Result<FlowEnd> {
        let [link, page] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_| ipcload::Error::transport("a flow needs a control link and a page"))?;
        FlowEnd::start(parts(Role::Follower, kind, link, page, path)?, batch)
    }

    fn start(parts: FlowParts, batch: u32) -> ipcload::Result<FlowEnd> {
        let opening = Opening::start(parts).map_err(ipcload::Error::transport)?;
        Ok(FlowEnd { state: State::Opening(opening), batch })
    }

    /// Returns the flow, once its first path is open.
    #[inline]
    fn flow(&mut self) -> ipcload::Result<Option<&Flow>> {
        if !matches!(self.state, State::Open(_)) && !self.finish_opening()? {
            return Ok(None);
        }
        match &self.state {
            State::Open(flow) => Ok(Some(flow)),
            _ => Ok(None),
        }
    }

    #[cold]
    fn finish_opening(&mut self) -> ipcload::Result<bool> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Opening(opening) => {
                if !opening.is_ready() {
                    let descriptor = opening.descriptor().as_raw_fd();
                    wait_for_any_within(&[descriptor], TIME_LIMIT.as_millis() as i32);
                }
                if !opening.is_ready() {
                    self.state = State::Opening(opening);
                    return Ok(false);
                }
                let flow = opening.finish().map_err(ipcload::Error::transport)?;
                flow.set_batch(self.batch);
                self.state = State::Open(flow);
                Ok(true)
            }
            State::Open(flow) => {
                self.state = State::Open(flow);
                Ok(true)
            }
            State::Failed => Err(ipcload::Error::transport("the flow could not be opened")),
        }
    }
}

impl End for FlowEnd {
    #[inline]
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> ipcload::Result<bool> {
        let Some(flow) = self.flow()? else { return Ok(false) };
        let mut buffer = match flow.write_timeout(bytes, TIME_LIMIT) {
            Ok(buffer) => buffer,
            Err(error) => return nothing_yet(error),
        };
        fill(&mut buffer);
        buffer.commit().map_err(ipcload::Error::transport)?;
        Ok(true)
    }

    #[inline]
    fn flush(&mut self) -> ipcload::Result<bool> {
        let Some(flow) = self.flow()? else { return Ok(false) };
        flow.flush().map_err(ipcload::Error::transport)
    }

    #[inline]
    fn receive(&mut self, look: impl FnOnce(&[u8])) -> ipcload::Result<bool> {
        let Some(flow) = self.flow()? else { return Ok(false) };
        match flow.read_timeout(TIME_LIMIT) {
            Ok(Some(buffer)) => {
                look(&buffer);
                buffer.release();
                Ok(true)
            }
            Ok(None) => Err(ipcload::Error::transport("the flow was ended by its other end")),
            Err(error) => nothing_yet(error),
        }
    }
}

fn nothing_yet(error: fable::Error) -> ipcload::Result<bool> {
    match error {
        fable::Error::TimedOut => Ok(false),
        error => Err(ipcload::Error::transport(error)),
    }
}

/// Replaces the daemon: requests to it are ignored.
struct NoDaemon;

impl Reporter for NoDaemon {
    fn moved(&self, _flow: FlowId, _epoch: u32, _transport: Kind, _pause_ns: u64) {}
    fn move_failed(&self, _flow: FlowId, _transport: Kind, _reason: &str) {}
    fn ended(&self, _flow: FlowId, _reason: &str) {}
    fn keys(&self, _flow: FlowId, _role: Role, answer: KeysAnswer) {
        answer(Err("keys are the daemon's, and there is none".to_owned()));
    }
}

fn parts(
    role: Role,
    kind: Kind,
    link: OwnedFd,
    page: OwnedFd,
    path: PathOptions,
) -> ipcload::Result<FlowParts> {
    // The safe form is for untrusted peers: messages are read from a copy.
    let trust = match kind.form() {
        Some(Form::Safe) => Trust::Untrusted,
        _ => Trust::Trusted,
    };
    Ok(FlowParts {
        id: FlowId(1),
        name: "fable://iobench".parse().map_err(ipcload::Error::transport)?,
        role,
        peer: Peer {
            host: "here".to_owned(),
            pid: std::process::id() as i32,
            uid: 0,
            gid: 0,
            program: "iobench".to_owned(),
        },
        link,
        local: true,
        page,
        own_trust: trust,
        peer_trust: trust,
        protected: false,
        first: kind,
        reason: "it is measured".to_owned(),
        path,
        // Messages that are left in the ring after the measurement are not needed.
        timeouts: Timeouts { linger: Duration::ZERO, ..Timeouts::default() },
        reporter: Arc::new(NoDaemon),
        undelivered: Arc::default(),
    })
}
