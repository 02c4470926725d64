//! A member of the channel, and its requests in their lanes.

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

/// A member of the channel.
pub(crate) struct Member {
    pub(super) object: Object,
    pub(crate) kind: Kind,
    /// The request under way of each lane.
    pub(super) active: [Option<Key>; Lane::COUNT],
    /// Requests that the driver has, and those of them that belong to no lane: of files at an
    /// offset, questions for addresses.
    pub(super) in_flight: u32,
    pub(super) loose: u32,
    /// Whether a connect is under way, which everything else waits for.
    pub(super) connecting: bool,
    /// Whether the stream is received into large buffers, and how many receives in a row spoke for
    /// the other kind.
    pub(super) large: bool,
    pub(super) streak: u8,
    /// Whether each read takes one frame, so that only large buffers will do.
    pub(super) frames: bool,
    /// Whether it is closed when it leaves, having no descriptor to give back.
    pub(super) lightweight: bool,
    /// Whether the application has asked for another descriptor of it.
    pub(super) has_duplicate: bool,
    /// Whether the connection was reset, which the kernel tells only the first operation.
    pub(super) reset: bool,
    /// The domain of the socket, once somebody has asked.
    pub(super) domain: Option<u16>,
    pub(super) leaving: Option<Box<Leaving>>,
    pub(super) extras: Option<Box<Extras>>,
}

/// A server may have very many connections that do nothing: one is no more than a cache line.
const _: () = assert!(size_of::<Member>() <= 64);

/// What a member gets when it first needs it, and then keeps: most connections never have a request
/// that waits behind another, nor a time limit.
#[derive(Default)]
pub(super) struct Extras {
    waiting: [Waiting; Lane::COUNT],
    pub(super) output: Output,
    pub(super) limits: Option<Box<Limits>>,
    listener: Option<Box<Listener>>,
    /// Signals that are unblocked when the member goes.
    _blocked: Option<Box<Blocked>>,
}

/// Requests of a lane that wait behind the one under way; each knows the next.
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
            has_duplicate: false,
            reset: false,
            domain: None,
            leaving: None,
            extras: None,
        }
    }

    /// The same as a listener.
    pub(super) fn listening(mut self, listener: Listener) -> Member {
        self.extras().listener = Some(Box::new(listener));
        self
    }

    /// The same with signals that are unblocked when it goes.
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

    /// Notes that the driver has a request of the member's.
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

    /// What waits in the outbound lane.
    pub(super) fn output(&self) -> Output {
        self.extras.as_deref().map_or_else(Output::default, |extras| extras.output)
    }

    /// Whether a request of the lane waits behind the one under way.
    pub(super) fn has_waiting(&self, lane: Lane) -> bool {
        self.first_waiting(lane).is_some()
    }

    /// The first request that waits in a lane. It knows the next.
    pub(super) fn first_waiting(&self, lane: Lane) -> Option<Key> {
        self.extras.as_deref()?.waiting[lane as usize].first
    }

    /// Notes that the first waiting request of a lane waits no more, and which one follows it.
    pub(super) fn shift_waiting(&mut self, lane: Lane, next: Option<Key>) {
        let waiting = &mut self.extras().waiting[lane as usize];
        waiting.first = next;
        if next.is_none() {
            waiting.last = None;
        }
    }

    /// Appends to what waits in a lane; gives the request that `id` then follows.
    pub(super) fn append_waiting(&mut self, lane: Lane, id: Key) -> Option<Key> {
        let waiting = &mut self.extras().waiting[lane as usize];
        waiting.first.get_or_insert(id);
        waiting.last.replace(id)
    }

    /// Takes all that waits in a lane; gives the first.
    pub(super) fn take_waiting(&mut self, lane: Lane) -> Option<Key> {
        let extras = self.extras.as_deref_mut()?;
        std::mem::take(&mut extras.waiting[lane as usize]).first
    }
}
