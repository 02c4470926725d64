//! Checks that settings are in range.

use super::{Config, ListenOptions, Options};
use crate::error::Error;
use std::time::Duration;

/// The smallest packet size that every host accepts (RFC 1122, section 3.3.3).
pub(crate) const MTU_MIN: u16 = 576;

/// Fails with the message of the first condition that is false.
fn check(conditions: &[(bool, &'static str)]) -> Result<(), Error> {
    match conditions.iter().find(|(holds, _)| !holds) {
        Some((_, complaint)) => Err(Error::Config(complaint)),
        None => Ok(()),
    }
}

impl Config {
    /// Checks that every setting of the stack is in its range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let config = self;
        let steering = config.steering;
        check(&[
            (
                steering.core < steering.cores,
                "steering: the core must be below the number of cores",
            ),
            ((1..=1 << 24).contains(&config.max_sockets), "max_sockets must be 1 to 2^24"),
            ((1..=1 << 24).contains(&config.max_half_open), "max_half_open must be 1 to 2^24"),
            (config.max_time_wait <= 1 << 24, "max_time_wait must be at most 2^24"),
            (config.max_buffer_bytes >= 64 << 10, "max_buffer_bytes must be at least 64 KiB"),
            ((1..=10).contains(&config.initial_window), "initial_window must be 1 to 10 segments"),
            (config.minimum_rto >= Duration::from_millis(1), "minimum_rto must be at least 1 ms"),
            (
                config.maximum_rto >= Duration::from_secs(60),
                "maximum_rto must be at least a minute",
            ),
            (config.minimum_rto <= config.maximum_rto, "minimum_rto must not exceed maximum_rto"),
            (
                config.delayed_ack <= Duration::from_millis(500),
                "delayed_ack must be at most 500 ms",
            ),
            (config.mtu >= MTU_MIN, "mtu must be at least 576 bytes, and 1,280 for IPv6"),
            (!config.ephemeral_ports.is_empty(), "ephemeral_ports must not be empty"),
            (*config.ephemeral_ports.start() > 0, "ephemeral_ports must begin at 1 or higher"),
        ])?;
        config.options.check()
    }
}

impl Options {
    /// Checks that every option of a connection is in its range.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<(), Error> {
        let options = self;
        let buffers = 4 << 10..=64 << 20;
        let keepalive = options.keepalive;
        check(&[
            (buffers.contains(&options.send_buffer_bytes), "send_buffer_bytes: 4 KiB to 64 MiB"),
            (
                buffers.contains(&options.receive_buffer_bytes),
                "receive_buffer_bytes: 4 KiB to 64 MiB",
            ),
            (options.send_low_water_bytes >= 1, "send_low_water_bytes must be at least 1"),
            (options.receive_low_water_bytes >= 1, "receive_low_water_bytes must be at least 1"),
            (
                keepalive.is_none_or(|alive| alive.probes >= 1),
                "keepalive.probes must be at least 1",
            ),
            (
                keepalive.is_none_or(|alive| !alive.interval.is_zero() && !alive.idle.is_zero()),
                "keepalive.idle and keepalive.interval must not be zero",
            ),
            (
                options.maximum_segment.is_none_or(|segment| segment >= 88),
                "maximum_segment must be at least 88 bytes",
            ),
        ])
    }
}

impl ListenOptions {
    /// Checks that every option of a listener is in its range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check(&[(self.backlog >= 1, "backlog must be at least 1")])?;
        self.connection.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_range_and_complaints_name_the_setting() {
        Config::default().check().unwrap();
        ListenOptions::default().check().unwrap();
        let config = Config { initial_window: 11, ..Config::default() };
        let complaint = config.check().unwrap_err().to_string();
        assert!(complaint.contains("initial_window"), "{complaint}");
        let options = Options { send_buffer_bytes: 1, ..Options::default() };
        let complaint = options.check().unwrap_err().to_string();
        assert!(complaint.contains("send_buffer_bytes"), "{complaint}");
        let options = ListenOptions { backlog: 0, ..ListenOptions::default() };
        assert!(options.check().is_err());
    }
}
