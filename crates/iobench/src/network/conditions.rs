//! Parses and formats network conditions: what the path between clients and server does to packets.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::parse_duration;

/// Longest delay: several times that of a geostationary satellite.
const LONGEST_DELAY: Duration = Duration::from_secs(1);
const RATES_BITS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000;
const MOST_QUEUE_BYTES: usize = 64 << 20;
const LEAST_DEFAULT_QUEUE_BYTES: usize = 64 << 10;
const DEFAULT_MTU: u32 = 1_500;
/// Every IPv4 host accepts packets of 576 bytes; the longest have 65,535 (RFC 791).
const MTUS: std::ops::RangeInclusive<u32> = 576..=65_535;

/// Network conditions of each direction: they add twice the delay to a round trip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub(crate) struct Conditions {
    /// Delay of every packet, at most 1 s.
    pub(crate) delay: Duration,
    /// The delay is uniform between delay − jitter and delay + jitter; at most the delay. Without
    /// `reorder` a packet never arrives before its predecessors, which lengthens the mean in dense
    /// traffic.
    pub(crate) jitter: Duration,
    /// Probability that the wire loses a packet, 0 to 1, independent of other packets.
    pub(crate) loss: f64,
    /// Bits of IP packets per second, 1 kbit to 1 Tbit; unlimited without it.
    pub(crate) rate_bits: Option<u64>,
    /// Queue before the rate limit, in bytes; without it see [`Conditions::queue_bytes`].
    queue_bytes: Option<usize>,
    /// Packets may overtake each other because of jitter.
    pub(crate) reorder: bool,
    /// Longest IP packet in bytes, 576 to 65535.
    pub(crate) mtu: u32,
}

impl Default for Conditions {
    fn default() -> Conditions {
        Conditions {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            rate_bits: None,
            queue_bytes: None,
            reorder: false,
            mtu: DEFAULT_MTU,
        }
    }
}

impl Conditions {
    /// Bytes that may wait for the rate limit: as given, else what the rate transmits in 50 ms, at
    /// least 64 KiB.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.queue_bytes.unwrap_or_else(|| {
            let bytes_in_50_ms = self.rate_bits.unwrap_or(0) / 8 / 20;
            (bytes_in_50_ms as usize).clamp(LEAST_DEFAULT_QUEUE_BYTES, MOST_QUEUE_BYTES)
        })
    }

    /// Returns whether packets may be lost, on the wire or in the queue.
    pub(crate) fn is_lossy(&self) -> bool {
        self.loss > 0.0 || self.rate_bits.is_some()
    }

    /// Returns the longest time that delay and jitter add to a round trip.
    pub(crate) fn longest_round_trip(&self) -> Duration {
        2 * (self.delay + self.jitter)
    }

    /// Checks combinations of values.
    fn checked(self) -> Result<Conditions, String> {
        if self.delay > LONGEST_DELAY {
            return Err("the delay is longer than 1s; write at most delay=1s".to_owned());
        }
        if self.jitter > self.delay {
            return Err("the jitter exceeds the delay, so that packets would arrive before they \
                        are sent; write a longer delay or less jitter"
                .to_owned());
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(format!("a loss of {} is no probability; write 0 to 1", self.loss));
        }
        if self.rate_bits.is_some_and(|rate| !RATES_BITS.contains(&rate)) {
            return Err("the rate must lie between 1kbit and 1000Gbit".to_owned());
        }
        if !MTUS.contains(&self.mtu) {
            return Err(format!("an mtu of {} is impossible; write 576 to 65535", self.mtu));
        }
        if let Some(queue) = self.queue_bytes {
            if self.rate_bits.is_none() {
                return Err("a queue without a rate never fills; write a rate, too".to_owned());
            }
            if queue < self.mtu as usize || queue > MOST_QUEUE_BYTES {
                return Err(format!(
                    "a queue of {queue} bytes is out of bounds; write at least the mtu ({}) and \
                     at most 64MiB",
                    self.mtu
                ));
            }
        }
        if self.reorder && self.jitter.is_zero() {
            return Err("nothing is reordered without jitter; write jitter, too".to_owned());
        }
        Ok(self)
    }
}

/// Conditions as experiment files contain them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<String>,
    loss: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    reorder: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
}

impl TryFrom<Written> for Conditions {
    type Error = String;

    fn try_from(written: Written) -> Result<Conditions, String> {
        let time = |name, text: Option<String>| {
            text.map_or(Ok(Duration::ZERO), |text| parse_time(name, &text))
        };
        Conditions {
            delay: time("delay", written.delay)?,
            jitter: time("jitter", written.jitter)?,
            loss: written.loss,
            rate_bits: written.rate.map(|text| parse_rate(&text)).transpose()?,
            queue_bytes: written.queue.map(|text| parse_bytes(&text)).transpose()?,
            reorder: written.reorder,
            mtu: written.mtu.unwrap_or(DEFAULT_MTU),
        }
        .checked()
    }
}

impl From<Conditions> for Written {
    fn from(conditions: Conditions) -> Written {
        let time = |time: Duration| (!time.is_zero()).then(|| write_time(time));
        Written {
            delay: time(conditions.delay),
            jitter: time(conditions.jitter),
            loss: conditions.loss,
            rate: conditions.rate_bits.map(|rate| format!("{rate}bit")),
            queue: conditions.queue_bytes.map(|bytes| format!("{bytes}B")),
            reorder: conditions.reorder,
            mtu: Some(conditions.mtu),
        }
    }
}

/// The form of the command line, such as `delay=10ms,jitter=2ms,loss=0.01,rate=100Mbit,reorder`.
impl FromStr for Conditions {
    type Err = String;

    fn from_str(text: &str) -> Result<Conditions, String> {
        let mut conditions = Conditions::default();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name {
                "delay" => conditions.delay = parse_time(name, value)?,
                "jitter" => conditions.jitter = parse_time(name, value)?,
                "loss" => conditions.loss = parse_probability(value)?,
                "rate" => conditions.rate_bits = Some(parse_rate(value)?),
                "queue" => conditions.queue_bytes = Some(parse_bytes(value)?),
                "reorder" => conditions.reorder = parse_switch(value)?,
                "mtu" => {
                    conditions.mtu =
                        value.parse().map_err(|_| format!("mtu: `{value}` is not a number"))?;
                }
                _ => {
                    return Err(format!(
                        "`{part}` is no condition; write some of delay=TIME, jitter=TIME, \
                         loss=PROBABILITY, rate=RATE, queue=BYTES, reorder, mtu=BYTES, separated \
                         by commas"
                    ));
                }
            }
            if seen.contains(&name) {
                return Err(format!("`{name}` appears twice; write it once"));
            }
            seen.push(name);
        }
        conditions.checked()
    }
}

impl fmt::Display for Conditions {
    /// For reports: `10ms ± 2ms each way, 1 % loss, 100 Mbit/s`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&write_time(self.delay))?;
        if !self.jitter.is_zero() {
            write!(formatter, " ± {}", write_time(self.jitter))?;
        }
        formatter.write_str(" each way")?;
        if self.reorder {
            formatter.write_str(", reordering")?;
        }
        if self.loss > 0.0 {
            // Rounded to the precision of f64, so that 0.07 is not shown as 7.000000000000001 %.
            write!(formatter, ", {} % loss", (self.loss * 1e12).round() / 1e10)?;
        }
        if let Some(rate) = self.rate_bits {
            let (number, unit) = match rate {
                1_000_000_000.. => (rate as f64 / 1e9, "Gbit/s"),
                1_000_000.. => (rate as f64 / 1e6, "Mbit/s"),
                _ => (rate as f64 / 1e3, "kbit/s"),
            };
            write!(formatter, ", {number} {unit}, queue of {} B", self.queue_bytes())?;
        }
        if self.mtu != DEFAULT_MTU {
            write!(formatter, ", MTU {}", self.mtu)?;
        }
        Ok(())
    }
}

fn parse_time(name: &str, text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|cause| format!("{name}: {cause}"))
}

/// Returns a number as `0.01`, or `1%`.
fn parse_probability(text: &str) -> Result<f64, String> {
    let (number, divisor) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number
        .trim()
        .parse()
        .map_err(|_| format!("loss: `{text}` is no probability; write 0.01 or 1%"))?;
    Ok(number / divisor)
}

/// Units are powers of 1000; `/s` is optional.
fn parse_rate(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)];
    parse_with_unit(text.strip_suffix("/s").unwrap_or(text), &UNITS)
        .ok_or_else(|| format!("rate: `{text}` is no rate; write 100Mbit, 1Gbit or 64kbit"))
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, f64); 6] =
        [("", 1.0), ("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("KiB", 1024.0), ("MiB", 1048576.0)];
    parse_with_unit(text, &UNITS)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| format!("queue: `{text}` is no size; write 65536, 64KiB or 1MiB"))
}

/// Returns a number up to 2^53, so that no bit of it is lost, followed by one of the units.
fn parse_with_unit(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
    let value = number.parse::<f64>().ok()? * factor;
    (value < (1_u64 << 53) as f64).then_some(value.round() as u64)
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("reorder: `{text}` is neither true nor false")),
    }
}

/// Formats a time with the largest suitable unit; [`parse_duration`] reads the same time.
fn write_time(time: Duration) -> String {
    match time.as_nanos() {
        nanoseconds @ 1_000_000_000.. => format!("{}s", nanoseconds as f64 / 1e9),
        nanoseconds @ (0 | 1_000_000..) => format!("{}ms", nanoseconds as f64 / 1e6),
        nanoseconds => format!("{}us", nanoseconds as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Conditions>().unwrap_err()
    }

    #[test]
    fn conditions_are_written_in_words() {
        let written = |text: &str| text.parse::<Conditions>().unwrap().to_string();
        let all = "delay=10ms, jitter=2ms, loss=0.01, rate=100Mbit, queue=64KiB, reorder, mtu=9000";
        assert_eq!(
            written(all),
            "10ms ± 2ms each way, reordering, 1 % loss, 100 Mbit/s, queue of 65536 B, MTU 9000"
        );
        assert_eq!(written("delay=50us,loss=0.07"), "50us each way, 7 % loss");
        assert_eq!(written("loss=0.5%"), "0ms each way, 0.5 % loss");
        assert_eq!(written("rate=1.5Gbit/s"), "0ms each way, 1.5 Gbit/s, queue of 9375000 B");
    }

    #[test]
    fn the_queue_defaults_to_50_ms_within_bounds() {
        let queue = |text: &str| text.parse::<Conditions>().unwrap().queue_bytes();
        assert_eq!(queue("rate=100Mbit"), 625_000);
        assert_eq!(queue("rate=1Mbit"), 65_536);
        assert_eq!(queue("rate=1000Gbit"), 64 << 20);
        assert_eq!(queue("rate=1Mbit,queue=3kB"), 3_000);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_remedy() {
        for (text, part) in [
            ("delay=1001ms", "at most delay=1s"),
            ("delay=1ms,jitter=2ms", "exceeds the delay"),
            ("loss=1.5", "write 0 to 1"),
            ("loss=-0.1", "write 0 to 1"),
            ("loss=nan", "write 0 to 1"),
            ("loss=some", "write 0.01 or 1%"),
            ("rate=10", "write 100Mbit"),
            ("rate=999bit", "between 1kbit and 1000Gbit"),
            ("rate=fast", "write 100Mbit"),
            ("queue=64KiB", "write a rate, too"),
            ("rate=1Mbit,queue=100", "at least the mtu (1500)"),
            ("rate=1Mbit,queue=65MiB", "at most 64MiB"),
            ("rate=1Mbit,queue=1GB", "write 65536, 64KiB or 1MiB"),
            ("mtu=575", "write 576 to 65535"),
            ("mtu=-1", "is not a number"),
            ("reorder", "write jitter, too"),
            ("delay=1ms,jitter=1ms,reorder=maybe", "neither true nor false"),
            ("delay=5", "a time needs a unit"),
            ("delay=1ms,delay=2ms", "appears twice"),
            ("latency=1ms", "`latency=1ms` is no condition"),
            ("", "is no condition"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }

    #[test]
    fn files_name_the_same_values() {
        let read = |json: &str| serde_json::from_str::<Conditions>(json);
        let file = r#"{"delay": "10ms", "jitter": "2ms", "loss": 0.01, "rate": "100Mbit"}"#;
        let text = "delay=10ms,jitter=2ms,loss=0.01,rate=100Mbit";
        assert_eq!(read(file).unwrap(), text.parse().unwrap());
        assert_eq!(read("{}").unwrap(), Conditions::default());
        let unknown = read(r#"{"latency": "1ms"}"#).unwrap_err().to_string();
        assert!(unknown.contains("latency") && unknown.contains("delay"), "{unknown}");
        let bounds = read(r#"{"loss": 2.0}"#).unwrap_err().to_string();
        assert!(bounds.contains("write 0 to 1"), "{bounds}");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_as_the_same(
            delay_ns in 0..=1_000_000_000_u64,
            jitter_part in 0.0..=1.0_f64,
            // f64 in JSON may differ in the last digit.
            loss_millionths in 0..=1_000_000_u32,
            rate_bits in prop::option::of(1_000..=1_000_000_000_000_u64),
            mtu in 576..=65_535_u32,
        ) {
            let conditions = Conditions {
                delay: Duration::from_nanos(delay_ns),
                jitter: Duration::from_nanos((delay_ns as f64 * jitter_part) as u64),
                loss: f64::from(loss_millionths) / 1e6,
                rate_bits,
                queue_bytes: rate_bits.map(|_| 100_000),
                reorder: false,
                mtu,
            };
            let written = serde_json::to_string(&conditions).unwrap();
            prop_assert_eq!(serde_json::from_str::<Conditions>(&written).unwrap(), conditions);
        }

        #[test]
        fn no_text_upsets_the_parser(text in "[a-z0-9=,.%]{0,24}") {
            let _ = text.parse::<Conditions>();
        }
    }
}
