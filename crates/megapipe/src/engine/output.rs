//! Limits the queued output of each handle.
//!
//! A peer that does not read must not make the channel queue without limit: the handle's repeating
//! receives pause at [`Config::output_pause`](crate::Config::output_pause), writes are refused at
//! [`Config::output_limit`](crate::Config::output_limit), and waiting writes return the channel's
//! own buffers. Of two paired members, each one's output pauses the other's receives: what a proxy
//! reads from one connection waits at the other.

use super::{Engine, Lane, Member, Request};
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
        let source = output.partner.unwrap_or(key);
        self.counters.paused += 1;
        self.adjust_receives(source);
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
        let output = member.output();
        if output.paused {
            member.extras().output.paused = false;
            self.adjust_receives(output.partner.unwrap_or(key));
        }
    }

    /// Lets the output of each of two members pause the receives of the other, not its own.
    pub(crate) fn pair(&mut self, one: Key, other: Key) -> Result<(), Error> {
        self.member(one)?;
        self.member(other)?;
        self.unpair(one);
        self.unpair(other);
        for (key, partner) in [(one, other), (other, one)] {
            if let Some(member) = self.members.get_mut(key) {
                member.extras().output.partner = Some(partner).filter(|partner| *partner != key);
            }
        }
        self.adjust_receives(one);
        self.adjust_receives(other);
        Ok(())
    }

    /// Ends the pair of a member, if it has a partner.
    pub(super) fn unpair(&mut self, key: Key) {
        let Some(partner) = self.members.get(key).and_then(|member| member.output().partner) else {
            return;
        };
        for key in [key, partner] {
            if let Some(member) = self.members.get_mut(key) {
                member.extras().output.partner = None;
            }
            self.adjust_receives(key);
        }
    }

    /// Returns whether the repeating receives of a member have to pause.
    pub(super) fn holds_receives(&self, key: Key) -> bool {
        let output = self.members.get(key).map(Member::output).unwrap_or_default();
        let Some(partner) = output.partner else { return output.paused };
        self.members.get(partner).is_some_and(|partner| partner.output().paused)
    }

    /// Pauses or resumes the repeating receive of a member, as the output that it depends on
    /// demands.
    fn adjust_receives(&mut self, key: Key) {
        let pauses = self.holds_receives(key);
        let Some(member) = self.members.get(key) else { return };
        let Some(id) = member.active[Lane::Inbound as usize] else { return };
        let Some(request) = self.requests.get_mut(id) else { return };
        if pauses && request.is_pausable() && request.in_flight && !request.recalled {
            request.recalled = true;
            self.driver.cancel(id.tag(), member.object);
        } else if !pauses && request.parked && !request.cancelled {
            self.start_or_stall(id);
        }
    }
}
