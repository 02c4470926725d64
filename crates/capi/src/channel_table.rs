//! Maps C handles and pointers to channels, and checks them, with two loads.
//!
//! Each channel has an entry in a static table. An `mp_channel *` points to the entry. It is
//! compared with the table before it is dereferenced, so a pointer to a destroyed channel does no
//! harm. The index of the entry is part of every handle. Only the thread that owns an entry
//! accesses its channel.

use crate::failure::Failure;
use crate::guard::{Guarded, contain};
use crate::numbering::{Numbering, SLOTS, place_of};
use crate::state::State;
use crate::types::{mp_channel, mp_handle};
use channel::Handle;
use std::cell::Cell;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The entry of one channel.
struct Slot {
    /// The number of the owning thread, 0 while the entry is free.
    owner: AtomicU64,
    state: AtomicPtr<Guarded<State>>,
    /// Added to the generations of the channel's handles. It is above all generations that earlier
    /// channels of the entry have used, so their handles stay stale.
    base: AtomicU32,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        owner: AtomicU64::new(0),
        state: AtomicPtr::new(ptr::null_mut()),
        base: AtomicU32::new(0),
    }
}; SLOTS];

/// Where the search for a free entry begins: as far as possible from the last one that was freed.
static NEXT: Mutex<usize> = Mutex::new(0);

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The thread's number, which no later thread gets, unlike the system's. 0 until the first
    /// channel.
    static THREAD: Cell<u64> = const { Cell::new(0) };
    static LEAVING: Leaving = const { Leaving };
}

/// Destroys the channels that still exist when the thread ends.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        let me = THREAD.get();
        for (number, place) in TABLE.iter().enumerate() {
            if place.owner.load(Ordering::Relaxed) == me {
                // A panic must not propagate out of a thread's end; what is not destroyed then is
                // leaked.
                let _ = catch_unwind(|| vacate(number));
            }
        }
    }
}

/// Stores a channel in a free entry.
pub(crate) fn occupy(make: impl FnOnce(Numbering) -> State) -> Result<*mut mp_channel, Failure> {
    if THREAD.get() == 0 {
        THREAD.set(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    // The access makes the C library drop it when the thread ends.
    LEAVING.with(|_| ());
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let free = |number: &usize| TABLE[*number].owner.load(Ordering::Relaxed) == 0;
    let Some(number) = (0..SLOTS).map(|step| (*next + step) % SLOTS).find(free) else {
        return Err(Failure::own(
            libc::EMFILE,
            "1024 channels exist in this process, the limit: destroy one, or use fewer threads",
        ));
    };
    *next = (number + 1) % SLOTS;
    let place = &TABLE[number];
    let numbering = Numbering { place: number, base: place.base.load(Ordering::Relaxed) };
    let guarded = Box::new(Guarded::new(make(numbering)));
    place.state.store(Box::into_raw(guarded), Ordering::Relaxed);
    place.owner.store(THREAD.get(), Ordering::Release);
    Ok(ptr::from_ref(place).cast_mut().cast())
}

/// Destroys a channel and frees its entry.
fn vacate(number: usize) {
    let place = &TABLE[number];
    let guarded = place.state.swap(ptr::null_mut(), Ordering::Relaxed);
    if guarded.is_null() {
        return;
    }
    // SAFETY: the entry belongs to this thread, and the box that `occupy` gave up is taken out of
    // it exactly once.
    let mut guarded = unsafe { Box::from_raw(guarded) };
    let most_generation = guarded.get_mut().most_generation();
    place.base.fetch_add(most_generation.wrapping_add(1), Ordering::Relaxed);
    if let Some(mut state) = guarded.into_whole() {
        state.end();
    }
    let _next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    place.owner.store(0, Ordering::Release);
}

/// Returns the index of the entry to which a C pointer points.
fn number_of(channel: *const mp_channel) -> Result<usize, Failure> {
    if channel.is_null() {
        return Err(Failure::NULL);
    }
    let offset = (channel as usize).wrapping_sub(TABLE.as_ptr() as usize);
    let number = offset / size_of::<Slot>();
    if number >= SLOTS || !offset.is_multiple_of(size_of::<Slot>()) {
        return Err(Failure::NO_CHANNEL);
    }
    match TABLE[number].owner.load(Ordering::Acquire) {
        0 => Err(Failure::NO_CHANNEL),
        owner if owner == THREAD.get() => Ok(number),
        _ => Err(Failure::own(
            libc::EPERM,
            "the channel belongs to another thread: call it there, or create one for each thread",
        )),
    }
}

/// Runs a call on the channel of a pointer.
pub(crate) fn on_channel<T>(
    channel: *const mp_channel,
    body: impl FnOnce(&mut State) -> Result<T, Failure>,
) -> Result<T, Failure> {
    enter(number_of(channel)?, body)
}

/// Runs a call on the channel of a handle.
#[inline]
pub(crate) fn on_handle<T>(
    handle: mp_handle,
    body: impl FnOnce(&mut State, Handle) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let Some(number) = place_of(handle) else { return Err(Failure::NO_HANDLE) };
    let place = &TABLE[number];
    // The owner 0 of a free entry is also the number of a thread that never had a channel.
    let owner = place.owner.load(Ordering::Acquire);
    if owner == 0 || owner != THREAD.get() {
        return Err(Failure::NO_HANDLE);
    }
    let numbering = Numbering { place: number, base: place.base.load(Ordering::Relaxed) };
    let Some((index, generation)) = numbering.decode(handle) else {
        return Err(Failure::NO_HANDLE);
    };
    enter(number, |state| {
        let handle = state.channel.handle(index, generation);
        body(state, handle)
    })
}

/// Runs a call on the channel of an entry of this thread.
#[inline]
fn enter<T>(
    number: usize,
    body: impl FnOnce(&mut State) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let guarded = TABLE[number].state.load(Ordering::Relaxed);
    if guarded.is_null() {
        return Err(Failure::NO_CHANNEL);
    }
    // SAFETY: the entry belongs to this thread, and only this thread frees it, but not during a
    // call, see `destroy`.
    unsafe { &*guarded }.enter(body)
}

/// Destroys the channel of a pointer.
pub(crate) fn destroy(channel: *mut mp_channel) -> Result<(), Failure> {
    let number = number_of(channel)?;
    let guarded = TABLE[number].state.load(Ordering::Relaxed);
    // SAFETY: the entry belongs to this thread, and only this thread frees it.
    if !guarded.is_null() && unsafe { &*guarded }.is_inside() {
        return Err(Failure::WITHIN);
    }
    contain(|| {
        vacate(number);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use channel::{Channel, Config, DriverChoice};

    fn create() -> *mut mp_channel {
        let config = Config { driver: DriverChoice::Epoll, ..Config::default() };
        let channel = Channel::with_config(config).unwrap();
        occupy(|numbering| State::new(channel, numbering, false))
            .unwrap_or_else(|_| panic!("no place"))
    }

    fn errno<T>(result: Result<T, Failure>) -> i32 {
        result.map_or_else(|failure| failure.errno(), |_| 0)
    }

    #[test]
    fn a_panic_stays_inside_and_ends_the_channel_only() {
        let (broken, whole) = (create(), create());
        let panicked = on_channel(broken, |_| -> Result<(), Failure> { panic!("on purpose") });
        assert_eq!(errno(panicked), libc::ENOTRECOVERABLE);
        assert_eq!(errno(on_channel(broken, |_| Ok(()))), libc::ENOTRECOVERABLE);
        assert_eq!(errno(on_channel(whole, |_| Ok(()))), 0);
        assert_eq!(errno(destroy(broken)), 0);
        assert_eq!(errno(on_channel(broken, |_| Ok(()))), libc::EBADF);
        assert_eq!(errno(destroy(whole)), 0);
    }

    #[test]
    fn a_call_within_a_call_is_refused_as_from_a_signal_handler() {
        let channel = create();
        let inner =
            on_channel(channel, |_| Ok((errno(on_channel(channel, |_| Ok(()))), destroy(channel))));
        let Ok((called, destroyed)) = inner else { panic!("the outer call must succeed") };
        assert_eq!((called, errno(destroyed)), (libc::EDEADLK, libc::EDEADLK));
        assert_eq!(errno(on_channel(channel, |_| Ok(()))), 0);
        assert_eq!(errno(destroy(channel)), 0);
    }
}
