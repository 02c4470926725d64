//! Parses the experiment file, TOML, and checks it completely before anything runs.
//!
//! The tables `quick` and `paper` have the same keys as the file itself; `--quick` or `--paper`
//! replaces the file's values by those of one table, key by key.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::error::{Context, Error, Result};
use crate::network::PathKind;
use crate::network::conditions::Conditions;
use crate::open::arrivals::Arrivals;
use crate::open::verdict::Tolerance;
use crate::results::Kind;
use crate::units::parse_duration;

/// Largest file that is read.
const MOST_BYTES: u64 = 1 << 20;
/// Most values of one axis.
const MOST_VALUES: usize = 64;

/// The size of the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// The file's own values: sized for an ordinary machine.
    Default,
    /// With the values of the table `quick`.
    Quick,
    /// With the values of the table `paper`.
    Paper,
}

impl Scale {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scale::Default => "default",
            Scale::Quick => "quick",
            Scale::Paper => "paper",
        }
    }
}

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Experiment {
    /// A short name.
    pub(crate) name: String,
    /// A line that describes the experiment.
    pub(crate) title: String,
    /// The origin of the experiment, such as a paper's table.
    #[serde(default)]
    pub(crate) source: Option<String>,
    pub(crate) kind: Kind,
    #[serde(default = "default_rounds")]
    pub(crate) rounds: u32,
    /// The server that ratios are against: `epoll` if it is among the servers, else the first.
    #[serde(default)]
    pub(crate) baseline: Option<String>,
    /// Seed of the schedules: from the clock unless given.
    #[serde(default)]
    pub(crate) seed: Option<u64>,
    pub(crate) sweep: Sweep,
    #[serde(default)]
    pub(crate) periods: Periods,
    #[serde(default)]
    pub(crate) placement: Placement,
    #[serde(default)]
    pub(crate) tolerance: Tolerance,
    /// The network path; without it the plain loopback.
    #[serde(default)]
    pub(crate) network: Option<PathSetting>,
    /// External servers: name and command.
    #[serde(default)]
    pub(crate) peers: BTreeMap<String, String>,
}

/// A network path other than the plain loopback: the name of a path, or a table of conditions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PathSetting {
    Veth,
    Conditions(Conditions),
}

impl PathSetting {
    /// Returns the arguments of `Path::create`.
    pub(crate) fn parts(&self) -> (PathKind, Option<&Conditions>) {
        match self {
            PathSetting::Veth => (PathKind::Veth, None),
            PathSetting::Conditions(conditions) => (PathKind::Loopback, Some(conditions)),
        }
    }
}

impl fmt::Display for PathSetting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathSetting::Veth => out.write_str("veth"),
            PathSetting::Conditions(conditions) => conditions.fmt(out),
        }
    }
}

impl<'de> Deserialize<'de> for PathSetting {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<PathSetting, D::Error> {
        match toml::Value::deserialize(input)? {
            toml::Value::String(word) if word == "veth" => Ok(PathSetting::Veth),
            toml::Value::String(word) => Err(serde::de::Error::custom(format!(
                "`{word}` is no network; write \"veth\", or a table of conditions"
            ))),
            table => {
                table.try_into().map(PathSetting::Conditions).map_err(serde::de::Error::custom)
            }
        }
    }
}

fn default_rounds() -> u32 {
    5
}

/// One value, or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "write one value or a list of them, all numbers or all strings as this key has them"
)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<Vec<T>, D::Error> {
    Ok(match OneOrMany::deserialize(input)? {
        OneOrMany::One(value) => vec![value],
        OneOrMany::Many(values) => values,
    })
}

/// The axes; every combination is a point.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sweep {
    #[serde(deserialize_with = "list")]
    pub(crate) servers: Vec<String>,
    #[serde(deserialize_with = "list", default = "default_connections")]
    pub(crate) connections: Vec<usize>,
    /// Requests (open) or connections (churn) per second.
    #[serde(deserialize_with = "list", default)]
    pub(crate) request_rate: Vec<f64>,
    #[serde(deserialize_with = "list", default = "one")]
    pub(crate) request_bytes: Vec<usize>,
    #[serde(deserialize_with = "list", default = "one")]
    pub(crate) response_bytes: Vec<usize>,
    /// Instead of the two: the size of both.
    #[serde(deserialize_with = "list", default)]
    pub(crate) message_bytes: Vec<usize>,
    /// Per connection (closed, churn); 0: connections persist.
    #[serde(deserialize_with = "list", default)]
    pub(crate) transactions: Vec<u32>,
    #[serde(default)]
    pub(crate) cores: Cores,
    /// `none`, `burn:50us`, `sleep:1ms`
    #[serde(deserialize_with = "list", default = "no_work")]
    pub(crate) work: Vec<String>,
    #[serde(default)]
    pub(crate) arrivals: Arrivals,
}

fn default_connections() -> Vec<usize> {
    vec![256]
}

fn one() -> Vec<usize> {
    vec![1]
}

fn no_work() -> Vec<String> {
    vec!["none".to_owned()]
}

/// Server threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cores {
    Listed(Vec<usize>),
    /// As many as there are CPUs.
    All,
    /// One, two, and so on, up to all.
    Each,
}

impl Default for Cores {
    fn default() -> Cores {
        Cores::Listed(vec![1])
    }
}

impl<'de> Deserialize<'de> for Cores {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Cores, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "cores are a number, a list of numbers, \"all\" or \"each\"")]
        enum Form {
            One(usize),
            Many(Vec<usize>),
            Word(Word),
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Word {
            All,
            Each,
        }
        Ok(match Form::deserialize(input)? {
            Form::One(count) => Cores::Listed(vec![count]),
            Form::Many(counts) => Cores::Listed(counts),
            Form::Word(Word::All) => Cores::All,
            Form::Word(Word::Each) => Cores::Each,
        })
    }
}

/// The periods of Kawai and Yamaguchi's Figure 5. Closed loops use only `measure`, the measured
/// time per server, point and round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Periods {
    #[serde(deserialize_with = "duration")]
    pub(crate) growth: Duration,
    #[serde(deserialize_with = "duration")]
    pub(crate) steady: Duration,
    #[serde(deserialize_with = "duration")]
    pub(crate) measure: Duration,
    /// The time after which an answer is late.
    #[serde(deserialize_with = "duration")]
    pub(crate) timeout: Duration,
}

impl Default for Periods {
    fn default() -> Periods {
        Periods {
            growth: Duration::from_secs(1),
            steady: Duration::from_secs(1),
            measure: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
        }
    }
}

fn duration<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let duration =
        parse_duration(&String::deserialize(input)?).map_err(serde::de::Error::custom)?;
    if duration > Duration::from_secs(3600) {
        return Err(serde::de::Error::custom("a period is at most 1h"));
    }
    Ok(duration)
}

/// Where servers and clients run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Placement {
    pub(crate) server_cpus: Option<Vec<usize>>,
    pub(crate) client_cpus: Option<Vec<usize>>,
    /// Pairs of send and receive threads.
    pub(crate) generators: Option<usize>,
    /// The CPU of the path's relay.
    pub(crate) relay_cpu: Option<usize>,
}

impl Experiment {
    /// Reads a file; returns the experiment and the file's text.
    pub(crate) fn read(path: &Path, scale: Scale) -> Result<(Experiment, String)> {
        let shown = path.display();
        let remedy = "name an experiment file; those that come with iobench are in experiments/";
        let length = fs::metadata(path).context(format!("read {shown}"), remedy)?.len();
        if length > MOST_BYTES {
            return Err(Error::setup(format!("{shown} has {length} bytes"), remedy));
        }
        let text = fs::read_to_string(path).context(format!("read {shown}"), remedy)?;
        let experiment = Experiment::parse(&text, scale).map_err(|cause| {
            Error::setup(format!("{shown}: {}", cause.trim_end()), "correct the file")
        })?;
        Ok((experiment, text))
    }

    /// Parses and checks; the error is a message for the user.
    pub(crate) fn parse(text: &str, scale: Scale) -> Result<Experiment, String> {
        let mut table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let overlays =
            [Scale::Quick, Scale::Paper].map(|other| (other, table.remove(other.name())));
        let tables = overlays.iter().filter_map(|(_, overlay)| overlay.as_ref()?.as_table());
        let named: Vec<String> = tables.chain([&table]).flat_map(servers_of).collect();
        for (other, overlay) in overlays {
            match overlay {
                Some(toml::Value::Table(overlay)) if other == scale => {
                    lay_over(&mut table, overlay)
                }
                Some(toml::Value::Table(_)) => {}
                None if other != scale => {}
                None => return Err(format!("there is no table `{}` in it", scale.name())),
                Some(_) => return Err(format!("`{}` must be a table", other.name())),
            }
        }
        let experiment: Experiment =
            table.try_into().map_err(|error: toml::de::Error| error.to_string())?;
        experiment.check()?;
        match experiment.peers.keys().find(|peer| !named.contains(peer)) {
            None => Ok(experiment),
            Some(peer) => Err(format!(
                "the peer `{peer}` is never used; add its name to sweep.servers, or remove it"
            )),
        }
    }

    /// Checks what the types cannot express.
    fn check(&self) -> Result<(), String> {
        let Sweep { servers, connections, request_rate, transactions, .. } = &self.sweep;
        let lengths = [
            servers.len(),
            connections.len(),
            self.sweep.request_bytes.len(),
            self.sweep.response_bytes.len(),
            self.sweep.work.len(),
        ];
        if lengths.contains(&0) {
            return Err("an axis of the sweep has no values".to_owned());
        }
        if lengths.iter().any(|length| *length > MOST_VALUES) || request_rate.len() > MOST_VALUES {
            return Err(format!("an axis of the sweep has more than {MOST_VALUES} values"));
        }
        if !(1..=1_000).contains(&self.rounds) {
            return Err("there are 1 to 1000 rounds".to_owned());
        }
        let paced = self.kind != Kind::Closed;
        if paced && request_rate.is_empty() {
            return Err("sweep.request_rate is missing: an open loop needs a rate".to_owned());
        }
        if !paced && !request_rate.is_empty() {
            return Err("a closed loop has no request_rate".to_owned());
        }
        if request_rate.iter().any(|rate| !(1.0..=1e7).contains(rate)) {
            return Err("a request_rate is between 1 and 10000000 per second".to_owned());
        }
        if self.kind == Kind::Open && !transactions.is_empty() {
            return Err("connections of an open loop persist; leave transactions out".to_owned());
        }
        if self.kind == Kind::Churn && transactions.contains(&0) {
            return Err("connections of a churn have at least one transaction".to_owned());
        }
        if self.periods.measure < Duration::from_millis(100) {
            return Err("periods.measure must be at least 100ms".to_owned());
        }
        Ok(())
    }
}

/// Returns the names in a table's `sweep.servers`, as far as they are names.
fn servers_of(table: &toml::Table) -> Vec<String> {
    let servers = table.get("sweep").and_then(|sweep| sweep.get("servers"));
    let listed = servers.map_or(&[][..], |servers| match servers {
        toml::Value::Array(names) => names,
        name => std::slice::from_ref(name),
    });
    listed.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Replaces values of `base` by those of `over`, within tables key by key.
fn lay_over(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => lay_over(base, over),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &str = r#"
        name = "plain"
        title = "A plain one"
        kind = "open"
        [sweep]
        servers = ["epoll", "poll"]
        connections = 400
        request_rate = [125, 2000.5]
        cores = "each"
        [periods]
        measure = "2s"
        [quick.sweep]
        connections = [10, 20]
        [quick.periods]
        growth = "10ms"
    "#;

    fn parse(text: &str) -> Result<Experiment, String> {
        Experiment::parse(text, Scale::Default)
    }

    #[test]
    fn one_value_is_a_list_of_one() {
        let experiment = parse(PLAIN).unwrap();
        assert_eq!(experiment.sweep.connections, [400]);
        assert_eq!(experiment.sweep.request_rate, [125.0, 2_000.5]);
        assert_eq!((experiment.rounds, &experiment.sweep.cores), (5, &Cores::Each));
        assert_eq!(experiment.periods.growth, Duration::from_secs(1));
    }

    #[test]
    fn a_network_is_a_word_or_a_table() {
        let network = |text: &str| {
            let text = PLAIN.replace("kind = \"open\"", &format!("kind = \"open\"\n{text}"));
            parse(&text).unwrap().network.map(|way| way.to_string())
        };
        assert_eq!(network(""), None);
        assert_eq!(network("network = \"veth\"").unwrap(), "veth");
        assert!(network("network = { delay = \"1ms\" }").unwrap().contains("1ms"));
    }

    #[test]
    fn a_scale_is_laid_over_key_by_key() {
        let experiment = Experiment::parse(PLAIN, Scale::Quick).unwrap();
        assert_eq!(experiment.sweep.connections, [10, 20]);
        assert_eq!(experiment.sweep.servers.len(), 2);
        assert_eq!(experiment.periods.growth, Duration::from_millis(10));
        assert_eq!(experiment.periods.measure, Duration::from_secs(2));
        let missing = Experiment::parse(PLAIN, Scale::Paper).unwrap_err();
        assert!(missing.contains("`paper`"), "{missing}");
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, expected) in [
            ("servers =", "server =", "server"),
            ("measure = \"2s\"", "measure = 2", "string"),
            ("measure = \"2s\"", "measure = \"2 parsecs\"", "unit"),
            ("kind = \"open\"", "kind = \"ajar\"", "ajar"),
            ("kind = \"open\"", "kind = \"open\"\nnetwork = \"tin cans\"", "no network"),
            ("kind = \"open\"", "kind = \"open\"\nnetwork = { delay = \"9s\" }", "1s"),
            ("request_rate = [125, 2000.5]", "", "request_rate"),
            ("request_rate = [125, 2000.5]", "request_rate = [0]", "between 1"),
            ("cores = \"each\"", "cores = \"some\"", "cores are"),
            ("connections = 400", "connections = []", "no values"),
            ("connections = 400", "connections = \"many\"", "write one value or a list"),
            ("[periods]", "[peers]\nmine = \"./mine\"\n[periods]", "add its name to sweep.servers"),
            ("kind = \"open\"", "kind = \"closed\"", "closed loop"),
            ("[quick.periods]", "[fast.periods]", "fast"),
        ] {
            let message = parse(&PLAIN.replace(from, to)).unwrap_err();
            assert!(message.contains(expected), "{to}: {message}");
        }
    }

    #[test]
    fn a_wrong_overlay_is_not_ignored() {
        let text = PLAIN.replace("[quick.periods]", "[quick.period]");
        assert!(Experiment::parse(&text, Scale::Quick).unwrap_err().contains("period"));
    }

    proptest! {
        #[test]
        fn no_text_upsets_the_parser(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }
    }
}
