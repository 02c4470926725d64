//! Drives a context that several threads share behind a lock: publishes commands to the engine's
//! thread, takes its events, and tells whether sleeping threads must be woken. Records connections
//! for the process that resets them if this one is killed.

use super::Context;
use crate::engine::EngineFailure;
use crate::shared_connections::SharedConnections;
use std::io;
use std::sync::Arc;

impl Context {
    /// Publishes the commands since the last turn to an engine with its own thread, so that data,
    /// ends and resets are sent now. Without commands the cost is negligible.
    pub fn publish(&mut self) {
        self.port.publish();
    }

    /// Takes new events, before a call reports that there is nothing. Cheaper than
    /// [`Context::turn`]: it wakes no engine, and in mode `complete` it does nothing directly after
    /// a turn.
    ///
    /// # Errors
    /// As [`Context::turn`].
    pub fn refresh(&mut self) -> io::Result<()> {
        self.news |= self.port.refresh()?;
        self.take_events();
        Ok(())
    }

    /// Takes the events of an engine with its own thread, without a system call if there are none.
    /// In mode `complete` only [`Context::turn`] produces events.
    pub fn look(&mut self) {
        if self.port.look() {
            self.news = true;
            self.take_events();
        }
    }

    /// The reason why the stack has failed for good, if it has. From then on every call that waits,
    /// or that finds nothing, fails with `ENXIO` (the interface is gone) or `ENETDOWN`.
    pub fn failure(&self) -> Option<EngineFailure> {
        self.port.failure()
    }

    /// Records all connections of this context's stack in memory that another process shares, from
    /// the handshake's first packet until the connection has ended.
    pub fn record_connections(&mut self, shared: Arc<SharedConnections>) {
        self.port.record_connections(shared);
    }

    /// Whether any call has taken events since the last `take_news`; some may be for another
    /// thread.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// For threads that sleep after [`Context::prepare_to_sleep`]: whether a call has ended that
    /// preparation since, so that they would not be woken.
    pub fn sleepers_are_disturbed(&self) -> bool {
        self.port.is_disturbed()
    }
}
