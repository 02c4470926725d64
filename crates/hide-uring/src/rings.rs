//! Tracks the program's rings and the memory of their requests.

use crate::rules::Request;
use core::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offsets of mmap(2) for a ring's queue and for its requests.
const QUEUE: i64 = 0;
const REQUESTS: i64 = 0x1000_0000;

/// `struct io_uring_params`.
#[repr(C)]
pub(crate) struct Parameters {
    entries: u32,
    completions: u32,
    pub(crate) flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    pub(crate) features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    /// Offsets of the queue's head, tail and mask, and of the fields that follow.
    queue: [u32; 10],
    completion_queue: [u32; 10],
}

const _: () = assert!(size_of::<Parameters>() == 120);

/// `struct io_uring_rsrc_update`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ResourceUpdate {
    pub(crate) offset: u32,
    reserved: u32,
    pub(crate) data: u64,
}

/// One ring; a null pointer is a part that is not mapped yet.
#[derive(Clone, Copy)]
struct Ring {
    fd: c_int,
    head_at: usize,
    tail_at: usize,
    entries: u32,
    queue: *mut u8,
    requests: *mut Request,
}

// SAFETY: the pointers are dereferenced only while the thread that owns the ring enters it.
unsafe impl Send for Ring {}

/// The rings by descriptor and, for registered ones, by thread and index. A closed ring stays until
/// its descriptor or index is used again.
pub(crate) struct Rings {
    all: Vec<Ring>,
    registered: Vec<((libc::pid_t, u32), Ring)>,
}

impl Rings {
    pub(crate) const fn new() -> Rings {
        Rings { all: Vec::new(), registered: Vec::new() }
    }

    /// Records a new ring.
    pub(crate) fn created(&mut self, fd: c_int, parameters: &Parameters) {
        self.all.retain(|ring| ring.fd != fd);
        self.all.push(Ring {
            fd,
            head_at: parameters.queue[0] as usize,
            tail_at: parameters.queue[1] as usize,
            entries: parameters.entries,
            queue: std::ptr::null_mut(),
            requests: std::ptr::null_mut(),
        });
    }

    /// Records the mapping of a part of a ring.
    pub(crate) fn mapped(&mut self, fd: c_int, offset: i64, address: *mut u8) {
        let Some(ring) = self.all.iter_mut().find(|ring| ring.fd == fd) else { return };
        match offset {
            QUEUE => ring.queue = address,
            REQUESTS => ring.requests = address.cast(),
            _ => {}
        }
    }

    /// Records a ring that the calling thread has registered.
    pub(crate) fn registered(&mut self, fd: c_int, index: u32) {
        let Some(ring) = self.all.iter().find(|ring| ring.fd == fd).copied() else { return };
        let key = (thread(), index);
        self.registered.retain(|(other, _)| *other != key);
        self.registered.push((key, ring));
    }

    /// Calls `edit` with each request that the kernel has not taken yet.
    pub(crate) fn for_each_queued(&self, fd: c_int, is_index: bool, edit: impl Fn(&mut Request)) {
        let ring = if is_index {
            let key = (thread(), fd as u32);
            self.registered.iter().find(|(other, _)| *other == key).map(|(_, ring)| ring)
        } else {
            self.all.iter().find(|ring| ring.fd == fd)
        };
        let Some(ring) = ring else { return };
        if ring.queue.is_null() || ring.requests.is_null() {
            return;
        }
        // SAFETY: both words are aligned and lie in the mapping, and the kernel accesses them
        // atomically.
        let word = |at| unsafe { AtomicU32::from_ptr(ring.queue.wrapping_add(at).cast()) };
        let (head, tail) = (word(ring.head_at), word(ring.tail_at));
        let (mut at, tail) = (head.load(Ordering::Acquire), tail.load(Ordering::Acquire));
        while at != tail {
            let slot = (at & (ring.entries - 1)) as usize;
            // SAFETY: the slot is in the mapping; the calling thread fills it, and the kernel does
            // not read it before the call.
            edit(unsafe { &mut *ring.requests.wrapping_add(slot) });
            at = at.wrapping_add(1);
        }
    }
}

fn thread() -> libc::pid_t {
    // SAFETY: the call takes no pointers, and does not use the interposed `syscall`.
    unsafe { libc::gettid() }
}
