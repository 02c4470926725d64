//! The messages of the rendezvous, from the library's source, and what a fuzz target needs of them.

#[path = "../../../fable-preload/src/rendezvous/message.rs"]
#[allow(dead_code, reason = "parts that this target does not use")]
mod message;

use core::ffi::c_int;

use message::{Message, Received};

use crate::sys;

/// Sends a valid offer or an entry for a visitor.
pub(crate) fn send_valid(to: c_int, descriptor: c_int, is_offer: bool) {
    let message = if is_offer { Message::offer(7) } else { Message::visitor() };
    message.send(to, descriptor);
}

/// Receives a message and closes its descriptor, which must be open. Returns whether there may be
/// more.
pub(crate) fn receive(from: c_int) -> bool {
    match Message::receive(from) {
        Received::Message(message, descriptor) => {
            assert_eq!(message.made_by_now().is_offer(), message.is_offer());
            // SAFETY: F_GETFD has no argument.
            assert!(unsafe { libc::fcntl(descriptor, libc::F_GETFD) } & libc::FD_CLOEXEC != 0);
            sys::close(descriptor);
            true
        }
        Received::Nothing => false,
        Received::Invalid => true,
    }
}
