//! Estimates the round-trip time, and computes the retransmission time-out from it (RFC 6298).

use crate::config::Config;
use crate::time::Instant;
use std::time::Duration;

/// The time-out before the first measurement (RFC 6298, section 2.1).
const INITIAL_TIMEOUT_US: u32 = 1_000_000;
/// The time-out before the first measurement if a SYN was lost (RFC 6298, section 5.7).
const TIMEOUT_AFTER_LOST_SYN_US: u32 = 3_000_000;
/// The least time for which a minimum is used; the longest is twice as long. RFC 8985, section 6.2
/// step 1, leaves the length open; paths change within minutes.
const MINIMUM_WINDOW_S: u32 = 150;
/// Longer measurements count as this value, nine minutes, because eight times it fits 32 bits.
const SAMPLE_MAX_US: u32 = u32::MAX / 8;

/// The estimated round-trip time of a connection, in microseconds; a sample counts as at least one.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrip {
    /// Eight times SRTT; zero before the first sample. (Scaled, so that the small weights of new
    /// samples are not lost to rounding.)
    smoothed_8: u32,
    /// Four times RTTVAR.
    variation_4: u32,
    /// The minimum of this window and of the one before.
    minimum_us: [u32; 2],
    /// When this window began, in seconds.
    window_s: u32,
    base_us: u32,
    least_us: u32,
    most_us: u32,
    back_offs: u8,
}

impl RoundTrip {
    /// An estimator without measurements; the configuration has the bounds of the time-out.
    pub(crate) fn new(config: &Config) -> RoundTrip {
        let least_us = microseconds(config.minimum_rto);
        let most_us = microseconds(config.maximum_rto).max(least_us);
        RoundTrip {
            smoothed_8: 0,
            variation_4: 0,
            minimum_us: [u32::MAX; 2],
            window_s: 0,
            base_us: INITIAL_TIMEOUT_US.clamp(least_us, most_us),
            least_us,
            most_us,
            back_offs: 0,
        }
    }

    /// Takes a measurement. The segment must not have been sent twice, unless timestamps show which
    /// copy is acknowledged (Karn's algorithm; RFC 6298, section 3). It ends any back-off.
    pub(crate) fn sample(&mut self, now: Instant, round_trip: Duration) {
        let sample = microseconds(round_trip).min(SAMPLE_MAX_US);
        if self.smoothed_8 == 0 {
            // Section 2.2: SRTT = R, RTTVAR = R / 2.
            self.smoothed_8 = sample * 8;
            self.variation_4 = sample * 2;
        } else {
            // Section 2.3, with alpha = 1/8 and beta = 1/4.
            let deviation = (self.smoothed_8 / 8).abs_diff(sample);
            self.variation_4 = self.variation_4 - self.variation_4 / 4 + deviation;
            self.smoothed_8 = self.smoothed_8 - self.smoothed_8 / 8 + sample;
        }
        // The floor applies to the variation, not to the sum: a delayed acknowledgement arrives
        // later than the smoothed time by up to that floor, however steady the path has been.
        let margin = self.variation_4.max(self.least_us);
        self.base_us = (self.smoothed_8 / 8).saturating_add(margin).min(self.most_us);
        self.back_offs = 0;
        // The minimum is rounded down: rounded up, it would make an equally short measurement
        // impossible.
        let rounded = !round_trip.subsec_nanos().is_multiple_of(1000);
        self.note_minimum(now, sample - u32::from(rounded));
    }

    /// The retransmission time-out, with its back-off.
    pub(crate) fn timeout(&self) -> Duration {
        let timeout = u64::from(self.base_us) << self.back_offs.min(31);
        Duration::from_micros(timeout.min(u64::from(self.most_us)))
    }

    /// Doubles the time-out because it has expired (section 5.5).
    pub(crate) fn back_off(&mut self) {
        self.back_offs = self.back_offs.saturating_add(1);
    }

    /// Ends the back-off, because new data was acknowledged.
    pub(crate) fn reset_back_off(&mut self) {
        self.back_offs = 0;
    }

    /// How many times in a row the time-out has been doubled.
    pub(crate) fn back_offs(&self) -> u8 {
        self.back_offs
    }

    /// Records that a SYN was lost. Without a measurement, data begins with a time-out of three
    /// seconds (section 5.7).
    pub(crate) fn after_lost_syn(&mut self) {
        if self.smoothed_8 == 0 {
            self.base_us = TIMEOUT_AFTER_LOST_SYN_US.clamp(self.least_us, self.most_us);
            self.back_offs = 0;
        }
    }

    /// SRTT, once it has been measured.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        (self.smoothed_8 > 0).then(|| Duration::from_micros(u64::from(self.smoothed_8 / 8)))
    }

    /// RTTVAR, once it has been measured.
    #[cfg(test)]
    pub(crate) fn variation(&self) -> Option<Duration> {
        (self.smoothed_8 > 0).then(|| Duration::from_micros(u64::from(self.variation_4 / 4)))
    }

    /// The least measurement of the last minutes (see `MINIMUM_WINDOW_S`).
    pub(crate) fn minimum(&self) -> Option<Duration> {
        let minimum = self.minimum_us[0].min(self.minimum_us[1]);
        (minimum != u32::MAX).then(|| Duration::from_micros(u64::from(minimum)))
    }

    fn note_minimum(&mut self, now: Instant, sample: u32) {
        let now_s = now.as_secs() as u32;
        if now_s.wrapping_sub(self.window_s) >= MINIMUM_WINDOW_S {
            self.window_s = now_s;
            self.minimum_us = [u32::MAX, self.minimum_us[0]];
        }
        self.minimum_us[0] = self.minimum_us[0].min(sample);
    }
}

fn microseconds(duration: Duration) -> u32 {
    let whole = duration.as_secs().saturating_mul(1_000_000);
    let microseconds = whole.saturating_add(u64::from(duration.subsec_nanos().div_ceil(1000)));
    u32::try_from(microseconds).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(least_ms: u64, most_s: u64) -> Config {
        Config {
            minimum_rto: Duration::from_millis(least_ms),
            maximum_rto: Duration::from_secs(most_s),
            ..Config::default()
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_first_samples_are_weighed_as_rfc_6298_says() {
        let mut round_trip = RoundTrip::new(&config(1, 120));
        assert_eq!((round_trip.timeout(), round_trip.smoothed()), (ms(1000), None));
        assert_eq!((round_trip.variation(), round_trip.minimum()), (None, None));
        // SRTT = 100, RTTVAR = 50, RTO = 100 + 4 * 50.
        round_trip.sample(at(1), ms(100));
        assert_eq!(round_trip.smoothed(), Some(ms(100)));
        assert_eq!((round_trip.variation(), round_trip.timeout()), (Some(ms(50)), ms(300)));
        // RTTVAR = 3/4 * 50 + 1/4 * |100 - 180| = 57.5, SRTT = 7/8 * 100 + 1/8 * 180 = 110.
        round_trip.sample(at(1), ms(180));
        assert_eq!(round_trip.smoothed(), Some(ms(110)));
        assert_eq!(round_trip.variation(), Some(Duration::from_micros(57_500)));
        assert_eq!(round_trip.timeout(), ms(110 + 230));
        assert_eq!(round_trip.minimum(), Some(ms(100)));
    }

    #[test]
    fn a_steady_path_leaves_the_least_margin() {
        let mut round_trip = RoundTrip::new(&config(200, 120));
        for _ in 0..500 {
            round_trip.sample(at(1), Duration::from_micros(37));
        }
        assert_eq!(round_trip.smoothed(), Some(Duration::from_micros(37)));
        assert_eq!(round_trip.timeout(), ms(200) + Duration::from_micros(37));
    }

    #[test]
    fn the_time_out_doubles_up_to_its_bound_and_a_sample_ends_that() {
        let mut round_trip = RoundTrip::new(&config(200, 60));
        round_trip.sample(at(1), ms(400));
        let mut expected = ms(1200);
        for count in 0..100 {
            assert_eq!((round_trip.timeout(), round_trip.back_offs()), (expected, count));
            round_trip.back_off();
            expected = (expected * 2).min(Duration::from_secs(60));
        }
        round_trip.reset_back_off();
        assert_eq!(round_trip.timeout(), ms(1200));
        round_trip.back_off();
        round_trip.sample(at(1), ms(400));
        assert_eq!((round_trip.back_offs(), round_trip.timeout()), (0, ms(1000)));
    }

    #[test]
    fn a_lost_syn_lengthens_the_time_out_until_something_is_measured() {
        let mut round_trip = RoundTrip::new(&config(200, 60));
        round_trip.back_off();
        round_trip.after_lost_syn();
        assert_eq!(round_trip.timeout(), ms(3000));
        round_trip.sample(at(1), ms(10));
        round_trip.after_lost_syn();
        assert_eq!(round_trip.timeout(), ms(210));
    }

    #[test]
    fn a_minimum_is_forgotten_after_some_minutes() {
        let mut round_trip = RoundTrip::new(&config(200, 60));
        round_trip.sample(at(1000), ms(10));
        round_trip.sample(at(1100), ms(30));
        assert_eq!(round_trip.minimum(), Some(ms(10)));
        round_trip.sample(at(1200), ms(40));
        assert_eq!(round_trip.minimum(), Some(ms(10)));
        round_trip.sample(at(1400), ms(50));
        assert_eq!(round_trip.minimum(), Some(ms(40)));
    }

    #[test]
    fn samples_beyond_reason_are_bounded() {
        let mut round_trip = RoundTrip::new(&config(200, 60));
        for sample in [Duration::ZERO, Duration::MAX, Duration::MAX, Duration::from_nanos(1)] {
            round_trip.sample(at(1), sample);
            assert!(round_trip.timeout() >= ms(200) && round_trip.timeout() <= ms(60_000));
        }
        assert_eq!(round_trip.minimum(), Some(Duration::ZERO));
    }

    #[test]
    fn the_minimum_is_no_longer_than_what_was_measured() {
        let mut round_trip = RoundTrip::new(&config(200, 60));
        let nanoseconds = Duration::from_nanos;
        round_trip.sample(at(1), nanoseconds(21_540));
        assert_eq!(round_trip.minimum(), Some(nanoseconds(21_000)));
        round_trip.sample(at(1), nanoseconds(20_000));
        assert_eq!(round_trip.minimum(), Some(nanoseconds(20_000)));
    }
}
