//! Mixes: the sizes of the files that clients request.
//!
//! The mixes replace the traces of the report, which are not public: each is a set of files with
//! the published extremes, mean and shares, and all files are requested equally often.

use std::fmt;
use std::str::FromStr;

use crate::client::protocol::requests::{Requests, bisect};

/// Number of files of the SPECweb-like set.
const SPECWEB_FILES: usize = 1_000;
const SPECWEB_BYTES: Spread = Spread { low: 30.0, high: 5_670.0, mean: 704.0 };
const SPECWEB_REQUESTS: u32 = 6;
/// Files of the Yahoo-like set: a body up to 60 KiB and a tail above, with half of the bytes each.
const YAHOO_BODY_FILES: usize = 1_950;
const YAHOO_BODY_BYTES: Spread = Spread { low: 1.0, high: 61_440.0, mean: 6_564.0 };
const YAHOO_TAIL_FILES: usize = 50;
/// The trace has answers up to 253 MiB. One of that size would take the whole slot, so the tail
/// ends at 4 MiB.
const YAHOO_TAIL_BYTES: Spread = Spread { low: 61_441.0, high: 4_194_304.0, mean: 256_000.0 };
const YAHOO_REQUESTS_MOST: u32 = 1_597;
const YAHOO_REQUESTS_MEAN: f64 = 2.3;
/// Number of files of one size: enough that not all are in the level 1 cache.
const FIXED_FILES: usize = 100;
const MOST_FIXED_BYTES: u64 = 16 << 20;

/// The mix of requested files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    Specweb,
    /// With sizes divided by this number.
    Yahoo {
        divisor: u64,
    },
    Fixed {
        bytes: u64,
    },
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        match text {
            "specweb" => Ok(Mix::Specweb),
            "yahoo" => Ok(Mix::Yahoo { divisor: 1 }),
            "yahoo/2" => Ok(Mix::Yahoo { divisor: 2 }),
            _ => {
                let bytes = text.strip_prefix("fixed:").and_then(|bytes| bytes.parse().ok());
                match bytes {
                    Some(bytes) if bytes <= MOST_FIXED_BYTES => Ok(Mix::Fixed { bytes }),
                    _ => Err(format!(
                        "a mix is specweb, yahoo, yahoo/2 or fixed:BYTES with at most \
                         {MOST_FIXED_BYTES} bytes"
                    )),
                }
            }
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mix::Specweb => to.write_str("specweb"),
            Mix::Yahoo { divisor: 1 } => to.write_str("yahoo"),
            Mix::Yahoo { divisor } => write!(to, "yahoo/{divisor}"),
            Mix::Fixed { bytes } => write!(to, "fixed:{bytes}"),
        }
    }
}

impl Mix {
    /// Returns the sizes of the files, by file number.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        match *self {
            Mix::Specweb => SPECWEB_BYTES.sizes(SPECWEB_FILES),
            Mix::Yahoo { divisor } => {
                let mut sizes = YAHOO_BODY_BYTES.sizes(YAHOO_BODY_FILES);
                sizes.extend(YAHOO_TAIL_BYTES.sizes(YAHOO_TAIL_FILES));
                sizes.iter_mut().for_each(|size| *size = size.div_ceil(divisor));
                sizes
            }
            Mix::Fixed { bytes } => vec![bytes; FIXED_FILES],
        }
    }

    /// Returns the default number of requests per connection.
    pub(crate) fn requests(&self) -> Requests {
        match self {
            Mix::Specweb => Requests::Fixed(SPECWEB_REQUESTS),
            Mix::Yahoo { .. } => Requests::zipf(YAHOO_REQUESTS_MOST, YAHOO_REQUESTS_MEAN),
            Mix::Fixed { .. } => Requests::Fixed(1),
        }
    }
}

/// A family of sizes: low × (high ÷ low)^(q^shape) at the quantile q, with the shape that gives the
/// mean.
struct Spread {
    low: f64,
    high: f64,
    mean: f64,
}

impl Spread {
    fn sizes(&self, count: usize) -> Vec<u64> {
        let of_shape = |shape: f64| {
            let last = count.saturating_sub(1).max(1) as f64;
            (0..count).map(move |index| {
                let quantile = index as f64 / last;
                self.low * (self.high / self.low).powf(quantile.powf(shape))
            })
        };
        let mean = |shape| of_shape(shape).sum::<f64>() / count as f64;
        // With a larger shape more sizes are near the lower end.
        let shape = bisect(1e-3, 1e3, |shape| mean(shape) > self.mean);
        of_shape(shape).map(|size| size.round() as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn mean(sizes: &[u64]) -> f64 {
        sizes.iter().sum::<u64>() as f64 / sizes.len() as f64
    }

    fn extremes(sizes: &[u64]) -> (u64, u64) {
        (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap())
    }

    #[test]
    fn the_specweb_set_has_the_published_sizes() {
        let sizes = Mix::Specweb.sizes();
        assert_eq!(extremes(&sizes), (30, 5_670));
        assert!((mean(&sizes) - 704.0).abs() < 1.0, "{}", mean(&sizes));
        assert_eq!(Mix::Specweb.requests().rounded(), 6);
        let half = sizes.iter().filter(|&&size| size < 704).count();
        assert!((600..800).contains(&half), "{half}");
    }

    #[test]
    fn the_yahoo_set_has_its_mean_and_half_of_its_bytes_above_60_kib() {
        for (divisor, largest) in [(1, 4_194_304), (2, 2_097_152)] {
            let sizes = Mix::Yahoo { divisor }.sizes();
            assert_eq!(extremes(&sizes), (1, largest));
            let expected = 12_800.0 / divisor as f64;
            assert!((mean(&sizes) - expected).abs() < expected / 100.0, "{}", mean(&sizes));
            let above = sizes.iter().filter(|&&size| size > 61_440 / divisor).sum::<u64>() as f64;
            let share = above / sizes.iter().sum::<u64>() as f64;
            assert!((0.45..0.55).contains(&share), "{share}");
        }
    }

    #[test]
    fn yahoo_connections_are_short_with_a_long_tail() {
        let requests = Mix::Yahoo { divisor: 1 }.requests();
        let mut random = SplitMix64::new(42);
        let draws: Vec<u32> = (0..1_000_000).map(|_| requests.draw(&mut random)).collect();
        let mean = draws.iter().map(|&count| f64::from(count)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 2.3).abs() < 0.1, "{mean}");
        let short = draws.iter().filter(|&&count| count <= 10).count() as f64 / draws.len() as f64;
        assert!((0.975..0.985).contains(&short), "{short}");
        assert_eq!(draws.iter().min(), Some(&1));
        let longest = *draws.iter().max().unwrap();
        assert!((1_000..=1_597).contains(&longest), "{longest}");
        assert!(requests.to_string().contains("1 to 1597"), "{requests}");
    }

    #[test]
    fn mixes_are_named_as_they_are_written() {
        for name in ["specweb", "yahoo", "yahoo/2", "fixed:0", "fixed:1000"] {
            assert_eq!(name.parse::<Mix>().unwrap().to_string(), name);
        }
        for wrong in ["", "yahoo/3", "fixed", "fixed:", "fixed:-1", "fixed:16777217"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
        assert!(Mix::Fixed { bytes: 9 }.sizes().iter().all(|&size| size == 9));
    }
}
