//! A channel with what C needs besides: numbers for what Rust owns.

use crate::address::Addresses;
use crate::failure::Failure;
use crate::place::Numbering;
use crate::types::{MP_LWSOCKET_FIRST, mp_handle};
use channel::{Channel, Handle, Lease, Socket};
use libc::{c_int, c_void};
use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::IntoRawFd;

/// What is kept with each handle.
pub(crate) struct Cookie {
    pub(crate) pointer: *mut c_void,
}

/// The place in the table of a number that is at least `MP_LWSOCKET_FIRST`.
fn lwsocket_index(number: c_int) -> usize {
    (number - MP_LWSOCKET_FIRST) as usize
}

/// A channel of C's.
pub(crate) struct State {
    pub(crate) channel: Channel<Cookie>,
    pub(crate) numbering: Numbering,
    pub(crate) leases: Leases,
    /// Lightweight sockets between their accept and their registration, by their index.
    lwsockets: Vec<Option<Socket>>,
    /// Descriptors that are the caller's again when the channel ends: the generation of the
    /// handle by its index; 0 where there is none.
    descriptors: Vec<u32>,
    pub(crate) members: u32,
    pub(crate) max_members: u32,
    most_generation: u32,
    /// Cookies of handles that are being closed, mostly in the order in which that ends.
    pub(crate) closing: VecDeque<(Handle, *mut c_void)>,
    pub(crate) addresses: Addresses,
    pub(crate) batch: Vec<channel::Completion>,
    pub(crate) driver_reason: CString,
}

impl State {
    pub(crate) fn new(channel: Channel<Cookie>, max_members: u32, numbering: Numbering) -> State {
        let reason = channel.driver().reason.replace('\0', " ");
        State {
            channel,
            numbering,
            leases: Leases::default(),
            lwsockets: Vec::new(),
            descriptors: Vec::new(),
            members: 0,
            max_members,
            most_generation: 0,
            closing: VecDeque::new(),
            addresses: Addresses::default(),
            batch: Vec::new(),
            driver_reason: CString::new(reason).unwrap_or_default(),
        }
    }

    /// Notes a new member and gives its number.
    pub(crate) fn enroll(&mut self, handle: Handle, is_descriptor: bool) -> mp_handle {
        self.members += 1;
        self.most_generation = self.most_generation.max(handle.generation());
        let index = handle.index() as usize;
        if is_descriptor {
            if index >= self.descriptors.len() {
                self.descriptors.resize(index + 1, 0);
            }
            self.descriptors[index] = handle.generation();
        }
        self.numbering.encode(handle)
    }

    /// Forgets a member that was unregistered or closed.
    pub(crate) fn dismiss(&mut self, handle: Handle) {
        self.members -= 1;
        if let Some(generation) = self.descriptors.get_mut(handle.index() as usize) {
            *generation = 0;
        }
    }

    pub(crate) fn most_generation(&self) -> u32 {
        self.most_generation
    }

    /// Keeps a lightweight socket until it is registered.
    pub(crate) fn keep_lwsocket(&mut self, number: c_int, socket: Socket) {
        let index = lwsocket_index(number);
        if index >= self.lwsockets.len() {
            self.lwsockets.resize_with(index + 1, || None);
        }
        self.lwsockets[index] = Some(socket);
    }

    pub(crate) fn take_lwsocket(&mut self, number: c_int) -> Option<Socket> {
        self.lwsockets.get_mut(lwsocket_index(number))?.take()
    }

    /// Gives descriptors back to the caller: they outlive the channel.
    pub(crate) fn end(&mut self) {
        for (index, generation) in std::mem::take(&mut self.descriptors).into_iter().enumerate() {
            if generation == 0 {
                continue;
            }
            let handle = self.channel.handle(index as u32, generation);
            if let Ok(left) = self.channel.unregister(handle)
                && let Some(descriptor) = left.descriptor
            {
                let _ = descriptor.into_raw_fd();
            }
        }
    }
}

/// Buffers in the caller's hands. A number carries the generation of its slot, so that one that
/// was released is not taken for another.
#[derive(Default)]
pub(crate) struct Leases {
    slots: Vec<(u32, Option<Lease>)>,
    free: Vec<u32>,
}

const GENERATION_MASK: u32 = u32::MAX >> 1;

impl Leases {
    pub(crate) fn keep(&mut self, lease: Lease) -> i64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            // The channel has fewer buffers than 2^17.
            (self.slots.len() - 1) as u32
        });
        let (generation, slot) = &mut self.slots[index as usize];
        *slot = Some(lease);
        i64::from(*generation) << 32 | i64::from(index)
    }

    pub(crate) fn take(&mut self, number: i64) -> Result<Lease, Failure> {
        let index = number as u32;
        let slot = self.slots.get_mut(index as usize);
        let slot = slot.filter(|slot| i64::from(slot.0) == number >> 32);
        let Some((generation, Some(lease))) = slot.map(|slot| (&mut slot.0, slot.1.take())) else {
            return Err(Failure::invalid(
                "the buffer is not in the caller's hands (any more): release what mp_event.buffer \
                 said, once",
            ));
        };
        *generation = (*generation + 1) & GENERATION_MASK;
        self.free.push(index);
        Ok(lease)
    }

    /// Takes a buffer back that `take` gave, under the number that it had.
    pub(crate) fn put_back(&mut self, number: i64, lease: Lease) {
        let index = number as u32;
        self.free.retain(|free| *free != index);
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = ((number >> 32) as u32, Some(lease));
        }
    }
}
