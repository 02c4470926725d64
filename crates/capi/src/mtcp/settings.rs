//! The settings that C can read and change, in addition to the file.

use super::types::mtcp_conf;
use crate::failure::Failure;
use libc::c_int;
use stack::Config;
use std::time::Duration;

/// Settings that change nothing.
pub(super) const NOTHING: mtcp_conf = mtcp_conf {
    num_cores: 0,
    max_concurrency: 0,
    max_num_buffers: 0,
    rcvbuf_size: 0,
    sndbuf_size: 0,
    tcp_timewait: 0,
    tcp_timeout: 0,
};

const SOCKETS_MAX: c_int = 1 << 24;
const BUFFER_BYTES: std::ops::RangeInclusive<c_int> = 4 << 10..=64 << 20;

/// Returns the settings as C reads them.
pub(super) fn told(config: &Config) -> mtcp_conf {
    let cut = |value: u64| c_int::try_from(value).unwrap_or(c_int::MAX);
    let milliseconds = |time: Duration| c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
    let tcp = &config.tcp;
    mtcp_conf {
        num_cores: c_int::from(config.engine.cores),
        max_concurrency: cut(tcp.max_sockets.into()),
        max_num_buffers: cut((tcp.max_buffer_bytes / pair_bytes(config)) as u64),
        rcvbuf_size: cut(tcp.options.receive_buffer_bytes.into()),
        sndbuf_size: cut(tcp.options.send_buffer_bytes.into()),
        tcp_timewait: milliseconds(tcp.maximum_segment_lifetime.saturating_mul(2)),
        tcp_timeout: milliseconds(tcp.give_up),
    }
}

/// Returns the size of both buffers of a connection, in bytes.
fn pair_bytes(config: &Config) -> usize {
    let options = &config.tcp.options;
    (options.receive_buffer_bytes as usize + options.send_buffer_bytes as usize).max(1)
}

/// Refuses values out of range; 0 and negative values change nothing.
pub(super) fn check(wanted: &mtcp_conf) -> Result<(), Failure> {
    if wanted.num_cores > 256 {
        return Err(Failure::invalid("mtcp_conf.num_cores must be at most 256"));
    }
    if wanted.max_concurrency > SOCKETS_MAX {
        return Err(Failure::invalid("mtcp_conf.max_concurrency must be at most 16777216"));
    }
    for bytes in [wanted.rcvbuf_size, wanted.sndbuf_size] {
        if bytes > 0 && !BUFFER_BYTES.contains(&bytes) {
            return Err(Failure::invalid(
                "mtcp_conf.rcvbuf_size and .sndbuf_size must be 4096 to 67108864",
            ));
        }
    }
    Ok(())
}

/// Merges later changes into earlier ones.
pub(super) fn merge(earlier: &mut mtcp_conf, later: &mtcp_conf) {
    let take = |to: &mut c_int, from: c_int| {
        if from > 0 {
            *to = from;
        }
    };
    take(&mut earlier.num_cores, later.num_cores);
    take(&mut earlier.max_concurrency, later.max_concurrency);
    take(&mut earlier.max_num_buffers, later.max_num_buffers);
    take(&mut earlier.rcvbuf_size, later.rcvbuf_size);
    take(&mut earlier.sndbuf_size, later.sndbuf_size);
    take(&mut earlier.tcp_timewait, later.tcp_timewait);
    take(&mut earlier.tcp_timeout, later.tcp_timeout);
}

/// Applies checked changes. A value that equals what `told` returns changes nothing, not even by
/// rounding.
pub(super) fn apply(config: &mut Config, wanted: &mtcp_conf) {
    let now = told(config);
    let new = |wanted: c_int, now: c_int| {
        let changed = wanted > 0 && wanted != now;
        changed.then_some(wanted.unsigned_abs())
    };
    if let Some(cores) = new(wanted.num_cores, now.num_cores) {
        config.engine.cores = cores as u16;
    }
    if let Some(sockets) = new(wanted.max_concurrency, now.max_concurrency) {
        config.tcp.max_sockets = sockets;
        config.max_descriptors = config.max_descriptors.max(sockets as usize);
    }
    if let Some(bytes) = new(wanted.rcvbuf_size, now.rcvbuf_size) {
        config.tcp.options.receive_buffer_bytes = bytes;
    }
    if let Some(bytes) = new(wanted.sndbuf_size, now.sndbuf_size) {
        config.tcp.options.send_buffer_bytes = bytes;
    }
    if let Some(count) = new(wanted.max_num_buffers, now.max_num_buffers) {
        config.tcp.max_buffer_bytes = pair_bytes(config).saturating_mul(count as usize);
    }
    if let Some(time_ms) = new(wanted.tcp_timewait, now.tcp_timewait) {
        config.tcp.maximum_segment_lifetime = Duration::from_millis(time_ms.into()) / 2;
    }
    if let Some(time_ms) = new(wanted.tcp_timeout, now.tcp_timeout) {
        config.tcp.give_up = Duration::from_millis(time_ms.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_and_set_again_changes_nothing() {
        let mut config = Config::default();
        config.tcp.max_buffer_bytes = 1_000_003;
        let before = config.clone();
        apply(&mut config, &told(&before));
        apply(&mut config, &NOTHING);
        assert_eq!(config, before);
    }

    #[test]
    fn what_is_set_is_told() {
        let mut config = Config::default();
        let mut wanted = NOTHING;
        merge(&mut wanted, &mtcp_conf { num_cores: 3, tcp_timewait: 5000, ..NOTHING });
        let later = mtcp_conf {
            max_concurrency: 1 << 22,
            max_num_buffers: 100,
            rcvbuf_size: 8192,
            sndbuf_size: 4096,
            tcp_timewait: 3000,
            tcp_timeout: 7000,
            ..NOTHING
        };
        merge(&mut wanted, &later);
        assert!(check(&wanted).is_ok());
        apply(&mut config, &wanted);
        assert_eq!(config.engine.cores, 3);
        assert_eq!(config.tcp.max_sockets, 1 << 22);
        assert_eq!(config.max_descriptors, 1 << 22);
        assert_eq!(config.tcp.max_buffer_bytes, 100 * 12_288);
        assert_eq!(config.tcp.maximum_segment_lifetime, Duration::from_millis(1500));
        assert_eq!(config.tcp.give_up, Duration::from_secs(7));
        let told = told(&config);
        assert_eq!((told.num_cores, told.tcp_timewait, told.max_num_buffers), (3, 3000, 100));
        for bad in [
            mtcp_conf { num_cores: 257, ..NOTHING },
            mtcp_conf { max_concurrency: c_int::MAX, ..NOTHING },
            mtcp_conf { sndbuf_size: 1, ..NOTHING },
        ] {
            assert!(check(&bad).is_err());
        }
    }
}
