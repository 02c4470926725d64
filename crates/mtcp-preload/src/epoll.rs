//! epoll(7) over both: the kernel's epoll watches what is the kernel's, and a shadow of it in
//! the stack what is the stack's. Level, edge and one-shot are the stack's own, with the kernel's
//! rules.

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

/// Events of the stack that one call takes at most.
const BATCH: usize = 256;
/// What a thread finds that waits in the kernel while its epoll gets a shadow.
const KICK: u64 = 0x6d74_6370_6b69_636b;

/// Does what epoll_ctl(2) does, or says by `None` that it is for the kernel alone.
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
        // An epoll in an epoll: the kernel's in the kernel's, and the shadow in the shadow.
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

/// Changes the kernel's part of a watch.
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

/// The shadow of an epoll, made if it has none yet.
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

/// Gets threads up that wait in the kernel and do not know of the shadow: by a descriptor that is
/// always ready, until all have gone.
fn kick(set: c_int, ready: c_int) {
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: KICK };
    // SAFETY: the event is ours.
    unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, ready, &raw mut event) };
}

/// Ends that, if no thread waits there any more.
fn end_kick(set: c_int, ready: c_int, shadow: Handle) {
    if !table::has_waiters(shadow) {
        // SAFETY: plain numbers; there is no event to be read.
        unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_DEL, ready, ptr::null_mut()) };
    }
}

/// Watches a socket that may become the stack's, and notes what the kernel has taken.
fn control_early(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) -> Outcome<Option<()>> {
    if event.is_none() && operation != libc::EPOLL_CTL_DEL {
        return Ok(None);
    }
    // With the lock held, so that the socket does not become the stack's in between.
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

/// Forgets what was noted of a descriptor that is closed. What an epoll watches that has another
/// number is still watched.
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

/// The kernel goes on watching a socket by a number that is closed, as long as it has another one:
/// that is watched instead, because by the closed one the watch could not be ended any more.
fn watch_by_twin(early: &mut [EarlyWatch], fd: c_int, twin: c_int) {
    for watch in early.iter_mut().filter(|watch| watch.fd == fd) {
        let mut event = watch.event;
        // SAFETY: plain numbers; there is no event to be read, then one of ours.
        unsafe {
            real::epoll_ctl(watch.set, libc::EPOLL_CTL_DEL, fd, ptr::null_mut());
            real::epoll_ctl(watch.set, libc::EPOLL_CTL_ADD, twin, &raw mut event);
        }
        watch.fd = twin;
    }
}

/// Takes the numbers of an epoll without a shadow, or of a socket that is not the stack's yet, if
/// it has several, from their list.
pub(crate) fn take_twins(guard: &mut Guard, set: c_int) -> Vec<c_int> {
    let groups = &mut guard.state().twins;
    let found = groups.iter().position(|group| group.contains(&set));
    found.map(|index| groups.swap_remove(index)).unwrap_or_default()
}

/// An epoll has a further number, and its shadow, if it has or gets one, is that of both; or a
/// socket that may become the stack's by either.
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
            // They are set by either number.
            table::note_options(set);
            table::note_options(new);
            Ok(())
        }
        kind => guard.world()?.duplicate(new, kind),
    }
}

/// What watches a socket that is about to become the stack's, and whether it has told all that it
/// will.
pub(crate) fn early_watches(guard: &mut Guard, fd: c_int) -> Vec<(EarlyWatch, bool)> {
    let watches = guard.state().early.iter().filter(|watch| watch.fd == fd);
    watches.map(|watch| (*watch, has_told(*watch))).collect()
}

/// The epolls that watched a socket watch the kernel's listener beside it as well.
///
/// # Errors
/// Those of epoll_ctl(2).
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

/// The epolls that watch a socket go on watching it when it becomes the stack's.
///
/// # Errors
/// Those of the stack's epolls.
pub(crate) fn move_early_watches(guard: &mut Guard, fd: c_int) -> Outcome<()> {
    let moved = early_watches(guard, fd);
    guard.state().early.retain(|watch| watch.fd != fd);
    for (watch, has_told) in moved {
        let Kind::Socket(target) = table::kind(fd) else { continue };
        // SAFETY: plain numbers; there is no event to be read.
        unsafe { real::epoll_ctl(watch.set, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
        let shadow = shadow(guard, watch.set)?;
        let control = translate(libc::EPOLL_CTL_ADD, Some(watch.event))?;
        let world = guard.world()?;
        match change(world, shadow, target, control) {
            // By another number of the socket: an epoll of the stack has it once.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => continue,
            changed => changed?,
        }
        if has_told {
            world.context.epoll_silence(shadow.descriptor, target.descriptor)?;
        }
    }
    Ok(())
}

/// Whether a watch tells once, and has told: the kernel then waits for nothing, and says so in
/// /proc.
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

/// A number of an epoll is closed, and the shadow with the last.
pub(crate) fn close(fd: c_int, shadow: Handle) {
    table::set(fd, Kind::Plain);
    if let Ok(mut guard) = state::lock_quietly()
        && let Ok(world) = guard.world()
    {
        world.release(shadow);
    }
}

/// Does what epoll_pwait2(2) does.
///
/// # Errors
/// As epoll_wait(2).
pub(crate) fn wait(
    set: c_int,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: *const sigset_t,
) -> Outcome<usize> {
    // While the epoll is the kernel's, a thread that goes from sleeping there to sleeping for both
    // parts lets no signal through in between, which would not end its wait.
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
                // The kick: the epoll has a shadow by now.
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

/// What both parts have now. Which comes first changes each time, so that neither waits for ever
/// while the other fills all the room.
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

/// What the stack's epoll has now.
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

/// What the kernel's epoll has now.
fn look(world: &World, set: c_int, shadow: Handle, events: &mut [epoll_event]) -> Outcome<usize> {
    if events.is_empty() {
        return Ok(0);
    }
    let count = events.len() as c_int;
    // SAFETY: there is room for so many events.
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
    // SAFETY: there is room for so many events, and the mask is the application's.
    let found =
        check(unsafe { real::epoll_pwait(set, events.as_mut_ptr(), count, time, mask) })? as usize;
    let left = without_kick(events, found);
    if left == 0 && found > 0 {
        report::note(format_args!("epoll {set} watches the stack's sockets from now on"));
        return Ok(None);
    }
    Ok(Some(left))
}
