//! Options of the open loop.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::values::{parse_period, parse_rate};
use crate::open::arrivals::Arrivals;

/// Options of `load` that make its loop open.
#[derive(Debug, Args)]
#[command(next_help_heading = "Open loop")]
pub(crate) struct OpenArgs {
    /// requests per second, sent at scheduled times independently of answers (with --transactions:
    /// new connections per second, each with so many requests), such as 8000 or 8k
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,

    /// arrival process, how requests are spread over time: slots, poisson or uniform
    #[arg(long, value_name = "HOW", default_value = "slots", requires = "rate")]
    pub(crate) arrivals: Arrivals,

    /// time in which the rate grows exponentially to its target
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_period,
          requires = "rate")]
    pub(crate) growth: Duration,

    /// time at the full rate before anything is measured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_period,
          requires = "rate")]
    pub(crate) steady: Duration,

    /// time after which an answer is late
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_period,
          requires = "rate")]
    pub(crate) timeout: Duration,

    /// number of pairs of send and receive threads [default: as many as the rate needs]
    #[arg(long, value_name = "N", requires = "rate")]
    pub(crate) generators: Option<usize>,

    /// CSV file for every request's timestamps
    #[arg(long, value_name = "FILE", requires = "rate")]
    pub(crate) log: Option<PathBuf>,
}
