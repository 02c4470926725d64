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
/// Number of options that can be set.
const SETTABLE: usize = 4;
/// Only the state in TCP_INFO is compared; the rest depends on the way.
const INFO_BYTES: usize = 1;
/// States as TCP_INFO numbers them.
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSE_WAIT: u8 = 8;
const CLOSING: u8 = 11;

impl Run<'_> {
    /// Sets or reads the option of the operation.
    pub(crate) fn use_option(&mut self, op: Op, handle: Handle) -> Call {
        if !self.links[op.member / 2].kind.is_inet_stream() {
            return Call::Skipped;
        }
        if op.verb == Verb::SetOption {
            let (level, name) = OPTIONS[op.a as usize % SETTABLE];
            let link = &mut self.links[op.member / 2];
            if name == libc::SO_LINGER && link.kind.is_listener() {
                // The state of connections that end with a reset would not be known.
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
            // A shutdown waits behind a write while the buffers are full.
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
                    // The peer's system decides when it acknowledges the end.
                    value[0] = FIN_WAIT_2;
                }
                if name == libc::TCP_INFO && self.links[op.member / 2].state.peer_ended {
                    // When the peer's end arrives behind its data depends on the buffers.
                    value[0] = match value[0] {
                        ESTABLISHED => CLOSE_WAIT,
                        FIN_WAIT_2 | CLOSING => TIME_WAIT,
                        state => state,
                    };
                }
                Call::Told(name, value[..length.min(room)].to_vec())
            }
            Err(error) => called(Some(error)),
        }
    }
}

/// Returns whether the operation makes a close reset the connection.
pub(crate) fn is_reset_at_close(op: &Op) -> bool {
    let is_linger = OPTIONS[op.a as usize % SETTABLE].1 == libc::SO_LINGER;
    op.verb == Verb::SetOption && is_linger && op.b % 3 == 1
}

/// Returns a value of an option by its number.
fn value_of(name: i32, number: u32) -> Vec<u8> {
    let number = number as i32;
    match name {
        // Off, a reset, or one second to wait at the close.
        libc::SO_LINGER => [i32::from(number % 3 > 0), i32::from(number % 3 == 2)]
            .iter()
            .flat_map(|half| half.to_ne_bytes())
            .collect(),
        libc::TCP_USER_TIMEOUT => (number * 20_000).to_ne_bytes().to_vec(),
        _ => (number % 2).to_ne_bytes().to_vec(),
    }
}
