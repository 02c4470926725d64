//! Implements epoll(7) over sockets of the stack and descriptors of the kernel. The kernel's epoll
//! instance watches the kernel's descriptors. A second instance in the stack, the *shadow*, watches
//! the stack's sockets, with the kernel's rules for level-triggered, edge-triggered and one-shot
//! registrations.

use crate::outcome::{Outcome, check, failure};
use crate::signals::BlockedSignals;
use crate::state::{self, EarlyWatch, Guard, World};
use crate::table::{self, Handle, Kind};
use crate::wait::{self, Interrupted};
use crate::{report, shutdowns};
use core::ffi::c_int;
use libc::{epoll_event, pollfd, sigset_t};
use mtcp::{EpollControl, EpollEvent, Events};
use preload::deadline::Deadline;
use preload::real;
use std::ptr;
use std::time::Duration;

/// Most events of the stack that one call takes.
const BATCH: usize = 256;
/// Data of the event that wakes a thread which waits in the kernel while its epoll gets a shadow.
const KICK: u64 = 0x6d74_6370_6b69_636b;

/// Implements epoll_ctl(2). `None`: the call concerns only the kernel.
///
/// # Errors
/// As epoll_ctl(2).
pub(crate) fn control(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) -> Outcome<Option<()>> {
    match table::kind(fd) {
        Kind::Inherited => failure(libc::EPERM),
        Kind::Socket(target) => {
            let mut guard = state::lock()?;
            let shadow = shadow(&mut guard, set)?;
            let world = guard.world()?;
            change(world, shadow, target, translate(operation, event)?)?;
            if let Some(kernel) = world.socket(target)?.kernel {
                let done = kernel_control(set, operation, kernel, event);
                if done.is_err() && operation == libc::EPOLL_CTL_ADD {
                    change(world, shadow, target, EpollControl::Delete)?;
                }
                done?;
            }
            Ok(Some(()))
        }
        Kind::Fresh => control_early(set, operation, fd, event),
        // An epoll in an epoll: the kernel's instances are nested, and so are the shadows.
        Kind::Shadowed(inner) => {
            let mut guard = state::lock()?;
            let shadow = shadow(&mut guard, set)?;
            change(guard.world()?, shadow, inner, translate(operation, event)?)?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn change(world: &mut World, shadow: Handle, target: Handle, control: EpollControl) -> Outcome<()> {
    let (shadow, target) = (world.check(shadow)?, world.check(target)?);
    world.context.epoll_ctl(shadow, target, control)
}

/// Changes the registration with the kernel's instance.
fn kernel_control(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) -> Outcome<()> {
    let mut event = event.unwrap_or(epoll_event { events: 0, u64: 0 });
    // SAFETY: the event is ours.
    check(unsafe { real::epoll_ctl(set, operation, fd, &raw mut event) }).map(|_| ())
}

fn translate(operation: c_int, event: Option<epoll_event>) -> Outcome<EpollControl> {
    let wanted = |event: epoll_event| EpollEvent { events: Events(event.events), data: event.u64 };
    Ok(match (operation, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => EpollControl::Add(wanted(event)),
        (libc::EPOLL_CTL_MOD, Some(event)) => EpollControl::Modify(wanted(event)),
        (libc::EPOLL_CTL_DEL, _) => EpollControl::Delete,
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => return failure(libc::EFAULT),
        _ => return failure(libc::EINVAL),
    })
}

/// Returns the shadow of an epoll instance; creates one if there is none.
fn shadow(guard: &mut Guard, set: c_int) -> Outcome<Handle> {
    match table::kind(set) {
        Kind::Shadowed(shadow) => Ok(shadow),
        Kind::Epoll => {
            let twins = take_twins(guard, set);
            let world = guard.world()?;
            let shadow = world.context.epoll_create()?;
            let shadow = world.enter_shadow(set, shadow);
            for twin in twins.into_iter().filter(|twin| *twin != set) {
                world.duplicate(twin, Kind::Shadowed(shadow))?;
            }
            if table::has_waiters(shadow) {
                kick(set, world.kick);
            }
            Ok(shadow)
        }
        _ => failure(libc::EINVAL),
    }
}

/// Wakes threads that wait in the kernel and do not know the shadow: registers a descriptor that is
/// always ready, until all of them have returned.
fn kick(set: c_int, ready: c_int) {
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: KICK };
    // SAFETY: the event is ours.
    unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, ready, &raw mut event) };
}

/// Removes that descriptor if no thread waits in the kernel any longer.
fn end_kick(set: c_int, ready: c_int, shadow: Handle) {
    if !table::has_waiters(shadow) {
        // SAFETY: the call takes only numbers; it reads no event.
        unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_DEL, ready, ptr::null_mut()) };
    }
}

/// Watches a socket that may become the stack's, and records the registration that the kernel has
/// accepted.
fn control_early(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) -> Outcome<Option<()>> {
    if event.is_none() && operation != libc::EPOLL_CTL_DEL {
        return Ok(None);
    }
    // The lock is held, so that the socket does not become the stack's in between.
    let mut guard = state::lock()?;
    if table::kind(fd) != Kind::Fresh {
        drop(guard);
        return control(set, operation, fd, event);
    }
    kernel_control(set, operation, fd, event)?;
    let early = &mut guard.state().early;
    early.retain(|watch| (watch.set, watch.fd) != (set, fd));
    if let (true, Some(event)) = (operation != libc::EPOLL_CTL_DEL, event) {
        early.push(EarlyWatch { set, fd, event });
    }
    Ok(Some(()))
}

/// Removes the recorded registrations of a descriptor that is closed. If the watched file has
/// another number, it is still watched.
pub(crate) fn forget_early(fd: c_int) {
    let Ok(mut guard) = state::lock_quietly() else { return };
    let mut twins = take_twins(&mut guard, fd);
    twins.retain(|twin| *twin != fd);
    if twins.is_empty() {
        shutdowns::take(&mut guard, fd);
    }
    let state = guard.state();
    if let (Kind::Fresh, Some(&twin)) = (table::kind(fd), twins.first()) {
        watch_by_twin(&mut state.early, fd, twin);
    }
    state.early.retain(|watch| watch.fd != fd && (watch.set != fd || !twins.is_empty()));
    if let Some(&twin) = twins.first() {
        for watch in state.early.iter_mut().filter(|watch| watch.set == fd) {
            watch.set = twin;
        }
        state.twins.push(twins);
    }
}

/// The kernel still watches a socket by a closed number while the socket has another number.
/// Registers the other number instead, because the registration of the closed one can no longer be
/// removed.
fn watch_by_twin(early: &mut [EarlyWatch], fd: c_int, twin: c_int) {
    for watch in early.iter_mut().filter(|watch| watch.fd == fd) {
        let mut event = watch.event;
        // SAFETY: the first call takes only numbers and reads no event; the second reads ours.
        unsafe {
            real::epoll_ctl(watch.set, libc::EPOLL_CTL_DEL, fd, ptr::null_mut());
            real::epoll_ctl(watch.set, libc::EPOLL_CTL_ADD, twin, &raw mut event);
        }
        watch.fd = twin;
    }
}

/// Removes an epoll instance without a shadow, or a socket that is not the stack's yet, from the
/// list of duplicates, and returns all its numbers.
pub(crate) fn take_twins(guard: &mut Guard, set: c_int) -> Vec<c_int> {
    let groups = &mut guard.state().twins;
    let found = groups.iter().position(|group| group.contains(&set));
    found.map(|index| groups.swap_remove(index)).unwrap_or_default()
}

/// Records a further number of an epoll instance, which shares its shadow, or of a socket that may
/// become the stack's under either number.
pub(crate) fn duplicate(set: c_int, new: c_int) -> Outcome<()> {
    let mut guard = state::lock_quietly()?;
    match table::kind(set) {
        kind @ (Kind::Epoll | Kind::Fresh) => {
            let mut twins = take_twins(&mut guard, set);
            if twins.is_empty() {
                twins.push(set);
            }
            twins.push(new);
            guard.state().twins.push(twins);
            table::set(new, kind);
            // Options can be set through either number.
            table::note_options(set);
            table::note_options(new);
            Ok(())
        }
        kind => guard.world()?.duplicate(new, kind),
    }
}

/// Returns the registrations of a socket that is about to become the stack's, and whether each
/// one-shot registration has already reported.
pub(crate) fn early_watches(guard: &mut Guard, fd: c_int) -> Vec<(EarlyWatch, bool)> {
    let watches = guard.state().early.iter().filter(|watch| watch.fd == fd);
    watches.map(|watch| (*watch, has_told(*watch))).collect()
}

/// Registers the kernel's listener with the epoll instances that watched the socket.
///
/// # Errors
/// The errors of epoll_ctl(2).
pub(crate) fn watch_listener(watches: &[(EarlyWatch, bool)], kernel: c_int) -> Outcome<()> {
    for (watch, has_told) in watches {
        let mut event = watch.event;
        if *has_told {
            event.events &= libc::EPOLLONESHOT as u32 | libc::EPOLLET as u32;
        }
        kernel_control(watch.set, libc::EPOLL_CTL_ADD, kernel, Some(event))?;
    }
    Ok(())
}

/// Moves the registrations of a socket to the shadows when it becomes the stack's.
///
/// # Errors
/// The errors of the stack's epolls.
pub(crate) fn move_early_watches(guard: &mut Guard, fd: c_int) -> Outcome<()> {
    let moved = early_watches(guard, fd);
    guard.state().early.retain(|watch| watch.fd != fd);
    for (watch, has_told) in moved {
        let Kind::Socket(target) = table::kind(fd) else { continue };
        // SAFETY: the call takes only numbers; it reads no event.
        unsafe { real::epoll_ctl(watch.set, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
        let shadow = shadow(guard, watch.set)?;
        let control = translate(libc::EPOLL_CTL_ADD, Some(watch.event))?;
        let world = guard.world()?;
        match change(world, shadow, target, control) {
            // The socket is registered by another number: an epoll of the stack has it once.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => continue,
            changed => changed?,
        }
        if has_told {
            world.context.epoll_silence(shadow.descriptor, target.descriptor)?;
        }
    }
    Ok(())
}

/// Returns whether a one-shot registration has reported: the kernel then waits for no event, as
/// /proc shows.
fn has_told(watch: EarlyWatch) -> bool {
    if watch.event.events & libc::EPOLLONESHOT as u32 == 0 {
        return false;
    }
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", watch.set));
    let waits_for = told.ok().and_then(|text| {
        text.lines().find_map(|line| {
            let mut words = line.strip_prefix("tfd:")?.split_whitespace();
            let fd: c_int = words.next()?.parse().ok()?;
            (fd == watch.fd).then(|| u32::from_str_radix(words.nth(1)?, 16).ok()).flatten()
        })
    });
    waits_for.is_some_and(|events| events & libc::EPOLLERR as u32 == 0)
}

/// Closes a number of an epoll instance, and with the last number the shadow.
pub(crate) fn close(fd: c_int, shadow: Handle) {
    table::set(fd, Kind::Plain);
    if let Ok(mut guard) = state::lock_quietly()
        && let Ok(world) = guard.world()
    {
        world.release(shadow);
    }
}

/// Implements epoll_pwait2(2).
///
/// # Errors
/// As epoll_wait(2).
pub(crate) fn wait(
    set: c_int,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: *const sigset_t,
) -> Outcome<usize> {
    // A thread that changes from sleeping in the kernel's epoll to sleeping for both parts must not
    // lose a signal in between, because the signal would not end its wait.
    let sleeps_there =
        !matches!(deadline, Deadline::Now) && !matches!(table::kind(set), Kind::Shadowed(_));
    let signals = sleeps_there.then(BlockedSignals::all);
    let mask = match &signals {
        Some(before) if mask.is_null() => &raw const before.0,
        _ => mask,
    };
    loop {
        let Kind::Shadowed(shadow) = table::kind(set) else {
            match kernel_wait(set, events, deadline, mask)? {
                // This event only woke the thread: the epoll has a shadow now.
                None => continue,
                Some(count) => return Ok(count),
            }
        };
        let kernel = [pollfd { fd: set, events: libc::POLLIN, revents: 0 }];
        let interrupted = Interrupted::Ends(mask);
        let found = wait::until(deadline, Some(shadow), &kernel, interrupted, |world| {
            let count = gather(world, set, shadow, events)?;
            Ok((count > 0).then_some(count))
        });
        return Ok(found?.unwrap_or(0));
    }
}

/// Returns the present events of both parts. The order of the parts alternates, so that neither is
/// starved while the other fills all the room.
fn gather(
    world: &mut World,
    set: c_int,
    shadow: Handle,
    events: &mut [epoll_event],
) -> Outcome<usize> {
    if world.asks_kernel_first(shadow) {
        let theirs = look(world, set, shadow, events)?;
        return Ok(theirs + look_at_shadow(world, shadow, &mut events[theirs..])?);
    }
    let ours = look_at_shadow(world, shadow, events)?;
    Ok(ours + look(world, set, shadow, &mut events[ours..])?)
}

/// Returns the present events of the stack's epoll.
fn look_at_shadow(world: &mut World, shadow: Handle, events: &mut [epoll_event]) -> Outcome<usize> {
    let mut room = [EpollEvent::default(); BATCH];
    let limit = events.len().min(BATCH);
    if limit == 0 {
        return Ok(0);
    }
    let none = Some(Duration::ZERO);
    let count = world.context.epoll_wait(shadow.descriptor, &mut room[..limit], none)?;
    for (to, from) in events.iter_mut().zip(&room[..count]) {
        *to = epoll_event { events: from.events.0, u64: from.data };
    }
    Ok(count)
}

/// Returns the present events of the kernel's epoll.
fn look(world: &World, set: c_int, shadow: Handle, events: &mut [epoll_event]) -> Outcome<usize> {
    if events.is_empty() {
        return Ok(0);
    }
    let count = events.len() as c_int;
    // SAFETY: there is room for `count` events.
    let found = unsafe { real::epoll_pwait(set, events.as_mut_ptr(), count, 0, ptr::null()) };
    let found = check(found)? as usize;
    let left = without_kick(events, found);
    if left < found {
        end_kick(set, world.kick, shadow);
    }
    Ok(left)
}

fn without_kick(events: &mut [epoll_event], mut count: usize) -> usize {
    let mut index = 0;
    while index < count {
        if events[index].u64 == KICK {
            events[index..count].rotate_left(1);
            count -= 1;
        } else {
            index += 1;
        }
    }
    count
}

fn kernel_wait(
    set: c_int,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: *const sigset_t,
) -> Outcome<Option<usize>> {
    let Some(_waiter) = table::Waiter::new(set) else { return Ok(None) };
    let count = events.len() as c_int;
    let time = deadline.left_ms();
    // SAFETY: there is room for `count` events, and the mask is the application's.
    let found =
        check(unsafe { real::epoll_pwait(set, events.as_mut_ptr(), count, time, mask) })? as usize;
    let left = without_kick(events, found);
    if left == 0 && found > 0 {
        report::note(format_args!("epoll {set} watches the stack's sockets from now on"));
        return Ok(None);
    }
    Ok(Some(left))
}
