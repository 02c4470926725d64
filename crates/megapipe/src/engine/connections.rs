//! Counts the open connections that were accepted, and keeps them within
//! [`Config::max_connections`](crate::Config::max_connections).
//!
//! The channel delivers no connection beyond the limit. A driver may have accepted some before its
//! accepts are ended: at most one for each accept queue, because repeating accepts are used only
//! while a whole batch of them would fit. They are delivered when others are closed.

use super::Engine;
use crate::source::Counted;

/// The accepted connections of a channel.
#[derive(Default)]
pub(super) struct Connections {
    /// Has a clone in each connection that was delivered and is not registered.
    delivered: Counted,
    /// Number of members that are accepted connections.
    pub(super) members: u32,
}

impl Connections {
    /// Counts a connection until the returned value is dropped.
    pub(super) fn count(&self) -> Counted {
        self.delivered.clone()
    }
}

impl Engine {
    /// Returns the number of connections that may still be delivered.
    pub(super) fn free_connections(&self) -> u32 {
        let open = self.connections.members as usize + self.connections.delivered.clones();
        match self.config.max_connections {
            0 => u32::MAX,
            limit => limit.saturating_sub(open.try_into().unwrap_or(u32::MAX)),
        }
    }

    /// Returns the number of connections that may still be accepted: those that may be delivered,
    /// without those that wait for that.
    pub(super) fn room_for_connections(&self) -> u32 {
        let free = self.free_connections();
        if free == 0 || free == u32::MAX {
            return free;
        }
        let listeners = self.listeners.iter().filter_map(|key| self.members.get(*key)?.listener());
        let wanting = listeners.filter(|listener| listener.wanted > 0);
        let waiting = wanting.map(|listener| listener.undelivered + listener.stash.len() as u32);
        free.saturating_sub(waiting.sum())
    }

    /// Ends accepts whose connections might go beyond the limit: all without room, the repeating
    /// ones without room for a batch.
    pub(super) fn keep_within_limit(&mut self) {
        let room = self.room_for_connections();
        if room >= self.config.completions {
            return;
        }
        for at in 0..self.listeners.len() {
            let key = self.listeners[at];
            if room == 0 {
                self.disarm(key);
                continue;
            }
            let legs = self.members.get(key).and_then(|it| it.listener()).into_iter();
            for leg in legs.flat_map(|listener| &listener.legs) {
                if let Some(id) = leg.request
                    && let Some(request) = self.requests.get_mut(id)
                    && std::mem::take(&mut request.repeat)
                {
                    self.driver.cancel(id.tag(), leg.object);
                }
            }
        }
    }
}
