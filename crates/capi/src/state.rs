//! Defines a channel with the additional state that C needs: tables of objects with numbers.

use crate::address::Addresses;
use crate::failure::Failure;
use crate::numbering::Numbering;
use crate::slots::Slots;
use crate::types::mp_handle;
use channel::{Channel, Handle, Lease, Source};
use libc::{c_int, c_void};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;
use std::os::fd::IntoRawFd;
use std::ptr;

/// The value that is stored with each handle.
pub(crate) struct Cookie {
    pub(crate) pointer: *mut c_void,
}

/// A channel of C.
pub(crate) struct State {
    pub(crate) channel: Channel<Cookie>,
    pub(crate) numbering: Numbering,
    /// Buffers that the caller holds.
    pub(crate) leases: Slots<Lease>,
    /// Lightweight sockets between their accept and their registration, by their numbers: usually
    /// none, and seldom more than one call of `mp_dispatch_batch` delivers.
    lwsockets: BTreeMap<c_int, Source>,
    /// Descriptors of accepted connections until they are registered here or accepted again; `None`
    /// if the number of connections has no limit.
    accepted: Option<BTreeSet<c_int>>,
    /// Descriptors that belong to the caller again when the channel ends: the generation of the
    /// handle by its index; 0 where there is none.
    descriptors: Vec<u32>,
    most_generation: u32,
    /// Cookies of handles that are being closed, usually in the order in which their closes end.
    pub(crate) closing: VecDeque<(Handle, *mut c_void)>,
    pub(crate) addresses: Addresses,
    pub(crate) batch: Vec<channel::Completion>,
    pub(crate) driver_reason: CString,
}

impl State {
    /// `is_limited`: whether the number of connections has a limit.
    pub(crate) fn new(channel: Channel<Cookie>, numbering: Numbering, is_limited: bool) -> State {
        let reason = channel.driver().reason.replace('\0', " ");
        State {
            channel,
            numbering,
            leases: Slots::new(),
            lwsockets: BTreeMap::new(),
            accepted: is_limited.then(BTreeSet::new),
            descriptors: Vec::new(),
            most_generation: 0,
            closing: VecDeque::new(),
            addresses: Addresses::default(),
            batch: Vec::new(),
            driver_reason: CString::new(reason).unwrap_or_default(),
        }
    }

    /// Records a descriptor that an accept has returned.
    pub(crate) fn note_accepted(&mut self, fd: c_int) {
        if let Some(accepted) = &mut self.accepted {
            accepted.insert(fd);
        }
    }

    /// Returns whether a descriptor is one of them, which is registered or refused now.
    pub(crate) fn take_accepted(&mut self, fd: c_int) -> bool {
        self.accepted.as_mut().is_some_and(|accepted| accepted.remove(&fd))
    }

    /// Records a new member and returns its handle.
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

    /// Removes a member that was unregistered or closed. Returns whether it was a descriptor that
    /// belongs to the caller again.
    pub(crate) fn dismiss(&mut self, handle: Handle) -> bool {
        let generation = self.descriptors.get_mut(handle.index() as usize);
        generation.is_some_and(|generation| std::mem::take(generation) != 0)
    }

    /// Returns a handle of this channel by its number; `None` for another channel's.
    pub(crate) fn handle_of(&self, number: mp_handle) -> Option<Handle> {
        let (index, generation) = self.numbering.decode(number)?;
        Some(self.channel.handle(index, generation))
    }

    /// Returns the cookie of a handle, also of one that is being closed.
    pub(crate) fn cookie_of(&self, handle: Handle) -> *mut c_void {
        let open = self.channel.cookie(handle).map(|cookie| cookie.pointer);
        let closing = || self.closing.iter().find(|(closing, _)| *closing == handle);
        open.or_else(|| Some(closing()?.1)).unwrap_or(ptr::null_mut())
    }

    /// Returns the highest generation among the channel's handles.
    pub(crate) fn most_generation(&self) -> u32 {
        self.most_generation
    }

    /// Stores a lightweight socket until it is registered.
    pub(crate) fn keep_lwsocket(&mut self, number: c_int, socket: impl Into<Source>) {
        self.lwsockets.insert(number, socket.into());
    }

    pub(crate) fn take_lwsocket(&mut self, number: c_int) -> Option<Source> {
        self.lwsockets.remove(&number)
    }

    /// Takes a buffer by the number that `Slots::keep` returned.
    pub(crate) fn take_lease(&mut self, number: i64) -> Result<Lease, Failure> {
        self.leases.take(number).ok_or(Failure::invalid(
            "the caller does not own the buffer: release each mp_event.buffer once",
        ))
    }

    /// Returns the registered descriptors to the caller: they stay open after the channel's end.
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
