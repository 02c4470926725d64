//! Reads the settings that `fable run` puts into the environment.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::borrowed;
use crate::page::RING_BYTES;

/// The settings of the process.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// The longest time to spin on memory before sleeping.
    pub(crate) spin_ns: u32,
    /// The size of one direction's ring.
    pub(crate) ring_bytes: u64,
    /// The most connections that are upgraded at the same time.
    pub(crate) connections_max: usize,
}

static SPIN_NS: AtomicU32 = AtomicU32::new(50_000);
static RING: AtomicU64 = AtomicU64::new(256 << 10);
static CONNECTIONS_MAX: AtomicUsize = AtomicUsize::new(1024);
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Reads a number from the environment.
fn number(name: &CStr) -> Option<u64> {
    // SAFETY: the name ends with zero; the value is copied before anything else runs.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the C library returns a string that ends with zero.
    unsafe { CStr::from_ptr(value) }.to_str().ok()?.parse().ok()
}

/// Reads the environment, before the program's own code runs.
pub(crate) fn start() {
    if let Some(value) = number(c"FABLE_SPIN_NS") {
        SPIN_NS.store(value.min(1_000_000) as u32, Ordering::Relaxed);
    }
    if let Some(value) = number(c"FABLE_RING_BYTES") {
        let bytes = value.clamp(*RING_BYTES.start(), *RING_BYTES.end()).next_power_of_two();
        RING.store(bytes, Ordering::Relaxed);
    }
    if let Some(value) = number(c"FABLE_CONNECTIONS") {
        CONNECTIONS_MAX.store(value.min(1 << 20) as usize, Ordering::Relaxed);
    }
}

/// Returns the current settings.
pub(crate) fn get() -> Settings {
    Settings {
        spin_ns: SPIN_NS.load(Ordering::Relaxed),
        ring_bytes: RING.load(Ordering::Relaxed),
        connections_max: CONNECTIONS_MAX.load(Ordering::Relaxed),
    }
}

/// Stops upgrades: the process uses something that the library cannot support.
pub(crate) fn stop() {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Returns whether [`stop`] was called, or this process shares its parent's table.
pub(crate) fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed) || borrowed::is_here()
}
