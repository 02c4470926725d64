//! Sets up a ring with everything that the driver registers on it, and finds the features that the
//! kernel lacks.

use super::attempts::attempt;
use super::buffers::BufferRing;
use super::features::{Feature, Lack, Lacks};
use super::ring::Ring;
use super::{LARGE_GROUP, SMALL_GROUP};
use crate::config::{BufferClass, Config};
use crate::driver::Pools;
use crate::sys::check;
use std::io;

/// The reason why there is no io_uring driver.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A call failed with this errno; the caller decides whether it means that io_uring is
    /// unavailable.
    Failed(io::Error),
    /// The kernel lacks a feature that cannot be replaced.
    Lacks(Lack),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Failed(error)
    }
}

/// The parts of a driver. The ring is dropped first: the kernel must release the buffers before
/// they are unmapped.
pub(super) struct Parts {
    pub(super) ring: Ring,
    /// The small and the large buffers, if the kernel has buffer rings.
    pub(super) buffers: Option<(BufferRing, BufferRing)>,
    /// Number of entries of the ring's file table, if there is one.
    pub(super) places: u32,
    pub(super) lacks: Lacks,
}

impl Parts {
    /// Creates a ring with a file table and buffer rings, if the kernel has them.
    pub(super) fn new(config: &Config, pools: Pools) -> io::Result<Parts> {
        let mut lacks = Lacks::default();
        let mut ring = Ring::new(config.batch, config.completions, &mut lacks)?;
        let places = config.max_lightweight.min(descriptor_limit()?).max(1);
        lacks.judge(Feature::FileTable, ring.submitter().register_files_sparse(places))?;
        let class = |group, count, pool| BufferRing::new(&ring, group, count, pool);
        let small = class(SMALL_GROUP, config.small_buffers.count, pools.small);
        let large = class(LARGE_GROUP, config.large_buffers.count, pools.large);
        let both = small.and_then(|small| Ok((small, large?)));
        let buffers = lacks.judge(Feature::BufferRing, both)?;
        ring.enable(&mut lacks)?;
        attempt(&mut ring, (SMALL_GROUP, LARGE_GROUP), &mut lacks)?;
        if !lacks.leave_direct_sockets() && !lacks.has(Feature::FileTable) {
            ring.unregister_files()?;
        }
        ring.hide_descriptor();
        ring.system_calls = 0;
        Ok(Parts { ring, buffers, places, lacks })
    }
}

/// Finds the features that the kernel lacks, on a ring that it then closes. Fails as
/// io_uring_setup(2) does.
pub(crate) fn survey() -> io::Result<Lacks> {
    let class = BufferClass { count: 2, bytes: 256 };
    let config = Config {
        completions: 64,
        max_lightweight: 1,
        small_buffers: class,
        large_buffers: class,
        ..Config::default()
    };
    Parts::new(&config, Pools::new(&config)?).map(|parts| parts.lacks)
}

/// Returns the soft limit on descriptors, which the kernel also applies to a ring's file table.
fn descriptor_limit() -> io::Result<u32> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    Ok(limit.rlim_cur.min(1 << 20) as u32)
}
