//! Defines a member of the channel, with its requests in their lanes.

mod input;
mod leaving;
mod limits;
mod listener;
mod output;

pub(crate) use self::input::{Input, Phase};
pub(crate) use self::leaving::{Closing, Leaving};
pub(crate) use self::limits::Limits;
pub(crate) use self::listener::{FIRST_PAUSE, Leg, Listener};
pub(crate) use self::output::Output;

use super::request::{Lane, Request};
use crate::driver::Object;
use crate::signals::Blocked;
use crate::slab::Key;
use crate::source::Kind;
use std::num::NonZeroU16;

/// A member of the channel.
pub(crate) struct Member {
    pub(super) object: Object,
    pub(crate) kind: Kind,
    /// The request in flight of each lane.
    pub(super) active: [Option<Key>; Lane::COUNT],
    /// Number of requests that the driver has, and of those among them that belong to no lane:
    /// requests at an offset of a file, and requests for addresses.
    pub(super) in_flight: u32,
    pub(super) loose: u32,
    /// Whether a connect is in flight, for which all other requests wait.
    pub(super) connecting: bool,
    /// Whether the stream uses large buffers, and the number of consecutive receives that suggest
    /// the other kind.
    pub(super) large: bool,
    pub(super) streak: u8,
    /// Whether each read returns one frame, so that large buffers are needed.
    pub(super) frames: bool,
    /// Whether the member is closed when it leaves, because it has no descriptor to return.
    pub(super) lightweight: bool,
    /// Whether it is an accepted connection, which counts for their limit.
    pub(super) accepted: bool,
    /// Whether the application has requested a duplicate of the member's descriptor.
    pub(super) has_duplicate: bool,
    /// Whether the connection was reset, which the kernel reports only to the first operation.
    pub(super) reset: bool,
    /// The domain of the socket, after it was determined.
    pub(super) domain: Option<NonZeroU16>,
    pub(super) leaving: Option<Box<Leaving>>,
    pub(super) extras: Option<Box<Extras>>,
}

/// A member has at most the size of a cache line, because a server may have very many idle
/// connections.
const _: () = assert!(size_of::<Member>() <= 64);

/// State that is allocated at first use and then kept. Most connections never have a request that
/// waits behind another, nor a time limit.
#[derive(Default)]
pub(super) struct Extras {
    waiting: [Waiting; Lane::COUNT],
    pub(super) output: Output,
    pub(super) limits: Option<Box<Limits>>,
    listener: Option<Box<Listener>>,
    /// Whether the kernel reports ancillary data with its datagrams.
    pub(super) ancillary: bool,
    /// Whether output failed part-way, so that closing resets the connection.
    pub(super) cut: bool,
    /// Whether the application has cancelled a write that was written in part, and has submitted no
    /// output since.
    pub(super) stopped: bool,
    /// Unblocks its signals when the member is removed.
    _blocked: Option<Box<Blocked>>,
}

/// Requests of a lane that wait behind the one in flight; a linked list.
#[derive(Default)]
struct Waiting {
    first: Option<Key>,
    last: Option<Key>,
}

impl Member {
    pub(super) fn new(object: Object, kind: Kind) -> Member {
        Member {
            object,
            kind,
            active: [None; Lane::COUNT],
            in_flight: 0,
            loose: 0,
            connecting: false,
            large: false,
            streak: 0,
            frames: false,
            lightweight: false,
            accepted: false,
            has_duplicate: false,
            reset: false,
            domain: None,
            leaving: None,
            extras: None,
        }
    }

    /// Makes the member a listener.
    pub(super) fn listening(mut self, listener: Listener) -> Member {
        self.extras().listener = Some(Box::new(listener));
        self
    }

    /// Adds the guard that unblocks its signals.
    pub(super) fn blocking(mut self, blocked: Blocked) -> Member {
        self.extras()._blocked = Some(Box::new(blocked));
        self
    }

    pub(super) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    pub(crate) fn object(&self) -> Object {
        self.object
    }

    /// Records that the driver has a request of the member.
    pub(super) fn note_begun(&mut self, request: &mut Request) {
        request.in_flight = true;
        self.in_flight += 1;
        self.loose += u32::from(request.lane == Lane::None);
    }

    pub(super) fn listener(&self) -> Option<&Listener> {
        self.extras.as_deref()?.listener.as_deref()
    }

    pub(super) fn listener_mut(&mut self) -> Option<&mut Listener> {
        self.extras.as_deref_mut()?.listener.as_deref_mut()
    }

    pub(super) fn shares_a_listener(&self) -> bool {
        self.listener().is_some_and(|listener| listener.share.is_some())
    }

    pub(super) fn has_limits(&self) -> bool {
        self.extras.as_deref().is_some_and(|extras| extras.limits.is_some())
    }

    pub(super) fn limits_mut(&mut self) -> Option<&mut Limits> {
        self.extras.as_deref_mut()?.limits.as_deref_mut()
    }

    /// Returns whether output ended part-way.
    pub(super) fn is_cut(&self) -> bool {
        self.extras.as_deref().is_some_and(|extras| extras.cut || extras.stopped)
    }

    /// Returns the queued output of the outbound lane.
    pub(super) fn output(&self) -> Output {
        self.extras.as_deref().map_or_else(Output::default, |extras| extras.output)
    }

    /// Returns whether a request of the lane waits behind the one in flight.
    pub(super) fn has_waiting(&self, lane: Lane) -> bool {
        self.first_waiting(lane).is_some()
    }

    /// Returns the first waiting request of a lane; it links to the next.
    pub(super) fn first_waiting(&self, lane: Lane) -> Option<Key> {
        self.extras.as_deref()?.waiting[lane as usize].first
    }

    /// Removes the first waiting request of a lane; `next` becomes the first.
    pub(super) fn shift_waiting(&mut self, lane: Lane, next: Option<Key>) {
        let waiting = &mut self.extras().waiting[lane as usize];
        waiting.first = next;
        if next.is_none() {
            waiting.last = None;
        }
    }

    /// Appends to the waiting requests of a lane; returns the request before it.
    pub(super) fn append_waiting(&mut self, lane: Lane, id: Key) -> Option<Key> {
        let waiting = &mut self.extras().waiting[lane as usize];
        waiting.first.get_or_insert(id);
        waiting.last.replace(id)
    }

    /// Takes all waiting requests of a lane; returns the first.
    pub(super) fn take_waiting(&mut self, lane: Lane) -> Option<Key> {
        let extras = self.extras.as_deref_mut()?;
        std::mem::take(&mut extras.waiting[lane as usize]).first
    }
}
