//! Checks properties of the control link that hold for all bytes of a peer; a fuzz target calls it.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::link::{Descriptors, Link, Received};
use super::message::{MESSAGE_BYTES_MAX, Message};
use super::moves::{Action, Moves, Rules};
use crate::identity::{Role, Trust};
use crate::packet;

/// Most messages that are sent at once: more do not fit into the socket's queue.
const MESSAGES_MAX: usize = 32;
/// Most actions that follow from one message, such as a discarded path, the reason, and the next
/// path.
const ACTIONS_MAX: usize = 6;

/// Receives the bytes as messages of a peer, and passes them to the agreement on paths. The first
/// byte selects this end's role and the kind of link; on a local link a byte before each message
/// has its length in units of 16 bytes.
///
/// # Panics
/// If a property does not hold.
pub fn control_link(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let (local, trust) = (choice & 1 == 0, Trust::Trusted);
    let role = if choice & 2 == 0 { Role::Leader } else { Role::Follower };
    let rules = Rules { local, protected: choice & 4 != 0, own_trust: trust, peer_trust: trust };
    let mut link = if local { with_packets(bytes) } else { with_stream(bytes) };
    let mut moves = Moves::new(role, rules);
    loop {
        match link.receive() {
            Ok(Received::Message(message, descriptors)) => {
                assert!(matches!(descriptors, Descriptors::All(held) if held.is_empty()));
                check_form(&message);
                if moves.receive(message).is_err() {
                    return;
                }
                carry_out(&mut moves);
            }
            Ok(Received::Nothing) => unreachable!("the peer has closed"),
            Ok(Received::End | Received::Silence) | Err(_) => return,
        }
        assert!(link.arrived_bytes() <= 2 * MESSAGE_BYTES_MAX, "{}", link.arrived_bytes());
    }
}

/// Returns a local link whose peer has sent these messages, and closed.
fn with_packets(mut bytes: &[u8]) -> Link {
    let (own, peer) = packet::pair().expect("a pair of sockets");
    for _ in 0..MESSAGES_MAX {
        let Some((&units, rest)) = bytes.split_first() else { break };
        let (message, rest) = rest.split_at(rest.len().min(usize::from(units) * 16));
        // An empty packet would mean that the peer has closed, and is refused.
        let _ = packet::send(peer.as_fd(), message, &[]);
        bytes = rest;
    }
    Link::new(own, true, Duration::from_secs(1))
}

/// Returns a link to another host that has sent these bytes, and closed.
fn with_stream(bytes: &[u8]) -> Link {
    let (own, mut peer) = UnixStream::pair().expect("a pair of sockets");
    own.set_nonblocking(true).expect("O_NONBLOCK");
    peer.write_all(bytes).expect("the socket has room");
    Link::new(own.into(), false, Duration::from_secs(1))
}

/// Checks that a message is the same after it is written and parsed again.
fn check_form(message: &Message) {
    let written = serde_json::to_vec(message).expect("a message can be written");
    assert_eq!(*message, serde_json::from_slice(&written).expect("a message can be parsed"));
}

/// Carries out the actions, as if every path could be made and opened.
fn carry_out(moves: &mut Moves) {
    let mut actions = moves.take_actions();
    for round in 0.. {
        assert!(actions.len() <= ACTIONS_MAX, "{actions:?}");
        assert!(round <= ACTIONS_MAX, "the actions have no end");
        for action in &actions {
            match action {
                Action::Make { epoch, .. } => moves.made(*epoch, true),
                Action::Open { epoch, .. } => moves.opened(*epoch),
                Action::Send(message) => {
                    let written = serde_json::to_vec(message).expect("a message can be written");
                    assert!(written.len() <= MESSAGE_BYTES_MAX, "the peer refuses {message:?}");
                    check_form(message);
                }
                Action::Install { kind, .. } => {
                    assert!(moves.rules.check(*kind).is_ok(), "{kind} is against the rules");
                }
                Action::Offer { .. }
                | Action::Discard { .. }
                | Action::Failed { .. }
                | Action::Ordered => {}
            }
        }
        actions = moves.take_actions();
        if actions.is_empty() {
            break;
        }
    }
    let mut again = moves.orders().clone();
    assert!(!again.merge(moves.orders()), "a merge with itself changes {again:?}");
}
