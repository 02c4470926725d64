//! The daemon's packets, checked before anybody acts on them.

use std::os::fd::OwnedFd;

use crate::packet::Packet;
use crate::protocol::ToProcess;

/// A message with exactly the descriptors that belong to it, or the first of them.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) body: ToProcess,
    pub(super) descriptors: Vec<OwnedFd>,
    /// This process has no room for the others.
    pub(super) has_lost_descriptors: bool,
}

/// Takes a packet apart; the descriptors of one that is refused are closed.
pub(super) fn parse(packet: Packet) -> Result<Message, &'static str> {
    let body = serde_json::from_slice(&packet.bytes).map_err(|_| "it is no message we know")?;
    let expected = match &body {
        ToProcess::Connected { .. } | ToProcess::Incoming { .. } => 2..=3,
        ToProcess::Elsewhere { .. } => 1..=1,
        _ => 0..=0,
    };
    let Packet { descriptors, has_lost_descriptors, .. } = packet;
    // A flow that cannot be opened for want of descriptors is no reason to lose the others.
    let has_right_number = match has_lost_descriptors {
        true => descriptors.len() < *expected.end(),
        false => expected.contains(&descriptors.len()),
    };
    if !has_right_number {
        return Err("it came with the wrong number of descriptors");
    }
    Ok(Message { body, descriptors, has_lost_descriptors })
}

/// The number of the question that a message answers.
pub(super) fn answered(body: &ToProcess) -> Option<u64> {
    match body {
        ToProcess::Registered { request, .. }
        | ToProcess::Connected { request, .. }
        | ToProcess::Elsewhere { request, .. }
        | ToProcess::Keys { request, .. }
        | ToProcess::Answer { request, .. }
        | ToProcess::Refused { request, .. } => Some(*request),
        ToProcess::Welcome { .. }
        | ToProcess::Incoming { .. }
        | ToProcess::Move { .. }
        | ToProcess::Orders { .. }
        | ToProcess::Protect { .. } => None,
    }
}
