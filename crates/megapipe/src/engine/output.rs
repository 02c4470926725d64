//! Limits the queued output of each handle.
//!
//! A peer that does not read must not make the channel queue without limit: the handle's repeating
//! receives pause at [`Config::output_pause`](crate::Config::output_pause), writes are refused at
//! [`Config::output_limit`](crate::Config::output_limit), and waiting writes return the channel's
//! own buffers.

use super::{Engine, Lane, Request};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::slab::Key;

/// Number of requests that wait in a handle's outbound lane above which the leases of further ones
/// are copied.
const LEASES_WAITING: u32 = 8;

impl Engine {
    /// Returns the number of bytes of a member's requests that the driver has not written yet.
    pub(crate) fn queued_bytes(&self, key: Key) -> Result<usize, Error> {
        let member = self.member(key)?;
        let active = member.active[Lane::Outbound as usize];
        let active = active.and_then(|id| self.requests.get(id));
        Ok(member.output().bytes + active.map_or(0, Request::unwritten_bytes))
    }

    /// Copies the lease of a write if its buffer might be needed while the write waits.
    pub(crate) fn spare_lease(&mut self, key: Key, buffer: &mut Buffer) {
        let Buffer::Lease(lease) = buffer else { return };
        let waiting = self.members.get(key).map_or(0, |member| member.output().requests);
        if waiting >= LEASES_WAITING || lease.is_crowded() {
            *buffer = Buffer::Owned(lease.to_vec());
            self.counters.copied += 1;
        }
    }

    /// Counts a request that begins to wait in the outbound lane.
    pub(super) fn note_waiting(&mut self, key: Key, id: Key) {
        let bytes = self.requests.get(id).map_or(0, Request::unwritten_bytes);
        let Some(member) = self.members.get_mut(key) else { return };
        let output = &mut member.extras().output;
        output.bytes += bytes;
        output.requests += 1;
        if output.paused || output.footprint() < self.config.output_pause {
            return;
        }
        output.paused = true;
        self.counters.paused += 1;
        // A repeating receive in flight is cancelled in the driver.
        let Some(active) = member.active[Lane::Inbound as usize] else { return };
        if let Some(request) = self.requests.get_mut(active)
            && request.is_pausable()
            && request.in_flight
            && !request.recalled
        {
            request.recalled = true;
            self.driver.cancel(active.tag(), member.object);
        }
    }

    /// Counts that the first waiting request of the outbound lane has started.
    pub(super) fn note_started(&mut self, key: Key, id: Key) {
        let bytes = self.requests.get(id).map_or(0, Request::unwritten_bytes);
        let Some(member) = self.members.get_mut(key) else { return };
        let output = &mut member.extras().output;
        output.bytes = output.bytes.saturating_sub(bytes);
        output.requests = output.requests.saturating_sub(1);
        if output.footprint() <= self.config.output_pause / 2 {
            self.resume_receives(key);
        }
    }

    /// Counts that the outbound lane has no waiting requests.
    pub(super) fn note_emptied(&mut self, key: Key) {
        let Some(extras) =
            self.members.get_mut(key).and_then(|member| member.extras.as_deref_mut())
        else {
            return;
        };
        extras.output.bytes = 0;
        extras.output.requests = 0;
        self.resume_receives(key);
    }

    fn resume_receives(&mut self, key: Key) {
        let Some(member) = self.members.get_mut(key) else { return };
        if !member.output().paused {
            return;
        }
        member.extras().output.paused = false;
        let Some(id) = member.active[Lane::Inbound as usize] else { return };
        if self.requests.get(id).is_some_and(|request| request.parked && !request.cancelled) {
            self.start_or_stall(id);
        }
    }
}
