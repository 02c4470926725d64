//! Sets up a ring with what the driver registers on it, and finds out what the kernel lacks.

use super::attempts::attempt;
use super::buffers::BufferRing;
use super::features::{Feature, Lack, Lacks};
use super::ring::Ring;
use super::{LARGE_GROUP, SMALL_GROUP};
use crate::config::{BufferClass, Config};
use crate::driver::Pools;
use crate::sys::check;
use std::io;

/// Why there is no driver.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A call failed with this errno; which of them mean that rings are barred is the caller's
    /// judgement.
    Failed(io::Error),
    /// The kernel's rings lack what cannot be replaced.
    Lacks(Lack),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Failed(error)
    }
}

/// What a driver is made of. The ring goes first: the kernel must let go of the buffers before they
/// are unmapped.
pub(super) struct Parts {
    pub(super) ring: Ring,
    /// The small and the large buffers, if the kernel has buffer rings.
    pub(super) buffers: Option<(BufferRing, BufferRing)>,
    /// Entries of the ring's file table, if there is one.
    pub(super) places: u32,
    pub(super) lacks: Lacks,
}

impl Parts {
    /// Creates a ring with a file table and buffer rings, as far as the kernel has them.
    pub(super) fn new(config: &Config, pools: Pools) -> io::Result<Parts> {
        let mut lacks = Lacks::default();
        let mut ring = Ring::new(config.completions, &mut lacks)?;
        let places = config.max_lightweight.min(descriptor_limit()?).max(1);
        lacks.judge(Feature::FileTable, ring.submitter().register_files_sparse(places))?;
        let class = |group, count, pool| BufferRing::new(&ring, group, count, pool);
        let small = class(SMALL_GROUP, config.small_buffers.count, pools.small);
        let large = class(LARGE_GROUP, config.large_buffers.count, pools.large);
        let both = small.and_then(|small| Ok((small, large?)));
        let buffers = lacks.judge(Feature::BufferRing, both)?;
        attempt(&mut ring, (SMALL_GROUP, LARGE_GROUP), &mut lacks)?;
        if !lacks.leave_direct_sockets() && !lacks.has(Feature::FileTable) {
            ring.submitter().unregister_files()?;
        }
        ring.hide_descriptor(&mut lacks);
        ring.system_calls = 0;
        Ok(Parts { ring, buffers, places, lacks })
    }
}

/// Finds out what the kernel's rings lack, on one that is closed afterwards. Fails as
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

/// The soft limit on descriptors, to which the kernel also holds a ring's file table.
fn descriptor_limit() -> io::Result<u32> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    Ok(limit.rlim_cur.min(1 << 20) as u32)
}
