//! Histograms and the percentiles read from them. Percentiles are never averaged: histograms are
//! merged, and percentiles are taken at the end.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};

/// Longest time that is recorded exactly, ten minutes; longer ones count as ten minutes.
const HIGHEST_NS: u64 = 600_000_000_000;
/// Three digits: the error of a recorded time is at most 0.1 %. A histogram takes about 270 KiB.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Times in nanoseconds, from 1 ns.
pub(crate) type Times = Histogram<u64>;

/// Returns an empty histogram. All have the same bounds, so any two can be merged without loss.
pub(crate) fn new_times() -> Times {
    Times::new_with_bounds(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that the histogram accepts")
}

/// Returns the histogram as text: V2 of the HdrHistogram format, deflated, in base 64.
pub(crate) fn encode(times: &Times) -> Result<String> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(times, &mut bytes)
        .map_err(std::io::Error::other)
        .context("encode a histogram", "report this as a bug")?;
    Ok(BASE64.encode(bytes))
}

/// Returns the histogram as text, unless it is empty.
pub(crate) fn encode_recorded(times: &Times) -> Result<Option<String>> {
    (!times.is_empty()).then(|| encode(times)).transpose()
}

/// Returns the inverse of [`encode`]. Values beyond the bounds of `Times` are clamped to them.
pub(crate) fn decode(text: &str) -> Result<Times> {
    let remedy = "the file is damaged or from another program; measure again";
    let broken = |cause: String| Error::setup(format!("cannot read a histogram: {cause}"), remedy);
    let bytes = BASE64.decode(text).map_err(|error| broken(error.to_string()))?;
    let read: Times = Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|error| broken(error.to_string()))?;
    let mut times = new_times();
    for value in read.iter_recorded() {
        times.saturating_record_n(value.value_iterated_to(), value.count_at_value());
    }
    Ok(times)
}

/// A histogram as text within other data, for `#[serde(with)]`.
pub(crate) mod as_text {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Times, decode, encode};

    pub(crate) fn serialize<S: Serializer>(times: &Times, out: S) -> Result<S::Ok, S::Error> {
        encode(times).map_err(S::Error::custom)?.serialize(out)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Times, D::Error> {
        decode(&String::deserialize(input)?).map_err(D::Error::custom)
    }
}

/// The percentiles of the paper's Figure 7, the tail, the longest, and the mean, in microseconds.
/// Those that files of former versions lack are optional.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Percentiles {
    pub(crate) p1: f64,
    pub(crate) p25: f64,
    pub(crate) p50: f64,
    pub(crate) p75: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p90: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p95: Option<f64>,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mean: Option<f64>,
}

impl Percentiles {
    /// Returns the percentiles; `None` for an empty histogram.
    pub(crate) fn of(times: &Times) -> Option<Percentiles> {
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        (!times.is_empty()).then(|| Percentiles {
            p1: at(0.01),
            p25: at(0.25),
            p50: at(0.5),
            p75: at(0.75),
            p90: Some(at(0.9)),
            p95: Some(at(0.95)),
            p99: at(0.99),
            p999: at(0.999),
            max: times.max() as f64 / 1e3,
            mean: Some(times.mean() / 1e3),
        })
    }

    /// Returns all of them as text, each by `shown`.
    pub(crate) fn describe(&self, shown: impl Fn(f64) -> String) -> String {
        let Percentiles { p1, p25, p50, p75, p90, p95, p99, p999, max, mean } = *self;
        let all = [
            ("mean", mean),
            ("p1", Some(p1)),
            ("p25", Some(p25)),
            ("p50", Some(p50)),
            ("p75", Some(p75)),
            ("p90", p90),
            ("p95", p95),
            ("p99", Some(p99)),
            ("p99.9", Some(p999)),
            ("max", Some(max)),
        ];
        let one = |(name, value): (&str, Option<f64>)| Some(format!("{name} {}", shown(value?)));
        all.into_iter().filter_map(one).collect::<Vec<String>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_survive_the_journey() {
        let mut times = new_times();
        for value in [1, 999, 12_345_678, HIGHEST_NS, u64::MAX] {
            times.saturating_record(value);
        }
        let read = decode(&encode(&times).unwrap()).unwrap();
        assert_eq!(read, times);
        assert_eq!(Percentiles::of(&read), Percentiles::of(&times));
    }

    #[test]
    fn damaged_text_is_refused() {
        for wrong in ["", "?", "AAAA", "HISTFAAAAB"] {
            assert!(decode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut times = new_times();
        times.record_n(5_000, 99).unwrap();
        times.record(1_000_000).unwrap();
        let percentiles = Percentiles::of(&times).unwrap();
        assert!((percentiles.p50 - 5.0).abs() < 0.01, "{percentiles:?}");
        assert!((percentiles.max - 1_000.0).abs() < 1.0, "{percentiles:?}");
        assert!((percentiles.mean.unwrap() - 14.95).abs() < 0.02, "{percentiles:?}");
        let text = percentiles.describe(|us| format!("{us:.0}"));
        assert_eq!(
            text,
            "mean 15, p1 5, p25 5, p50 5, p75 5, p90 5, p95 5, p99 5, p99.9 1000, max 1000"
        );
        assert_eq!(Percentiles::of(&new_times()), None);
    }
}
