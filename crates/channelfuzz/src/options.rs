//! Sets and reads options of sockets.

use crate::operate::called;
use crate::run::{Call, Run};
use crate::script::{Op, Verb};
use megapipe::Handle;

/// Options whose values are the same on every way.
const OPTIONS: [(i32, i32); 8] = [
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::SOL_SOCKET, libc::SO_ERROR),
    (libc::IPPROTO_TCP, libc::TCP_INFO),
    (libc::SOL_SOCKET, libc::SO_TYPE),
    (libc::SOL_SOCKET, libc::SO_ACCEPTCONN),
];
/// How many of them can be set.
const SETTABLE: usize = 4;
/// Of TCP_INFO the state; the rest depends on the way.
const INFO_BYTES: usize = 1;
/// States as TCP_INFO numbers them.
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;

impl Run<'_> {
    /// Sets or reads the option that the operation names.
    pub(crate) fn use_option(&mut self, op: Op, handle: Handle) -> Call {
        if !self.links[op.member / 2].kind.is_inet_stream() {
            return Call::Skipped;
        }
        if op.verb == Verb::SetOption {
            let (level, name) = OPTIONS[op.a as usize % SETTABLE];
            let link = &mut self.links[op.member / 2];
            if name == libc::SO_LINGER && link.kind.is_listener() {
                // Of connections that end with a reset nothing would be known.
                return Call::Skipped;
            }
            link.state.is_aborted |= is_reset_at_close(&op);
            let value = value_of(name, op.b);
            return called(self.channel.set_socket_option(handle, level, name, &value).err());
        }
        let (level, name) = OPTIONS[op.a as usize % OPTIONS.len()];
        let mut pending = self.members[op.member].pending.iter();
        let is_writing = pending.any(|id| self.requests[*id].what.is_in_direction(false));
        if name == libc::TCP_INFO && is_writing {
            // A shutdown waits behind a write for as long as the buffers are full.
            return Call::Skipped;
        }
        let mut value = [0; 8];
        let room = match name {
            libc::SO_LINGER => 8,
            libc::TCP_INFO => INFO_BYTES,
            _ => 4,
        };
        match self.channel.socket_option(handle, level, name, &mut value[..room]) {
            Ok(length) => {
                let is_error = name == libc::SO_ERROR && value != [0; 8];
                self.links[op.member / 2].state.error_told |= is_error;
                if name == libc::TCP_INFO && value[0] == FIN_WAIT_1 {
                    // When the peer acknowledges the end is its own matter.
                    value[0] = FIN_WAIT_2;
                }
                Call::Told(name, value[..length.min(room)].to_vec())
            }
            Err(error) => called(Some(error)),
        }
    }
}

/// Whether the operation makes a close reset the connection.
pub(crate) fn is_reset_at_close(op: &Op) -> bool {
    let is_linger = OPTIONS[op.a as usize % SETTABLE].1 == libc::SO_LINGER;
    op.verb == Verb::SetOption && is_linger && op.b % 3 == 1
}

/// A value of an option by its number.
fn value_of(name: i32, number: u32) -> Vec<u8> {
    let number = number as i32;
    match name {
        // Off, a reset, and a second to wait at the close.
        libc::SO_LINGER => [i32::from(number % 3 > 0), i32::from(number % 3 == 2)]
            .iter()
            .flat_map(|half| half.to_ne_bytes())
            .collect(),
        libc::TCP_USER_TIMEOUT => (number * 20_000).to_ne_bytes().to_vec(),
        _ => (number % 2).to_ne_bytes().to_vec(),
    }
}
