//! lighttpd as one process and ab (ApacheBench), on the kernel's TCP and on user-level TCP, as in
//! section 5.3 of the mTCP paper ("mTCP: a Highly Scalable User-level TCP Stack for Multicore
//! Systems", NSDI 2014): small files, a connection for each request or for many.

use std::fs;
use std::path::{Path, PathBuf};

use crate::apps::environment::room_for;
use crate::error::{Context, Result};
use crate::installed::{find, version};
use crate::network::PathKind;
use crate::network::veth::Veth;
use crate::programs::{Amount, Cell, Printed, Program, Target, Variant};
use crate::results::ReportedLatency;
use crate::sys::signals::Signals;

/// The operations: (name, bytes of the file, whether connections are kept).
const OPERATIONS: [(&str, usize, bool); 4] = [
    ("get-64", 64, false),
    ("get-8k", 8_192, false),
    ("get-64-kept", 64, true),
    ("get-8k-kept", 8_192, true),
];
const NAMES: [&str; 4] = [OPERATIONS[0].0, OPERATIONS[1].0, OPERATIONS[2].0, OPERATIONS[3].0];
/// The largest value of lighttpd's limit of requests per connection; the last one ends the
/// connection.
const KEPT_REQUESTS: u64 = 65_535;
/// Seconds that ab waits for an answer.
const TIMEOUT_S: &str = "20";

/// lighttpd with ab as its client.
pub(crate) struct Lighttpd {
    server: PathBuf,
    client: PathBuf,
    connections: u32,
}

impl Lighttpd {
    /// Finds both programs.
    pub(crate) fn find(connections: u32) -> Result<Lighttpd> {
        let (server, client) = (find("lighttpd", "lighttpd")?, find("ab", "apache2-utils")?);
        Ok(Lighttpd { server, client, connections })
    }
}

impl Lighttpd {
    /// Returns the client's command for a server of these files.
    pub(crate) fn load(
        &self,
        scheme: &str,
        target: &Target<'_>,
        cell: &Cell,
        amount: Amount,
    ) -> Vec<String> {
        let (bytes, keeps) = meaning(cell.operation);
        let (requests, connections) = (amount.operations.to_string(), cell.connections.to_string());
        let program = self.client.to_string_lossy();
        let mut words: Vec<&str> = vec![&program, "-q", "-s", TIMEOUT_S, "-n", &requests, "-c"];
        // Percentiles in ab's report are whole milliseconds; in this file they have decimals.
        words.extend([connections.as_str(), "-e", "/dev/stdout"]);
        words.extend(keeps.then_some("-k"));
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        words.push(format!("{scheme}://{}/{bytes}", target.address));
        words
    }
}

/// Returns the size of the file, and whether connections are kept.
fn meaning(operation: &str) -> (usize, bool) {
    let known = OPERATIONS.into_iter().find(|(name, ..)| *name == operation);
    known.map_or((OPERATIONS[0].1, OPERATIONS[0].2), |(_, bytes, keeps)| (bytes, keeps))
}

impl Program for Lighttpd {
    fn name(&self) -> &'static str {
        "lighttpd"
    }

    fn settings(&self) -> String {
        let (server, client) = (version(&self.server, "-v"), version(&self.client, "-V"));
        format!("{server}, one process, no logs; {client}; over {}", Veth::describe())
    }

    fn path(&self) -> PathKind {
        PathKind::Veth
    }

    fn variants(&self) -> &'static [Variant] {
        &[Variant::Tcp, Variant::Mtcp, Variant::MtcpBoth]
    }

    fn operations(&self) -> &'static [&'static str] {
        &NAMES
    }

    fn connections(&self, cell: &Cell, printed: &Printed) -> u64 {
        match meaning(cell.operation) {
            (_, true) => u64::from(cell.connections).min(printed.operations),
            (_, false) => printed.operations,
        }
    }

    fn transactions(&self, operation: &str) -> u32 {
        let (_, keeps) = meaning(operation);
        (!keeps).into()
    }

    fn server(&self, target: &Target<'_>, _signals: &Signals) -> Result<Vec<String>> {
        const REMEDY: &str = "free some space in the directory for temporary files";
        let root = target.directory.join("www");
        fs::create_dir_all(&root).context(format!("make {}", root.display()), REMEDY)?;
        for (_, bytes, _) in OPERATIONS {
            let file = root.join(bytes.to_string());
            fs::write(&file, "x".repeat(bytes))
                .context(format!("write {}", file.display()), REMEDY)?;
        }
        let file = target.directory.join("lighttpd.conf");
        let text = configuration(&root, target, self.connections);
        fs::write(&file, text).context(format!("write {}", file.display()), REMEDY)?;
        let [program, file] =
            [&self.server, &file].map(|path: &PathBuf| path.display().to_string());
        Ok(vec![program, "-D".to_owned(), "-f".to_owned(), file])
    }

    fn fill(&self, _target: &Target<'_>, _signals: &Signals) -> Result<()> {
        Ok(())
    }

    fn client(&self, target: &Target<'_>, cell: &Cell, amount: Amount) -> Vec<String> {
        self.load("http", target, cell, amount)
    }

    fn parse(&self, text: &str, cell: &Cell, amount: Amount) -> Result<Printed, String> {
        read_report(text, cell, amount)
    }
}

/// Parses the output of ab.
fn read_report(text: &str, cell: &Cell, amount: Amount) -> Result<Printed, String> {
    let told = |name: &str| figure(text, name).ok_or_else(|| format!("ab did not tell {name}"));
    let (bytes, keeps) = meaning(cell.operation);
    let (complete, failed) = (told("Complete requests:")?, told("Failed requests:")?);
    let refused = figure(text, "Non-2xx responses:").unwrap_or(0.0);
    if complete != amount.operations as f64 || failed + refused > 0.0 {
        let asked = amount.operations;
        return Err(format!(
            "ab counted {complete} of {asked} answers, {failed} failed and {refused} refused"
        ));
    }
    let length = told("Document Length:")?;
    if length != bytes as f64 {
        return Err(format!("answers of {length} bytes came, not of {bytes}"));
    }
    let kept = if keeps { told("Keep-Alive requests:")? } else { 0.0 };
    let ends = amount.operations / KEPT_REQUESTS + u64::from(cell.connections);
    if keeps && kept + (ends as f64) < complete {
        return Err(format!("only {kept} of {complete} answers kept their connection"));
    }
    let us = |ms: f64| ms * 1e3;
    let latency = ReportedLatency {
        mean: figure(text, "Time per request:").map(us),
        p50: figure(text, "50,").map(us),
        p99: figure(text, "99,").map(us),
    };
    let operations_s = told("Requests per second:")?;
    Ok(Printed { operations: amount.operations, operations_s, latency })
}

/// Returns the first number after `name` at the beginning of a line.
fn figure(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// lighttpd's configuration: no access log, errors on standard error.
fn configuration(root: &Path, target: &Target<'_>, connections: u32) -> String {
    let (address, port) = (target.address.ip(), target.address.port());
    let (root, room) = (root.display(), room_for(connections as usize));
    let files = 2 * room;
    format!(
        "server.document-root = \"{root}\"\nserver.bind = \"{address}\"\nserver.port = {port}\n\
         server.event-handler = \"linux-sysepoll\"\nserver.max-fds = {files}\n\
         server.max-connections = {room}\nserver.max-keep-alive-idle = 60\n\
         server.max-keep-alive-requests = {KEPT_REQUESTS}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "Benchmarking 10.78.1.1 (be patient)...Percentage served,Time in ms\n\
        0,0.104\n50,0.333\n99,5.736\n100,10.293\n..done\n\nDocument Length:        64 bytes\n\n\
        Complete requests:      1000\nFailed requests:        0\nKeep-Alive requests:    996\n\
        Requests per second:    8517.16 [#/sec] (mean)\n\
        Time per request:       0.470 [ms] (mean)\n\
        Time per request:       0.117 [ms] (mean, across all concurrent requests)\n  50%      0\n";

    fn parse(text: &str, operation: &'static str) -> Result<Printed, String> {
        let none = PathBuf::new;
        let program = Lighttpd { server: none(), client: none(), connections: 4 };
        let amount = Amount { operations: 1_000, duration: std::time::Duration::ZERO };
        program.parse(
            text,
            &Cell { operation, connections: 4, pipeline: 1, transactions: 0 },
            amount,
        )
    }

    #[test]
    fn figures_are_those_of_the_report_and_of_the_percentiles() {
        let latency = ReportedLatency { mean: Some(470.0), p50: Some(333.0), p99: Some(5736.0) };
        let printed = Printed { operations: 1_000, operations_s: 8_517.16, latency };
        assert_eq!(parse(PRINTED, "get-64"), Ok(printed));
        assert_eq!(parse(PRINTED, "get-64-kept"), Ok(printed));
    }

    #[test]
    fn answers_that_are_not_what_was_asked_for_are_told() {
        let complaint = |from: &str, to: &str, operation| {
            parse(&PRINTED.replace(from, to), operation).unwrap_err()
        };
        assert!(
            complaint("requests:        0", "requests:        2", "get-64").contains("2 failed")
        );
        assert!(
            complaint("\nRequests", "\nNon-2xx responses: 7\nRequests", "get-64").contains("7 r")
        );
        assert!(complaint("s:      1000", "s:      999", "get-64").contains("999 of 1000"));
        assert!(complaint("    996", "    900", "get-64-kept").contains("only 900 of 1000"));
        assert!(complaint("", "", "get-8k").contains("64 bytes came, not of 8192"));
        assert!(
            complaint(PRINTED, "apr_socket_recv: Connection reset", "get-64").contains("ab did")
        );
    }

    #[test]
    fn every_operation_means_something_else() {
        let meanings: Vec<_> = NAMES.map(meaning).to_vec();
        assert_eq!(meanings, [(64, false), (8_192, false), (64, true), (8_192, true)]);
    }
}
