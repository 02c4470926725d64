//! Options of `replay` and `generate-log`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::access_log::log::Format;
use crate::cli::url::UrlArgs;
use crate::cli::values::{parse_connections, parse_measured, parse_period};
use crate::http_client::address::Url;
use crate::results::files::OutputArgs;

const REPLAY_EXAMPLES: &str = "\
Examples:
  iobench replay access.log --to http://127.0.0.1:8080
  iobench replay access.json --to https://localhost:8443 --insecure --speed 10 --max-gap 1s
  iobench replay requests.gor --to unix:/run/app.sock --loop --duration 5m --connections 20000
  iobench generate-log --rate 500 --duration 60s --burst 5 > synthetic.json

Each request is sent when it is due by the log's times, whatever the server does, and its time
counts from then. Logs with times in whole seconds have the requests of a second spread over it. A
request fails if its answer has another status than the log tells, or is not whole.";

const GENERATE_EXAMPLES: &str = "\
Examples:
  iobench generate-log --rate 1000 --duration 60s > synthetic.json
  iobench generate-log --rate 100 --duration 10m --paths 100000 --zipf 0.8 --burst 10 \\
    --burst-every 1m --burst-length 5s --seed 1 --format combined > access.log";

/// Options of `replay`.
#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES)]
pub(crate) struct ReplayArgs {
    /// Access log: common or combined log format, JSON lines, or a recording of GoReplay
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,

    /// URL of the server, before which the paths of the log are put: http://, https:// or
    /// unix:SOCKET:PATH
    #[arg(long, value_name = "URL")]
    pub(crate) to: Url,

    /// Format of the log [default: found out from its first line]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,

    /// Factor by which the replay is faster than the log, such as 0.5 or 10
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_speed)]
    pub(crate) speed: f64,

    /// Longest gap between two requests, in the log's time; longer ones are shortened
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_period)]
    pub(crate) max_gap: Duration,

    /// The log is replayed again and again until --duration is over
    #[arg(long = "loop", requires = "duration")]
    pub(crate) repeated: bool,

    /// Time after which the replay ends, at most 1h [default: with the log]
    #[arg(long, value_name = "TIME", value_parser = parse_measured)]
    pub(crate) duration: Option<Duration>,

    /// Most connections, over all threads
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_connections)]
    pub(crate) connections: usize,

    /// Time after which an answer is late
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_period)]
    pub(crate) timeout: Duration,

    /// Any status is right
    #[arg(long)]
    pub(crate) any_status: bool,

    /// Number of threads [default: as many as the highest rate needs]
    #[arg(long, value_name = "N")]
    pub(crate) generators: Option<usize>,

    /// Seed of random choices [default: from the clock, in the result document]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// CPUs of the clients, a list (one thread each)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) client_cpus: Option<Vec<usize>>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) client: UrlArgs,
}

/// Format of a log that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// A JSON object in each line, with times in microseconds
    #[default]
    Json,
    /// Combined log format, with times in whole seconds
    Combined,
}

/// Options of `generate-log`.
#[derive(Debug, Args)]
#[command(after_help = GENERATE_EXAMPLES)]
pub(crate) struct GenerateArgs {
    /// Requests per second between bursts, a Poisson process
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) rate: f64,

    /// Time from the first request to the last, at most 1h
    #[arg(long, value_name = "TIME", value_parser = parse_measured)]
    pub(crate) duration: Duration,

    /// Number of paths: /1, /2 and so on, the most popular first
    #[arg(long, value_name = "N", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) paths: u32,

    /// Exponent of Zipf's law: the popularity of path /N is 1/N to the power of it; 0: all alike
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_exponent)]
    pub(crate) zipf: f64,

    /// Factor of the rate in a burst; 1: no bursts
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_speed)]
    pub(crate) burst: f64,

    /// Time between the beginnings of two bursts
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_measured)]
    pub(crate) burst_every: Duration,

    /// Length of a burst
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_measured)]
    pub(crate) burst_length: Duration,

    /// Format of the log
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: LogFormat,

    /// Seed of all random choices [default: from the clock, printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

fn parse_within(text: &str, from: f64, to: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (from..=to).contains(&number) => Ok(number),
        _ => Err(format!("use a number from {from} to {to}")),
    }
}

fn parse_speed(text: &str) -> Result<f64, String> {
    parse_within(text, 0.001, 100_000.0)
}

fn parse_rate(text: &str) -> Result<f64, String> {
    parse_within(text, 0.1, 10_000_000.0)
}

fn parse_exponent(text: &str) -> Result<f64, String> {
    parse_within(text, 0.0, 10.0)
}
