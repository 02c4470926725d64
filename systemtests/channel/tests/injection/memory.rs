//! Detects writes to memory that was freed, those of the kernel included.
//!
//! While the check is on, freed memory is filled with a pattern and never used again; at the end
//! the pattern must be intact. The same holds for anonymous mappings that the channel made, and
//! every mapping that it made must be gone.

use crate::layer;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PATTERN: u8 = 0xd5;
/// Maximum number of blocks that are kept; later ones are really freed.
const BLOCKS: usize = 1 << 16;
const MAPPINGS: usize = 64;

static ON: AtomicBool = AtomicBool::new(false);

/// A range of addresses; 0 bytes for none.
struct Range {
    address: AtomicUsize,
    bytes: AtomicUsize,
    /// Whether it was freed, and whether the pattern may be written to it.
    freed: AtomicBool,
    anonymous: AtomicBool,
}

impl Range {
    const fn none() -> Range {
        Range {
            address: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            freed: AtomicBool::new(false),
            anonymous: AtomicBool::new(false),
        }
    }

    /// Fills the memory with the pattern.
    fn fill(&self) {
        let address = self.address.load(Ordering::SeqCst) as *mut u8;
        // SAFETY: the owner has just given the memory back, and it is never used again.
        unsafe { address.write_bytes(PATTERN, self.bytes.load(Ordering::SeqCst)) };
    }

    /// Returns where the pattern is broken, from the start of the range.
    fn broken_at(&self) -> Option<usize> {
        let address = self.address.load(Ordering::SeqCst) as *const u8;
        let bytes = self.bytes.load(Ordering::SeqCst);
        // SAFETY: the memory is never freed, and a write to it is the fault that the check looks
        // for.
        let kept = unsafe { std::slice::from_raw_parts(std::hint::black_box(address), bytes) };
        let intact = [PATTERN; 4096];
        let is_broken = |part: &[u8]| part != &intact[..part.len()];
        let part = kept.chunks(intact.len()).position(is_broken)?;
        let within = kept[part * intact.len()..].iter().position(|byte| *byte != PATTERN)?;
        Some(part * intact.len() + within)
    }
}

struct Table<const N: usize> {
    used: AtomicUsize,
    ranges: [Range; N],
}

impl<const N: usize> Table<N> {
    const fn new() -> Table<N> {
        Table { used: AtomicUsize::new(0), ranges: [const { Range::none() }; N] }
    }

    fn add(&self, address: *mut u8, bytes: usize) -> Option<&Range> {
        let range = self.ranges.get(self.used.fetch_add(1, Ordering::SeqCst))?;
        range.address.store(address as usize, Ordering::SeqCst);
        range.bytes.store(bytes, Ordering::SeqCst);
        Some(range)
    }

    fn all(&self) -> &[Range] {
        &self.ranges[..self.used.load(Ordering::SeqCst).min(N)]
    }
}

static FREED: Table<BLOCKS> = Table::new();
static MAPPED: Table<MAPPINGS> = Table::new();

/// The system's allocator, except that memory freed during the check is kept.
pub(crate) struct Keeping;

// SAFETY: memory comes from the system's allocator and goes back to it once at most.
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if ON.load(Ordering::Relaxed)
            && let Some(range) = FREED.add(address, layout.size())
        {
            range.freed.store(true, Ordering::SeqCst);
            return range.fill();
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(address, layout) };
    }
}

/// Keeps freed memory from now on.
pub(crate) fn keep_freed() {
    ON.store(true, Ordering::SeqCst);
}

/// Records memory that the channel has mapped.
pub(crate) fn note_mapping(address: *mut u8, bytes: usize, anonymous: bool) {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    let range = MAPPED.add(address, bytes);
    layer::disarmed(|| {
        let range = range.expect("room in the table of mappings");
        range.anonymous.store(anonymous, Ordering::SeqCst);
    });
}

/// Records an unmapping; returns true if the memory must stay mapped, to be checked.
pub(crate) fn note_unmapping(address: *mut u8) -> bool {
    let is_it = |range: &&Range| {
        range.address.load(Ordering::SeqCst) == address as usize
            && !range.freed.load(Ordering::SeqCst)
    };
    if !ON.load(Ordering::Relaxed) {
        return false;
    }
    let Some(range) = MAPPED.all().iter().find(is_it) else { return false };
    range.freed.store(true, Ordering::SeqCst);
    let anonymous = range.anonymous.load(Ordering::SeqCst);
    if anonymous {
        range.fill();
    }
    anonymous
}

/// Panics if freed memory was written to, or if a mapping was not unmapped.
#[track_caller]
pub(crate) fn check() {
    ON.store(false, Ordering::SeqCst);
    let used = FREED.used.load(Ordering::SeqCst);
    assert!(used < BLOCKS, "{used} blocks were freed, more than the check can keep");
    let mapped = MAPPED.all();
    let anonymous = mapped.iter().filter(|range| range.anonymous.load(Ordering::SeqCst));
    for range in FREED.all().iter().chain(anonymous) {
        if !range.freed.load(Ordering::SeqCst) {
            continue;
        }
        if let Some(offset) = range.broken_at() {
            let bytes = range.bytes.load(Ordering::SeqCst);
            panic!("byte {offset} of {bytes} bytes was written to after they had been freed");
        }
    }
    let kept = mapped.iter().filter(|range| !range.freed.load(Ordering::SeqCst)).count();
    assert_eq!(kept, 0, "mappings leak");
}
