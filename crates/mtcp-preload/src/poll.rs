//! Implements poll(2) over sockets of the stack and descriptors of the kernel.

use crate::listener;
use crate::outcome::{Outcome, check};
use crate::state::{self, World};
use crate::table::{self, Handle, Kind};
use crate::wait::{self, Interrupted, KeptOpen};
use core::ffi::c_short;
use libc::{nfds_t, pollfd, sigset_t};
use mtcp::Events;
use preload::deadline::Deadline;
use preload::real;

/// Events that poll(2) reports unasked.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP;
const NORMAL_IN: c_short = libc::POLLIN | libc::POLLRDNORM;
/// An entry that the kernel ignores.
const NOTHING: pollfd = pollfd { fd: -1, events: 0, revents: 0 };
const NORMAL_OUT: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// Returns whether any of the descriptors concerns the stack.
pub(crate) fn concerns(list: &[pollfd]) -> bool {
    let concerned = |kind| matches!(kind, Kind::Socket(_) | Kind::Shadowed(_) | Kind::Inherited);
    list.iter().any(|entry| concerned(table::kind(entry.fd)))
}

/// Implements ppoll(2). Returns the number of entries with events.
///
/// # Errors
/// `EINTR`, and the errors of the kernel.
pub(crate) fn poll(
    list: &mut [pollfd],
    deadline: Deadline,
    mask: *const sigset_t,
) -> Outcome<usize> {
    let (kernel, _held) = kernel_part(list);
    let found = wait::until(deadline, None, &kernel, Interrupted::Ends(mask), |world| {
        world.context.turn()?;
        let count = look(world, list, &kernel)?;
        Ok((count > 0).then_some(count))
    })?;
    Ok(found.unwrap_or(0))
}

/// Returns the list for the kernel. Sockets of the stack are omitted, except the kernel's listeners
/// beside them, which are kept open during the call.
fn kernel_part(list: &[pollfd]) -> (Vec<pollfd>, Vec<KeptOpen>) {
    let mut held = Vec::new();
    let mut guard = listener::are_any().then(|| state::lock_quietly().ok()).flatten();
    let mut question = |entry: &pollfd| match table::kind(entry.fd) {
        Kind::Socket(socket) => match guard.as_mut().and_then(|it| listener::beside(it, socket)) {
            Some((kernel, hold)) => {
                held.push(hold);
                pollfd { fd: kernel, revents: 0, ..*entry }
            }
            None => NOTHING,
        },
        Kind::Inherited => NOTHING,
        _ => pollfd { revents: 0, ..*entry },
    };
    let kernel = list.iter().map(&mut question).collect();
    (kernel, held)
}

fn look(world: &mut World, list: &mut [pollfd], kernel: &[pollfd]) -> Outcome<usize> {
    let mut asked = kernel.to_vec();
    if asked.iter().any(|entry| entry.fd >= 0) {
        // SAFETY: the list is ours.
        check(unsafe { real::poll(asked.as_mut_ptr(), asked.len() as nfds_t, 0) })?;
    }
    let mut count = 0;
    for (entry, asked) in list.iter_mut().zip(asked) {
        entry.revents = match table::kind(entry.fd) {
            Kind::Socket(socket) => {
                let ready = readiness(world, socket).unwrap_or(Events::HANG_UP);
                asked.revents | expand(ready) & (entry.events | ALWAYS)
            }
            Kind::Inherited => libc::POLLERR | libc::POLLHUP,
            Kind::Shadowed(shadow) => {
                let ready = readiness(world, shadow).unwrap_or_default();
                asked.revents | expand(ready) & entry.events
            }
            _ => asked.revents,
        };
        count += usize::from(entry.revents != 0);
    }
    Ok(count)
}

fn readiness(world: &mut World, of: Handle) -> Outcome<Events> {
    let descriptor = world.check(of)?;
    world.context.readiness(descriptor)
}

/// Adds the normal-priority names of the same events; the other bits have the same value in both
/// calls.
fn expand(ready: Events) -> c_short {
    let mut all = ready.0 as c_short;
    if ready.intersects(Events::IN) {
        all |= NORMAL_IN;
    }
    if ready.intersects(Events::OUT) {
        all |= NORMAL_OUT;
    }
    all
}
