//! Checks that settings are in range.

use super::{Config, ListenOptions, Options};
use crate::error::{Error, OutOfRange};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The smallest packet size that every host accepts (RFC 1122, section 3.3.3).
pub(crate) const MTU_MIN: u16 = 576;

/// The size of a buffer, in bytes.
const BUFFER_BYTES: RangeInclusive<u64> = 4 << 10..=64 << 20;

/// Fails with the first setting that is out of its range.
fn check(
    settings: impl IntoIterator<Item = (&'static str, u64, RangeInclusive<u64>)>,
) -> Result<(), Error> {
    let mut settings = settings.into_iter();
    match settings.find(|(_, value, range)| !range.contains(value)) {
        Some((setting, value, range)) => {
            let (least, most) = range.into_inner();
            Err(Error::Config(OutOfRange { setting, value, least, most }))
        }
        None => Ok(()),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Config {
    /// Checks that every setting of the stack is in its range.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<(), Error> {
        let (ports, steering) = (&self.ephemeral_ports, self.steering);
        let (first, lifetime) = (u64::from(*ports.start()), self.maximum_segment_lifetime);
        check([
            ("steering.cores", steering.cores.into(), 1..=u16::MAX.into()),
            ("steering.core", steering.core.into(), 0..=u64::from(steering.cores.max(1)) - 1),
            ("max_sockets", self.max_sockets.into(), 1..=1 << 24),
            ("max_half_open", self.max_half_open.into(), 1..=1 << 24),
            ("max_time_wait", self.max_time_wait.into(), 0..=1 << 24),
            ("max_buffer_bytes", self.max_buffer_bytes as u64, 64 << 10..=1 << 40),
            ("initial_window", self.initial_window.into(), 1..=10),
            ("minimum_rto_ms", milliseconds(self.minimum_rto), 1..=60_000),
            ("maximum_rto_ms", milliseconds(self.maximum_rto), 60_000..=86_400_000),
            ("delayed_ack_ms", milliseconds(self.delayed_ack), 0..=500),
            ("syn_retries", self.syn_retries.into(), 0..=127),
            ("give_up_ms", milliseconds(self.give_up), 1..=1 << 31),
            ("maximum_segment_lifetime_ms", milliseconds(lifetime), 0..=1 << 30),
            ("fin_wait_2_ms", milliseconds(self.fin_wait_2), 1..=1 << 31),
            ("challenge_acks_per_second", self.challenge_acks_per_second.into(), 0..=1 << 20),
            ("mtu", self.mtu.into(), MTU_MIN.into()..=u16::MAX.into()),
            ("ephemeral_ports", first, 1..=u16::MAX.into()),
            ("ephemeral_ports", (*ports.end()).into(), first..=u16::MAX.into()),
        ])?;
        self.options.check()
    }
}

impl Options {
    /// Checks that every option of a connection is in its range.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<(), Error> {
        let any = || 1..=u64::MAX;
        let keepalive = self.keepalive;
        let probes = keepalive.map_or(1, |alive| alive.probes);
        let idle = keepalive.map_or(1, |alive| milliseconds(alive.idle));
        let interval = keepalive.map_or(1, |alive| milliseconds(alive.interval));
        let segment = self.maximum_segment.unwrap_or(u16::MAX);
        check([
            ("send_buffer_bytes", self.send_buffer_bytes.into(), BUFFER_BYTES),
            ("receive_buffer_bytes", self.receive_buffer_bytes.into(), BUFFER_BYTES),
            ("send_low_water_bytes", self.send_low_water_bytes.into(), any()),
            ("receive_low_water_bytes", self.receive_low_water_bytes.into(), any()),
            ("keepalive.probes", probes.into(), any()),
            ("keepalive.idle_ms", idle, any()),
            ("keepalive.interval_ms", interval, any()),
            ("maximum_segment", segment.into(), 88..=u16::MAX.into()),
        ])
    }
}

impl ListenOptions {
    /// Checks that every option of a listener is in its range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check([("backlog", self.backlog.into(), 1..=u32::MAX.into())])?;
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
