//! Fuzzes the shared page: the input is the memory file that a peer offers. Whatever stands there,
//! it is refused, or what this end reads lies within bounds and can be accessed.

#[path = "../../fable-preload/src/page/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_docs,
    reason = "parts that this target does not use"
)]
mod shared;

use core::ffi::c_int;

use crate::{Choices, sys};
use shared::{CLIENT, Filled, Page, Ring, SERVER};

/// A number near zero, or near the bounds of a ring, or any.
fn position(input: &mut Choices<'_>, ring_bytes: u64) -> u64 {
    let small = u64::from(input.byte());
    match input.byte() % 4 {
        0 => small,
        1 => ring_bytes.wrapping_add(small).wrapping_sub(128),
        2 => small.wrapping_neg(),
        _ => input.number(),
    }
}

/// A memory file of the peer, valid or nearly so.
fn offered_file(input: &mut Choices<'_>) -> c_int {
    let ring_bytes = 4096_u64 << (input.byte() % 4);
    let twist = i64::from(input.byte() / 64) * i64::from(input.byte());
    // SAFETY: plain system calls; the name ends with zero.
    let fd = unsafe {
        let fd = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        libc::ftruncate(fd, shared::file_bytes(ring_bytes) as i64 + twist);
        fd
    };
    let header: Vec<u8> = (0..input.byte()).map(|_| input.byte()).collect();
    let magic: &[u8] = if input.byte() < 240 { b"FABLEpr2" } else { b"FABLEpr1" };
    let seals = match input.byte() % 8 {
        0 => 0,
        1 => libc::F_SEAL_SHRINK,
        2 => libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
        _ => libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL,
    };
    // SAFETY: the buffers have the announced sizes.
    unsafe {
        libc::pwrite(fd, header.as_ptr().cast(), header.len(), 16);
        libc::pwrite(fd, magic.as_ptr().cast(), magic.len(), 0);
        libc::fcntl(fd, libc::F_ADD_SEALS, seals);
    }
    fd
}

/// Looks at all words of the page, and at the bytes that they point to.
fn look(mapping: *mut u8, ring_bytes: u64, side: usize, input: &mut Choices<'_>) {
    // SAFETY: the mapping begins with the header.
    let page = unsafe { &*mapping.cast::<Page>() };
    let (mine, theirs) = (page.mine(side), page.theirs(side));
    for _ in 0..8 {
        let (read, written) = (position(input, ring_bytes), position(input, ring_bytes));
        if let Filled::Bytes(filled) = theirs.filled(read, ring_bytes) {
            assert!(filled <= ring_bytes);
            // SAFETY: the mapping has rings of this size.
            let ring = unsafe { Ring::of(mapping, ring_bytes, 1 - side) };
            let (at, length) = ring.run(read, filled);
            assert!(length as u64 <= filled);
            for index in 0..length {
                // SAFETY: this is what is to be shown: the bytes are in the mapping.
                core::hint::black_box(unsafe { *at.add(index) });
            }
        }
        if let Some(untaken) = theirs.untaken(written, ring_bytes) {
            assert!(untaken <= ring_bytes);
        }
        assert!(theirs.doorbells_due(read).is_none_or(|due| due <= 1 << 32));
        core::hint::black_box((theirs.leaving(), theirs.switch_at(), theirs.is_recalling()));
        match input.byte() % 6 {
            0 => mine.set_written(written),
            1 => mine.set_returned_at(written),
            2 => mine.set_leaving(theirs.leaving()),
            3 => _ = mine.enter_ring(read),
            4 => _ = theirs.forbid(),
            _ => mine.set_recalled(true),
        }
    }
}

pub(crate) fn check(bytes: &[u8]) {
    let mut input = Choices::new(bytes);
    let fd = offered_file(&mut input);
    let opened = shared::open(fd);
    sys::close(fd);
    if let Ok((mapping, ring_bytes)) = opened {
        assert!(shared::RING_BYTES.contains(&ring_bytes));
        for side in [SERVER, CLIENT] {
            look(mapping, ring_bytes, side, &mut input);
        }
        // SAFETY: nobody uses the mapping any more.
        unsafe { sys::unmap(mapping, shared::file_bytes(ring_bytes)) };
    }
}
