//! Reaps completions from the ring, with their outputs: buffers and sockets.

use super::buffers::BufferRing;
use super::entries::Class;
use super::table::Room;
use super::{UringDriver, is_internal};
use crate::driver::{INSTALLED_TAG, Outcome, Output, TABLE_FULL};
use crate::slab::Key;
use crate::source::{Discarded, Endpoint, NumberedSocket};
use io_uring::cqueue;
use std::collections::VecDeque;
use std::os::fd::{FromRawFd, OwnedFd};

impl UringDriver {
    /// Moves the available completions to `sink`; returns their number, and whether any belonged to
    /// the driver's own requests.
    pub(super) fn reap_completions(&mut self, sink: &mut VecDeque<Outcome>) -> (u32, bool) {
        let before = sink.len();
        let mut internal = false;
        let UringDriver {
            ring,
            small,
            large,
            classes,
            discarded,
            outstanding,
            synchronous,
            table,
            unbounded,
            tells_queue,
            ..
        } = self;
        for entry in ring.completions() {
            let (tag, result) = (entry.user_data(), entry.result());
            if is_internal(tag) {
                internal = true;
                // A synchronous request whose wait was abandoned: it has failed, which does not
                // matter, or it has opened a socket.
                if let Some(orphan) = synchronous.complete(tag, result) {
                    table.fill();
                    discarded.push(orphan);
                }
                continue;
            }
            let more = cqueue::more(entry.flags());
            let class = class_of(classes, tag);
            *outstanding -= u64::from(!more);
            let mut outcome = Outcome { tag, result, more, output: Output::None };
            if class == Class::AcceptLater && result >= 0 {
                // There may be room by now: then the accept is tried again.
                let errno = if table.room() == Room::None { TABLE_FULL } else { libc::EAGAIN };
                outcome.result = -errno;
            }
            if class == Class::FileRoom && result >= 0 {
                outcome.result = -libc::EINTR;
            }
            if matches!(class, Class::AcceptDirect | Class::AcceptOneDirect) {
                if class == Class::AcceptOneDirect {
                    table.release();
                }
                if result >= 0 {
                    table.fill();
                } else if result == -libc::ENFILE && table.is_full() {
                    outcome.result = -TABLE_FULL;
                }
                if more && table.room() != Room::Ample && !unbounded.contains(&tag) {
                    unbounded.push(tag);
                }
            }
            outcome.output = output_of(&entry, class, small, large, discarded);
            if let Output::Socket { queue_nonempty, .. } = &mut outcome.output {
                *queue_nonempty |= !*tells_queue;
            }
            sink.push_back(outcome);
        }
        self.completions += (sink.len() - before) as u64;
        ((sink.len() - before) as u32, internal)
    }
}

/// Returns the class of an operation, by its tag; operations of an installed driver are plain.
fn class_of(classes: &[Class], tag: u64) -> Class {
    if tag >= INSTALLED_TAG { Class::Plain } else { classes[Key::index_in(tag)] }
}

/// Takes ownership of the output of a completion.
fn output_of(
    entry: &cqueue::Entry,
    class: Class,
    small: &mut BufferRing,
    large: &mut BufferRing,
    discarded: &Discarded,
) -> Output {
    let (result, flags) = (entry.result(), entry.flags());
    let buffers = match class {
        Class::Plain | Class::AcceptLater | Class::FileRoom => return Output::None,
        Class::Arrival if result < 0 => return Output::None,
        Class::Arrival => return Output::Readable,
        Class::Small => small,
        Class::Large => large,
        _ if result < 0 => return Output::None,
        Class::AcceptDirect | Class::AcceptOneDirect => {
            let direct = NumberedSocket::new(result as u32, discarded);
            return socket(Endpoint::Direct(direct), flags);
        }
        Class::Accept | Class::AcceptLightweight => {
            // SAFETY: the kernel has just opened this descriptor, which has no other owner.
            let descriptor = unsafe { OwnedFd::from_raw_fd(result) };
            let endpoint = match class {
                Class::Accept => Endpoint::Descriptor(descriptor),
                _ => Endpoint::Lightweight(descriptor),
            };
            return socket(endpoint, flags);
        }
    };
    match cqueue::buffer_select(flags) {
        Some(index) if result > 0 => Output::Lease(buffers.filled(index, result as usize)),
        Some(index) => {
            buffers.unused(index);
            Output::None
        }
        None if result == -libc::ENOBUFS => {
            buffers.ran_out();
            Output::Starved
        }
        None => Output::None,
    }
}

fn socket(endpoint: Endpoint, flags: u32) -> Output {
    let queue_nonempty = cqueue::sock_nonempty(flags);
    Output::Socket { socket: endpoint.into(), queue_nonempty }
}
