//! Sets up a ring with everything that the driver registers on it, and finds the features that the
//! kernel lacks.

use super::attempts::attempt;
use super::buffers::BufferRing;
use super::features::{Feature, Lacks};
use super::refusal::FailedCall;
use super::ring::Ring;
use super::{LARGE_GROUP, SMALL_GROUP};
use crate::config::{BufferClass, Config};
use crate::driver::Pools;
use crate::sys::{Mapping, resource_limit};
use std::io;

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
    pub(super) fn new(config: &Config, pools: Pools) -> Result<Parts, FailedCall> {
        let registering = FailedCall::of("io_uring_register");
        let mut lacks = Lacks::default();
        let mut ring = Ring::new(config.batch, config.completions, &mut lacks).map_err(creating)?;
        let limit = descriptor_limit().map_err(FailedCall::of("getrlimit"))?;
        let places = config.max_lightweight.min(limit).max(1);
        lacks
            .judge(Feature::FileTable, ring.submitter().register_files_sparse(places))
            .map_err(registering)?;
        let class = |group, count, pool| BufferRing::new(&ring, group, count, pool);
        let small = class(SMALL_GROUP, config.small_buffers.count, pools.small);
        let large = class(LARGE_GROUP, config.large_buffers.count, pools.large);
        let both = small.and_then(|small| Ok((small, large?)));
        let buffers = lacks.judge(Feature::BufferRing, both).map_err(registering)?;
        ring.enable(&mut lacks).map_err(registering)?;
        attempt(&mut ring, (SMALL_GROUP, LARGE_GROUP), &mut lacks)?;
        if !lacks.leave_direct_sockets() && !lacks.has(Feature::FileTable) {
            ring.unregister_files().map_err(registering)?;
        }
        ring.hide_descriptor();
        ring.system_calls = 0;
        Ok(Parts { ring, buffers, places, lacks })
    }
}

/// Names the call that failed when a ring was created: it gives the ring's memory advice, too.
fn creating(source: io::Error) -> FailedCall {
    let advised = Mapping::anonymous(1).and_then(|memory| memory.advise(libc::MADV_DONTFORK));
    let is_advice = advised.is_err_and(|error| error.raw_os_error() == source.raw_os_error());
    FailedCall::of(if is_advice { "madvise" } else { "io_uring_setup" })(source)
}

/// Finds the features that the kernel lacks, on a ring that it then closes.
pub(crate) fn survey() -> Result<Lacks, FailedCall> {
    let class = BufferClass { count: 2, bytes: 256 };
    let config = Config {
        completions: 64,
        max_lightweight: 1,
        small_buffers: class,
        large_buffers: class,
        ..Config::default()
    };
    let pools = Pools::new(&config).map_err(FailedCall::of("mmap"))?;
    Parts::new(&config, pools).map(|parts| parts.lacks)
}

/// Returns the soft limit on descriptors, which the kernel also applies to a ring's file table.
fn descriptor_limit() -> io::Result<u32> {
    Ok(resource_limit(libc::RLIMIT_NOFILE)?.rlim_cur.min(1 << 20) as u32)
}
