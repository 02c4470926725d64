//! Fuzzes the handles of the C library: live, closed and invented ones, of channels that exist and
//! that do not. A handle that no channel has is refused; nothing panics.

#![cfg_attr(fuzzing, no_main)]
#![expect(unreachable_pub, reason = "the modules are those of the C library")]

#[path = "../../../capi/src/address.rs"]
mod address;
#[path = "../../../capi/src/channel_table.rs"]
mod channel_table;
#[path = "../../../capi/src/config.rs"]
mod config;
#[path = "../../../capi/src/dispatch.rs"]
mod dispatch;
#[path = "../../../capi/src/failure.rs"]
mod failure;
#[path = "../../../capi/src/guard.rs"]
mod guard;
#[path = "../../../capi/src/lifecycle.rs"]
mod lifecycle;
#[path = "../../../capi/src/members.rs"]
mod members;
#[path = "../../../capi/src/messages.rs"]
mod messages;
#[path = "../../../capi/src/mtcp/mod.rs"]
mod mtcp;
#[path = "../../../capi/src/numbering.rs"]
mod numbering;
#[path = "../../../capi/src/requests.rs"]
mod requests;
#[path = "../../../capi/src/slots.rs"]
mod slots;
#[path = "../../../capi/src/socket_requests.rs"]
mod socket_requests;
#[path = "../../../capi/src/sockets.rs"]
mod sockets;
#[path = "../../../capi/src/state.rs"]
mod state;
#[path = "../../../capi/src/text.rs"]
mod text;
#[path = "../../../capi/src/timers.rs"]
mod timers;
#[path = "../../../capi/src/types.rs"]
mod types;
#[path = "../../../capi/src/xio/mod.rs"]
mod xio;

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{null, null_mut};

use fuzz_targets::Choices;
use types::{mp_channel, mp_event, mp_handle, mp_options};

const CHANNELS: usize = 2;
/// Most calls of one input; more show nothing new.
const CALLS_MAX: usize = 100;
/// Most handles of one input.
const HANDLES_MAX: usize = 32;
/// Most events that are taken at once.
const EVENTS_MAX: usize = 64;
const DRIVER_EPOLL: u32 = 2;
const COMMAND_CLOSE: u32 = types::mp_command::MP_CLOSE as u32;
/// What requests send, and where they receive: valid for ever, as the header requires.
static MEMORY: [u8; 4096] = [0; 4096];

/// A handle that a channel has given.
#[derive(Clone, Copy)]
struct Known {
    handle: mp_handle,
    channel: usize,
    life: Life,
    /// The descriptor, which is this program's again without the handle; -1 for a timer.
    descriptor: c_int,
}

impl Known {
    /// Records that the handle is no longer registered.
    fn is_unregistered(&mut self) {
        self.life = Life::Ended;
        // SAFETY: it is open, and nothing else has it. There is no descriptor -1.
        unsafe { libc::close(self.descriptor) };
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Live,
    /// `mp_close` or `mp_abort` has been called: refused at the latest after the event.
    Closing,
    Ended,
}

struct Stage {
    channels: [*mut mp_channel; CHANNELS],
    known: Vec<Known>,
}

fuzz_targets::target!(|bytes: &[u8]| {
    let mut input = Choices::new(bytes);
    let mut stage = Stage { channels: [null_mut(); CHANNELS], known: Vec::new() };
    for index in 0..CHANNELS {
        stage.create(index);
    }
    for _ in 0..CALLS_MAX {
        if input.are_over() {
            break;
        }
        stage.play(&mut input);
    }
    for index in 0..CHANNELS {
        stage.destroy(index);
    }
    for known in &stage.known {
        assert!(members::mp_close(known.handle) < 0, "a handle outlives its channel");
    }
});

impl Stage {
    fn create(&mut self, index: usize) {
        if self.channels[index].is_null() {
            // SAFETY: numbers, of which 0 means the default.
            let mut options: mp_options = unsafe { std::mem::zeroed() };
            options.driver = DRIVER_EPOLL;
            options.max_handles = 64;
            // SAFETY: the options are whole.
            self.channels[index] = unsafe { lifecycle::mp_create(&raw const options) };
            assert!(!self.channels[index].is_null(), "{}", io::Error::last_os_error());
        }
    }

    fn destroy(&mut self, index: usize) {
        let channel = std::mem::replace(&mut self.channels[index], null_mut());
        if !channel.is_null() {
            assert_eq!(lifecycle::mp_destroy(channel), 0);
            assert!(lifecycle::mp_destroy(channel) < 0, "a channel is destroyed twice");
            let own = self.known.iter_mut().filter(|known| known.channel == index);
            for known in own {
                match known.life {
                    Life::Live => known.is_unregistered(),
                    Life::Closing | Life::Ended => known.life = Life::Ended,
                }
            }
        }
    }

    fn play(&mut self, input: &mut Choices<'_>) {
        let index = usize::from(input.byte()) % CHANNELS;
        match input.byte() % 8 {
            0 => self.create(index),
            1 if input.byte().is_multiple_of(8) => self.destroy(index),
            1 | 2 => self.register(index),
            3 => self.dispatch(index),
            _ => self.call(input),
        }
    }

    /// Registers one end of a pair of sockets, whose other end is closed, or a timer.
    fn register(&mut self, index: usize) {
        let channel = self.channels[index];
        if self.known.len() == HANDLES_MAX || channel.is_null() {
            return;
        }
        let cookie = (self.known.len() + 1) as *mut c_void;
        let mut ends = [-1; 2];
        let handle = if self.known.len() % 4 == 3 {
            timers::mp_timer(channel, cookie)
        } else {
            let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            // SAFETY: there is room for both.
            let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
            assert_eq!(made, 0, "{}", io::Error::last_os_error());
            // SAFETY: it is open, and nothing else has it.
            unsafe { libc::close(ends[1]) };
            // SAFETY: there is no mask.
            unsafe { members::mp_register(channel, ends[0], cookie, null()) }
        };
        assert!(handle > 0, "{}", io::Error::last_os_error());
        assert!(self.known.iter().all(|known| known.handle != handle), "a handle is given twice");
        assert_eq!(members::mp_cookie(handle), cookie);
        self.known.push(Known { handle, channel: index, life: Life::Live, descriptor: ends[0] });
    }

    /// Takes the events of a channel.
    fn dispatch(&mut self, index: usize) {
        let channel = self.channels[index];
        for _ in 0..EVENTS_MAX {
            // SAFETY: an event consists of numbers and addresses, for which zero is valid.
            let mut event: mp_event = unsafe { std::mem::zeroed() };
            // SAFETY: the event is whole.
            match unsafe { dispatch::mp_dispatch(channel, &raw mut event, 0) } {
                1 => {}
                0 => return,
                _ => return assert!(channel.is_null(), "{}", io::Error::last_os_error()),
            }
            if event.cmd == COMMAND_CLOSE {
                self.known[event.cookie as usize - 1].life = Life::Ended;
            }
            if event.buffer >= 0 {
                assert_eq!(dispatch::mp_release(channel, event.buffer), 0);
                assert!(dispatch::mp_release(channel, event.buffer) < 0, "released twice");
            }
        }
    }

    /// Calls a function with a handle that was given once, or that differs from it in one bit, or
    /// any.
    fn call(&mut self, input: &mut Choices<'_>) {
        let at = usize::from(input.byte());
        let given = (!self.known.is_empty()).then(|| self.known[at % self.known.len()].handle);
        let handle = match (given, input.byte()) {
            (Some(given), choice @ 0..64) => given ^ 1 << choice,
            (Some(given), 64..) => given,
            (None, _) => input.number() as mp_handle,
        };
        let call = input.byte() % 16;
        let result = requested(call, handle, input);
        // SAFETY: the calling thread's errno is always there.
        let errno = unsafe { *libc::__errno_location() };
        assert!(result >= 0 || errno != libc::ENOTRECOVERABLE, "a call panicked");
        let known = self.known.iter_mut().find(|known| known.handle == handle);
        let life = known.as_ref().map_or(Life::Ended, |known| known.life);
        assert!(result < 0 || life != Life::Ended, "call {call} takes {handle:#x}");
        if let Some(known) = known.filter(|_| result >= 0) {
            match call {
                0 | 1 => known.life = Life::Closing,
                2 => known.is_unregistered(),
                _ => {}
            }
        }
    }
}

/// Makes a call; its result is negative if it is refused.
fn requested(call: u8, handle: mp_handle, input: &mut Choices<'_>) -> c_int {
    let number = c_int::from(input.byte()) - 2;
    let (memory, size) = (MEMORY.as_ptr().cast::<c_void>(), MEMORY.len());
    match call {
        0 => members::mp_close(handle),
        1 => members::mp_abort(handle),
        2 => members::mp_unregister(handle),
        3 => match members::mp_cookie(handle).is_null() {
            true => -1,
            false => 0,
        },
        4 => requests::mp_recv(handle, number),
        // SAFETY: the bytes are readable for ever.
        5 => unsafe { requests::mp_write(handle, memory, size) },
        6 => requests::mp_poll(handle, number as u32, c_int::from(input.byte() & 1)),
        7 => requests::mp_shutdown(handle, number),
        8 => requests::mp_cancel(handle, number),
        9 => requests::mp_queued(handle).min(1) as c_int,
        10 => requests::mp_write_buffer(handle, input.number() as i64, 0, size),
        11 => timers::mp_timer_set(handle, input.number(), input.number()),
        12 => requests::mp_accept(handle, number, c_int::from(input.byte() % 4)),
        13 => requests::mp_request_peer_address(handle),
        14 => requests::mp_disconnect(handle),
        // SAFETY: without a message the call is refused.
        _ => unsafe { messages::mp_sendmsg(handle, null()) },
    }
}
