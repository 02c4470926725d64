//! `iobench generate-log`: writes a synthetic access log. Times are those of a Poisson process,
//! whose rate rises in bursts; the popularity of paths follows Zipf's law.

use std::io::{self, BufWriter, Write};

use time::OffsetDateTime;

use crate::access_log::lines::LOG_TIME;
use crate::cli::replay::{GenerateArgs, LogFormat};
use crate::error::Result;
use crate::output;
use crate::random::SplitMix64;
use crate::sys::clock::now_ns;

/// Time of the first request: 2025-01-01 00:00:00 UTC.
const BEGIN_S: f64 = 1_735_689_600.0;

/// Writes the log to standard output.
pub(crate) fn run(arguments: &GenerateArgs) -> Result<()> {
    let seed = arguments.seed.unwrap_or_else(|| now_ns() % 1_000_000);
    output::note(&format!("seed {seed}"));
    let generator = Generator::new(arguments, seed);
    output::print_with(|out| {
        let mut out = BufWriter::with_capacity(1 << 16, out);
        for (at_s, path) in generator {
            write_line(&mut out, arguments.format, BEGIN_S + at_s, path)?;
        }
        out.flush()
    })
}

/// Draws times in seconds, ascending, and numbers of paths, the most popular first.
struct Generator {
    random: SplitMix64,
    rate: f64,
    /// Factor of the rate in a burst, time between the beginnings of two, and length of one.
    burst: f64,
    every_s: f64,
    length_s: f64,
    end_s: f64,
    at_s: f64,
    popularity: Vec<f64>,
}

impl Generator {
    fn new(arguments: &GenerateArgs, seed: u64) -> Generator {
        let mut sum = 0.0;
        let popularity = (1..=arguments.paths).map(|rank| {
            sum += f64::from(rank).powf(-arguments.zipf);
            sum
        });
        Generator {
            random: SplitMix64::new(seed),
            rate: arguments.rate,
            burst: arguments.burst,
            every_s: arguments.burst_every.as_secs_f64(),
            length_s: arguments.burst_length.as_secs_f64(),
            end_s: arguments.duration.as_secs_f64(),
            at_s: 0.0,
            popularity: popularity.collect(),
        }
    }

    /// Uniform in [0, 1).
    fn fraction(&mut self) -> f64 {
        (self.random.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the rate at a time; a burst is at the end of each period.
    fn rate_at(&self, at_s: f64) -> f64 {
        let in_burst = at_s % self.every_s >= self.every_s - self.length_s;
        self.rate * if in_burst { self.burst } else { 1.0 }
    }
}

impl Iterator for Generator {
    type Item = (f64, usize);

    fn next(&mut self) -> Option<(f64, usize)> {
        // Thinning (Lewis and Shedler, 1979): times of the highest rate, of which some are kept.
        let highest = self.rate * self.burst.max(1.0);
        loop {
            self.at_s -= (1.0 - self.fraction()).ln() / highest;
            if self.at_s >= self.end_s {
                return None;
            }
            if self.fraction() * highest < self.rate_at(self.at_s) {
                break;
            }
        }
        let total = self.popularity.last().copied().unwrap_or(1.0);
        let drawn = self.fraction() * total;
        let path = self.popularity.partition_point(|sum| *sum <= drawn);
        Some((self.at_s, path.min(self.popularity.len() - 1)))
    }
}

fn write_line(out: &mut impl Write, format: LogFormat, at_s: f64, path: usize) -> io::Result<()> {
    let path = path + 1;
    match format {
        LogFormat::Json => writeln!(
            out,
            "{{\"msec\":\"{at_s:.6}\",\"request\":\"GET /{path} HTTP/1.1\",\"status\":200}}"
        ),
        LogFormat::Combined => {
            let time =
                OffsetDateTime::from_unix_timestamp(at_s as i64).map_err(io::Error::other)?;
            let time = time.format(LOG_TIME).map_err(io::Error::other)?;
            writeln!(out, "127.0.0.1 - - [{time}] \"GET /{path} HTTP/1.1\" 200 0 \"-\" \"iobench\"")
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::access_log::log::Log;
    use crate::cli::{Cli, Command};

    fn arguments(more: &[&str]) -> GenerateArgs {
        let words = [&["iobench", "generate-log", "--rate=1000", "--duration=20s"], more].concat();
        match Cli::try_parse_from(words).unwrap().command {
            Command::GenerateLog(arguments) => arguments,
            _ => unreachable!("the command is generate-log"),
        }
    }

    #[test]
    fn popularity_is_that_of_zipf() {
        let counts = |zipf: &str| {
            let mut counts = vec![0.0_f64; 10];
            let generator = Generator::new(&arguments(&["--paths=10", zipf]), 1);
            generator.for_each(|(_, path)| counts[path] += 1.0);
            counts
        };
        // Standard deviations of these counts are below 2 % and 3 % of them.
        let counts_one = counts("--zipf=1");
        assert!((counts_one[0] / counts_one[9] - 10.0).abs() < 2.0, "{counts_one:?}");
        let even = counts("--zipf=0");
        assert!((even[0] / even[9] - 1.0).abs() < 0.15, "{even:?}");
    }

    #[test]
    fn bursts_have_their_rate() {
        let more = ["--burst=5", "--burst-every=10s", "--burst-length=1s"];
        let generator = Generator::new(&arguments(&more), 1);
        let (burst, calm): (Vec<f64>, Vec<f64>) =
            generator.map(|(at_s, _)| at_s).partition(|at_s| at_s % 10.0 >= 9.0);
        assert!(burst.is_sorted() && calm.is_sorted());
        assert!((burst.len() as f64 / 10_000.0 - 1.0).abs() < 0.05, "{}", burst.len());
        assert!((calm.len() as f64 / 18_000.0 - 1.0).abs() < 0.05, "{}", calm.len());
    }

    #[test]
    fn both_formats_are_read_back() {
        for format in [LogFormat::Json, LogFormat::Combined] {
            let mut text = Vec::new();
            for (number, at_s) in [0.25, 1.5].into_iter().enumerate() {
                write_line(&mut text, format, BEGIN_S + at_s, number).unwrap();
            }
            let log = Log::from_reader(text.as_slice(), None).unwrap();
            assert_eq!((log.entries.len(), log.bad.count), (2, 0));
            let gap_ns = log.entries[1].at_ns - log.entries[0].at_ns;
            let exact = format == LogFormat::Json;
            assert_eq!(gap_ns, if exact { 1_250_000_000 } else { 1_000_000_000 });
            assert_eq!((log.requests[1].path.as_str(), log.entries[1].status), ("/2", 200));
        }
    }
}
