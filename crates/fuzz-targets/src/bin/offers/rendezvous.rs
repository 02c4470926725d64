//! The messages of the rendezvous, from the library's source, and what a fuzz target needs of them.

#[path = "../../../../fable-preload/src/rendezvous/address.rs"]
mod address;
#[path = "../../../../fable-preload/src/rendezvous/message.rs"]
mod message;

use core::ffi::c_int;

use address::Address;
use message::{Message, Received};

use crate::sys;

/// Sends a valid offer or an entry for a visitor.
pub(crate) fn send_valid(to: c_int, descriptor: c_int, is_offer: bool) {
    let somewhere = Address { host: [7; 16], port: 7 };
    let message = if is_offer { Message::offer(somewhere, somewhere) } else { Message::visitor() };
    message.send(to, descriptor);
}

/// Receives a message and closes its descriptor, which must be open. Returns whether there may be
/// more.
pub(crate) fn receive(from: c_int) -> bool {
    match Message::receive(from) {
        Received::Message(message, descriptor) => {
            let now = message.as_of_now();
            assert!(!now.is_stale());
            assert_eq!(now.is_offer(), message.is_offer());
            // SAFETY: F_GETFD has no argument.
            assert!(unsafe { libc::fcntl(descriptor, libc::F_GETFD) } & libc::FD_CLOEXEC != 0);
            sys::close(descriptor);
            true
        }
        Received::Nothing => false,
        Received::Invalid => true,
    }
}
