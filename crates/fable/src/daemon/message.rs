//! Parses the daemon's packets and checks their descriptors.

use std::os::fd::OwnedFd;

use crate::packet::Packet;
use crate::protocol::ToProcess;

/// A message with the descriptors that belong to it: all of them, or the first ones.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) body: ToProcess,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Whether this process had no room for the remaining descriptors.
    pub(super) has_lost_descriptors: bool,
}

/// Parses a packet. Closes the descriptors of a packet that it refuses.
pub(super) fn parse(packet: Packet) -> Result<Message, &'static str> {
    let body = serde_json::from_slice(&packet.bytes).map_err(|_| "it is no message we know")?;
    let expected = match &body {
        ToProcess::Connected { .. } | ToProcess::Incoming { .. } => 2..=3,
        ToProcess::Elsewhere { .. } => 1..=1,
        _ => 0..=0,
    };
    let Packet { descriptors, has_lost_descriptors, .. } = packet;
    // One flow that cannot be opened for lack of descriptors must not end all the others.
    let has_right_number = match has_lost_descriptors {
        true => descriptors.len() < *expected.end(),
        false => expected.contains(&descriptors.len()),
    };
    if !has_right_number {
        return Err("it came with the wrong number of descriptors");
    }
    Ok(Message { body, descriptors, has_lost_descriptors })
}

/// Returns the number of the request that a message answers.
pub(super) fn answered(body: &ToProcess) -> Option<u64> {
    match body {
        ToProcess::Registered { request, .. }
        | ToProcess::Connected { request, .. }
        | ToProcess::Elsewhere { request, .. }
        | ToProcess::Keys { request, .. }
        | ToProcess::Answer { request, .. }
        | ToProcess::OtherOwner { request, .. }
        | ToProcess::Refused { request, .. } => Some(*request),
        ToProcess::Welcome { .. }
        | ToProcess::Incoming { .. }
        | ToProcess::Move { .. }
        | ToProcess::Orders { .. }
        | ToProcess::Protect { .. } => None,
    }
}
