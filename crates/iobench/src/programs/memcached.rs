//! memcached, and memcslap of libmemcached.

use std::path::PathBuf;

use crate::apps::environment::{is_root, room_for};
use crate::error::Result;
use crate::installed::{ask, find, version};
use crate::programs::{Amount, Cell, Printed, Program, Target};
use crate::results::ReportedLatency;
use crate::sys::signals::Signals;

/// memcached with memcslap as its client.
pub(crate) struct Memcached {
    server: PathBuf,
    client: PathBuf,
    connections: u32,
}

impl Memcached {
    /// Finds both programs.
    pub(crate) fn find(connections: u32) -> Result<Memcached> {
        Ok(Memcached {
            server: find("memcached", "memcached")?,
            client: find("memcslap", "libmemcached-tools")?,
            connections,
        })
    }
}

/// Returns the number of operations of each connection; at least one.
fn share(cell: &Cell, amount: Amount) -> u64 {
    (amount.operations / u64::from(cell.connections)).max(1)
}

impl Program for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn settings(&self) -> String {
        format!("{}; -t 1 -m 256, a client thread for each connection", version(&self.server, "-V"))
    }

    fn operations(&self) -> &'static [&'static str] {
        &["set"]
    }

    fn server(&self, target: &Target<'_>, _signals: &Signals) -> Result<Vec<String>> {
        let port = target.address.port().to_string();
        let room = room_for(self.connections as usize).to_string();
        let mut words = vec![self.server.to_string_lossy().into_owned()];
        let options = [
            ["-l", "127.0.0.1"],
            ["-p", &port],
            ["-U", "0"],
            ["-t", "1"],
            ["-m", "256"],
            ["-c", &room],
        ];
        words.extend(options.concat().into_iter().map(str::to_owned));
        if is_root() {
            words.extend(["-u", "root"].map(str::to_owned));
        }
        Ok(words)
    }

    fn fill(&self, _target: &Target<'_>, _signals: &Signals) -> Result<()> {
        Ok(())
    }

    fn client(&self, target: &Target<'_>, cell: &Cell, amount: Amount) -> Vec<String> {
        vec![
            self.client.to_string_lossy().into_owned(),
            format!("--servers={}", target.address),
            format!("--concurrency={}", cell.connections),
            format!("--execute-number={}", share(cell, amount)),
            format!("--test={}", cell.operation),
        ]
    }

    fn parse(&self, text: &str, cell: &Cell, amount: Amount) -> Result<Printed, String> {
        let seconds = seconds(text, cell.operation);
        let seconds = seconds.ok_or_else(|| "memcslap told no time".to_owned())?;
        let operations = share(cell, amount) * u64::from(cell.connections);
        let operations_s = operations as f64 / seconds;
        Ok(Printed { operations, operations_s, latency: ReportedLatency::default() })
    }

    fn answered(&self, target: &Target<'_>, operation: &str) -> Option<u64> {
        let answer = ask(target.address, "stats\r\nquit\r\n")?;
        let name = format!("STAT cmd_{operation} ");
        answer.lines().find_map(|line| line.strip_prefix(&name))?.trim().parse().ok()
    }
}

/// Returns the seconds in a line such as `Time to set 8000 keys by 4 threads: 0.275 seconds.`
fn seconds(text: &str, operation: &str) -> Option<f64> {
    let is_wanted = |line: &&str| {
        let mut words = line.split_whitespace();
        words.by_ref().take(3).eq(["Time", "to", operation]) && line.contains(" threads:")
    };
    let (_, rest) = text.lines().find(is_wanted)?.rsplit_once("threads:")?;
    let seconds: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (seconds > 0.0 && seconds.is_finite()).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_of_the_measured_threads_counts() {
        let text = "Time to generate       2000 test keys:                0.012 seconds.\n\
                    Time to set            2000 keys:                     0.206 seconds.\n\
                    Time to set            8000 keys by    4 threads:     0.275 seconds.\n";
        assert_eq!(seconds(text, "set"), Some(0.275));
        assert_eq!(seconds(text, "get"), None);
    }

    #[test]
    fn operations_are_shared_out_evenly() {
        let cell = Cell { operation: "set", connections: 4, pipeline: 1, transactions: 0 };
        let amount = |operations| Amount { operations, duration: std::time::Duration::ZERO };
        assert_eq!([share(&cell, amount(11)), share(&cell, amount(3))], [2, 1]);
    }
}
