//! redis-server without persistence, and redis-benchmark.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::installed::{ask, find, version};
use crate::programs::{Amount, Cell, Printed, Program, Target, Variant};
use crate::results::ReportedLatency;
use crate::sys::signals::Signals;

const SOCKET: &str = "redis.sock";
/// A key and a value of the sizes that the client uses.
const STORE: &str = "SET key:__rand_int__ xxx\r\nQUIT\r\n";

/// redis-server with redis-benchmark as its client.
pub(crate) struct Redis {
    server: PathBuf,
    client: PathBuf,
}

impl Redis {
    /// Finds both programs.
    pub(crate) fn find() -> Result<Redis> {
        Ok(Redis {
            server: find("redis-server", "redis-server")?,
            client: find("redis-benchmark", "redis-tools")?,
        })
    }
}

fn socket(directory: &Path) -> String {
    directory.join(SOCKET).display().to_string()
}

impl Program for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn settings(&self) -> String {
        format!("{}; no persistence, values of 3 bytes", version(&self.server, "--version"))
    }

    fn variants(&self) -> &'static [Variant] {
        &[Variant::Tcp, Variant::Unix, Variant::Fable]
    }

    fn operations(&self) -> &'static [&'static str] {
        &["get", "set"]
    }

    fn can_pipeline(&self) -> bool {
        true
    }

    fn server(&self, target: &Target<'_>, _signals: &Signals) -> Result<Vec<String>> {
        let (port, directory) = (target.address.port().to_string(), target.directory.display());
        let directory = directory.to_string();
        let socket = socket(target.directory);
        let mut words = vec![self.server.to_string_lossy().into_owned()];
        let options = [
            ["--bind", "127.0.0.1"],
            ["--port", &port],
            ["--dir", &directory],
            ["--save", ""],
            ["--appendonly", "no"],
            ["--protected-mode", "no"],
            ["--daemonize", "no"],
        ];
        words.extend(options.concat().into_iter().map(str::to_owned));
        if target.variant == Variant::Unix {
            words.extend(["--unixsocket".to_owned(), socket]);
        }
        Ok(words)
    }

    fn fill(&self, target: &Target<'_>, _signals: &Signals) -> Result<()> {
        match ask(target.address, STORE) {
            Some(answer) if answer.starts_with("+OK") => Ok(()),
            answer => Err(Error::setup(
                format!("redis-server stored nothing: {}", answer.unwrap_or_default().trim()),
                "start it by hand to see its error",
            )),
        }
    }

    fn client(&self, target: &Target<'_>, cell: &Cell, amount: Amount) -> Vec<String> {
        let (connections, pipeline) = (cell.connections.to_string(), cell.pipeline.to_string());
        let (operations, port) = (amount.operations.to_string(), target.address.port().to_string());
        let socket = socket(target.directory);
        let options =
            [["--csv", "-t"], [cell.operation, "-n"], [&operations, "-c"], [&connections, "-P"]];
        let place: &[&str] = match target.variant {
            Variant::Unix => &["-s", &socket],
            _ => &["-h", "127.0.0.1", "-p", &port],
        };
        let program = self.client.to_string_lossy();
        let words = [&[program.as_ref()][..], &options.concat(), &[&pipeline], place].concat();
        words.into_iter().map(str::to_owned).collect()
    }

    fn parse(&self, text: &str, cell: &Cell, amount: Amount) -> Result<Printed, String> {
        let figures = figures(text, cell.operation);
        let figures = figures.ok_or_else(|| "redis-benchmark told no figures".to_owned())?;
        let [rate, mean, p50, p99] = figures;
        let us = |ms: f64| Some(ms * 1e3);
        Ok(Printed {
            operations: amount.operations,
            operations_s: rate,
            latency: ReportedLatency { mean: us(mean), p50: us(p50), p99: us(p99) },
        })
    }

    fn answered(&self, target: &Target<'_>, operation: &str) -> Option<u64> {
        let answer = ask(target.address, "INFO commandstats\r\nQUIT\r\n")?;
        let name = format!("cmdstat_{operation}:calls=");
        match answer.lines().find_map(|line| line.strip_prefix(&name)) {
            Some(rest) => rest.split(',').next()?.parse().ok(),
            // The command has not been called yet.
            None => answer.starts_with('$').then_some(0),
        }
    }
}

/// Operations per second, and mean, median and 99th percentile in milliseconds.
fn figures(text: &str, operation: &str) -> Option<[f64; 4]> {
    let cells = |line: &str| -> Vec<String> {
        line.split(',').map(|cell| cell.trim().trim_matches('"').to_owned()).collect()
    };
    let head = cells(text.lines().find(|line| line.starts_with("\"test\""))?);
    let wanted = |line: &&str| cells(line)[0].eq_ignore_ascii_case(operation);
    let row = cells(text.lines().find(wanted)?);
    let value = |name: &str| {
        let column = head.iter().position(|known| known == name)?;
        row.get(column)?.parse::<f64>().ok().filter(|value| value.is_finite())
    };
    let rate = value("rps").filter(|rate| *rate > 0.0)?;
    let ms = |name| value(name);
    Some([rate, ms("avg_latency_ms")?, ms("p50_latency_ms")?, ms("p99_latency_ms")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\
        \"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
        \"GET\",\"26178.01\",\"0.035\",\"0.016\",\"0.023\",\"0.031\",\"0.063\",\"4.095\"\n";

    #[test]
    fn figures_are_found_by_the_names_of_their_columns() {
        assert_eq!(figures(PRINTED, "get"), Some([26_178.01, 0.035, 0.023, 0.063]));
        assert_eq!(figures(PRINTED, "set"), None);
        assert_eq!(figures("Could not connect to Redis", "get"), None);
    }
}
