//! The options of a measurement.

use std::str::FromStr;

use clap::{Args, ValueEnum};

/// Longest message, 16 MiB.
const MESSAGE_BYTES_MAX: u64 = 1 << 24;
/// Most slices of a measurement: each has a histogram of 100 kB.
const SLICES_MAX: u64 = 1_000;

/// The pattern of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// The first process sends, the second answers, one message at a time.
    PingPong,
    /// The second process sends all the time, the first receives.
    OneWay,
}

/// The CPUs of the first and of the second process; they may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuPair(pub [usize; 2]);

impl FromStr for CpuPair {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<CpuPair, String> {
        let pair = text.split_once(',').and_then(|(first, second)| {
            Some(CpuPair([first.trim().parse().ok()?, second.trim().parse().ok()?]))
        });
        pair.ok_or_else(|| "write two CPUs, such as 0,1".to_owned())
    }
}

/// A measurement between two processes.
#[derive(Debug, Clone, Args)]
pub struct Load {
    /// Pattern of messages
    #[arg(long, value_enum)]
    pub pattern: Pattern,

    /// Bytes of every message, 1 to 16777216
    #[arg(long, value_name = "N", default_value = "64",
          value_parser = clap::value_parser!(u64).range(1..=MESSAGE_BYTES_MAX))]
    pub message_bytes: u64,

    /// CPUs of the first and the second process
    #[arg(long, value_name = "FIRST,SECOND")]
    pub cpus: CpuPair,

    /// Messages after which the writer notifies the reader; 1: no batching
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: u32,

    /// Time from the first message to the first slice, in nanoseconds
    #[arg(long, value_name = "NS", default_value = "10000000",
          value_parser = clap::value_parser!(u64).range(..=60_000_000_000))]
    pub warm_up_ns: u64,

    /// Length of a slice, in nanoseconds
    #[arg(long, value_name = "NS", default_value = "25000000",
          value_parser = clap::value_parser!(u64).range(1_000..=60_000_000_000))]
    pub slice_ns: u64,

    /// Number of slices
    #[arg(long, value_name = "N", default_value = "10",
          value_parser = clap::value_parser!(u64).range(1..=SLICES_MAX))]
    pub slices: u64,

    /// Invitation of the first process to the second
    #[arg(long, value_name = "TEXT", hide = true)]
    pub join: Option<String>,
}

impl Load {
    /// Bytes of every message.
    pub fn bytes(&self) -> usize {
        self.message_bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_cpus_are_two_numbers() {
        assert_eq!("0,1".parse(), Ok(CpuPair([0, 1])));
        assert_eq!("3, 3".parse(), Ok(CpuPair([3, 3])));
        for wrong in ["", "1", "1,", "a,b", "1,2,3", "-1,0"] {
            assert!(wrong.parse::<CpuPair>().is_err(), "{wrong}");
        }
    }
}
