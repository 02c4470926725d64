//! A channel with what C needs besides: numbers for what Rust owns.

use crate::address::Addresses;
use crate::failure::Failure;
use crate::numbering::Numbering;
use crate::slots::Slots;
use crate::types::mp_handle;
use channel::{Channel, Handle, Lease, Source};
use libc::{c_int, c_void};
use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::os::fd::IntoRawFd;

/// What is kept with each handle.
pub(crate) struct Cookie {
    pub(crate) pointer: *mut c_void,
}

/// A channel of C's.
pub(crate) struct State {
    pub(crate) channel: Channel<Cookie>,
    pub(crate) numbering: Numbering,
    /// Buffers in the caller's hands.
    pub(crate) leases: Slots<Lease>,
    /// Lightweight sockets between their accept and their registration, by their numbers: mostly
    /// none, and seldom more than one call of `mp_dispatch_batch` brings.
    lwsockets: HashMap<c_int, Source>,
    /// Descriptors that are the caller's again when the channel ends: the generation of the
    /// handle by its index; 0 where there is none.
    descriptors: Vec<u32>,
    most_generation: u32,
    /// Cookies of handles that are being closed, mostly in the order in which that ends.
    pub(crate) closing: VecDeque<(Handle, *mut c_void)>,
    pub(crate) addresses: Addresses,
    pub(crate) batch: Vec<channel::Completion>,
    pub(crate) driver_reason: CString,
}

impl State {
    pub(crate) fn new(channel: Channel<Cookie>, numbering: Numbering) -> State {
        let reason = channel.driver().reason.replace('\0', " ");
        State {
            channel,
            numbering,
            leases: Slots::new(),
            lwsockets: HashMap::new(),
            descriptors: Vec::new(),
            most_generation: 0,
            closing: VecDeque::new(),
            addresses: Addresses::default(),
            batch: Vec::new(),
            driver_reason: CString::new(reason).unwrap_or_default(),
        }
    }

    /// Notes a new member and gives its number.
    pub(crate) fn enroll(&mut self, handle: Handle, is_descriptor: bool) -> mp_handle {
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

    /// Forgets a member that was unregistered or closed. Says whether it was a descriptor that is
    /// the caller's again.
    pub(crate) fn dismiss(&mut self, handle: Handle) -> bool {
        let generation = self.descriptors.get_mut(handle.index() as usize);
        generation.is_some_and(|generation| std::mem::take(generation) != 0)
    }

    /// A handle of this channel by its number; `None` for another channel's.
    pub(crate) fn handle_of(&self, number: mp_handle) -> Option<Handle> {
        let (index, generation) = self.numbering.decode(number)?;
        Some(self.channel.handle(index, generation))
    }

    pub(crate) fn most_generation(&self) -> u32 {
        self.most_generation
    }

    /// Keeps a lightweight socket until it is registered.
    pub(crate) fn keep_lwsocket(&mut self, number: c_int, socket: impl Into<Source>) {
        self.lwsockets.insert(number, socket.into());
    }

    pub(crate) fn take_lwsocket(&mut self, number: c_int) -> Option<Source> {
        self.lwsockets.remove(&number)
    }

    /// Takes a buffer back that `Slots::keep` gave a number.
    pub(crate) fn take_lease(&mut self, number: i64) -> Result<Lease, Failure> {
        self.leases.take(number).ok_or(Failure::invalid(
            "the buffer is not in the caller's hands (any more): release what mp_event.buffer \
             said, once",
        ))
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
